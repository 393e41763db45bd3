"""Rows of logits on which kernels go wrong, and targets that look at the right places of them."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from strategies.sizes import seeds
from strategies.tensors import generator

__all__ = ["LOGIT_KINDS", "TARGET_KINDS", "logit_row", "logit_rows", "target"]

LOGIT_KINDS = (
    "normal", "near_ties", "dominant", "offset", "masked", "masked_prefix", "ascending", "flat_tail", "last",
    "negative", "two_point",
)  # fmt: skip
TARGET_KINDS = ("first", "argmax", "argmin", "last", "random")


def logit_rows(*, targets: bool) -> st.SearchStrategy[list[int | str]]:
    """Draw a row's recipe: [kind, seed], and the kind of its target for an operator that has targets."""
    if not targets:
        return st.tuples(st.sampled_from(LOGIT_KINDS), seeds()).map(list)
    return st.tuples(st.sampled_from(LOGIT_KINDS), seeds(), st.sampled_from(TARGET_KINDS)).map(list)


def logit_row(kind: str, seed: int, size: int, dtype: torch.dtype) -> Tensor:
    """Build a row [size] of logits; at least one is finite."""
    noise = torch.randn(size, generator=generator(seed), dtype=torch.float64)
    index = torch.arange(size, dtype=torch.float64)
    at = seed % size
    values = 3 * noise
    if kind == "near_ties":
        values = 2.0 + torch.round(noise) * 2**-7
    elif kind == "dominant":
        values = noise.where(index != at, 30.0)
    elif kind == "offset":
        values = values + (1e4 if seed % 2 else -1e4)
    elif kind == "masked":
        hidden = (torch.rand(size, generator=generator(seed + 1)) < 0.6) & (index != at)
        values = values.masked_fill(hidden, float("-inf"))
    elif kind == "masked_prefix":  # whole blocks of masked logits before the first that counts
        values = values.masked_fill(index < size * 7 // 8, float("-inf"))
    elif kind == "ascending":
        values = index * (40.0 / size) - 20.0
    elif kind == "flat_tail":
        values = torch.zeros_like(noise).where(index % 64 != at % 64, 4.0)
    elif kind == "last":
        values = noise.where(index != size - 1, 12.0)
    elif kind == "negative":
        values = values - 200.0
    elif kind == "two_point":
        values = 2.0 - 4.0 * (index < max(1, size // 8))
    return values.to(dtype)


def target(kind: str, seed: int, row: Tensor) -> int:
    """Choose a target id of a row. argmin looks at the least likely token that is not masked."""
    size = row.numel()
    if kind == "argmax":
        return int(row.argmax())
    if kind == "argmin":
        return int(row.where(row.isfinite(), float("inf")).argmin())
    if kind == "last":
        return size - 1
    return seed % size if kind == "random" else 0
