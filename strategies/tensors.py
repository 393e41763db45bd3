"""Rows of activations and weights, each of one kind; an example mixes several kinds, so that each says a lot."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from strategies.sizes import seeds

__all__ = ["ROW_KINDS", "WEIGHT_KINDS", "generator", "row", "rows", "torch_dtype", "weight"]

ROW_KINDS = (
    "normal", "outlier", "constant", "tiny", "zeros", "large", "offset", "alternating", "spike", "ties", "subnormal",
)  # fmt: skip
WEIGHT_KINDS = ("ones", "normal", "near_16", "outlier", "signed", "sparse")


def torch_dtype(name: str) -> torch.dtype:
    """Give torch's dtype of this name."""
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)  # noqa: S101 - narrows getattr's Any
    return found


def generator(seed: int) -> torch.Generator:
    """Give a generator of its own: the global one is never touched."""
    return torch.Generator().manual_seed(seed)


def rows(kinds: tuple[str, ...] = ROW_KINDS) -> st.SearchStrategy[list[int | str]]:
    """Draw a row's recipe, [kind, seed]; normal rows first."""
    return st.tuples(st.sampled_from(kinds), seeds()).map(list)


def row(kind: str, seed: int, size: int, dtype: torch.dtype) -> Tensor:
    """Build a row [size] of a kind, rounded to dtype. Its exact mean square is finite in float32."""
    noise = torch.randn(size, generator=generator(seed), dtype=torch.float64)
    index = torch.arange(size)
    at = seed % size
    if kind == "outlier":
        values = noise.where(index != at, 100.0 * (1 + noise.abs()))
    elif kind == "constant":
        values = torch.full_like(noise, 1.0 + (seed % 97) / 97)
    elif kind == "tiny":
        values = noise * 1e-3
    elif kind == "zeros":
        values = torch.zeros_like(noise).where(index % 2 == 0, -0.0)
    elif kind == "large":
        values = noise * (3e3 if dtype == torch.float16 else 1e8)
    elif kind == "offset":
        values = 100.0 + noise
    elif kind == "alternating":
        values = (1 + 1e-2 * noise) * (1 - 2 * (index % 2))
    elif kind == "spike":
        values = torch.zeros_like(noise).where(index != at, 7.3)
    elif kind == "ties":  # just above and below halfway between neighbours of an 8-bit mantissa
        values = 1.0 + (torch.floor(noise.abs() * 32) + 0.5) / 128
    elif kind == "subnormal":
        # Of float32 the last octaves above: below them a product of two inputs is wrong before any kernel rounds.
        values = noise * torch.finfo(dtype).tiny * (2.0**30 if dtype == torch.float32 else 0.5)
    else:
        values = noise
    return values.to(dtype)


def weight(kind: str, seed: int, size: int, dtype: torch.dtype) -> Tensor:
    """Build a norm's weight [size]. near_16: 15.8125 and neighbours, where adding 1 in bfloat16 rounds."""
    noise = torch.randn(size, generator=generator(seed + 1), dtype=torch.float64)
    if kind == "ones":
        values = torch.ones_like(noise)
    elif kind == "near_16":
        values = 15.8125 + 0.0625 * torch.round(noise)
    elif kind == "outlier":
        values = (1 + 0.1 * noise).where(torch.arange(size) != seed % size, 60.0)
    elif kind == "signed":
        values = noise
    elif kind == "sparse":
        values = noise.where(noise > 0, 0.0)
    else:
        values = 1 + 0.1 * noise
    return values.to(dtype)
