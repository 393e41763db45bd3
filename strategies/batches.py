"""Batch compositions: one long and many short sequences, empty and length-1 ones, repeated prefixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor

from strategies import sizes
from strategies.tensors import generator

__all__ = ["LONGEST", "keys_and_values", "queries", "sequences"]

LONGEST = 100
KEY_MEAN = 4.0  # the first column of every key, by which queries shift all their scores


def sequences(
    name: str, domain: sizes.Domain, edges: Mapping[str, Sequence[int]], *, most: int = 4, cap: int = 70
) -> st.SearchStrategy[list[list[int]]]:
    """Draw sequences, [length, seed] each. Equal seeds give sequences of which one is the other's prefix."""
    low, _ = domain.get(name, (0, cap))
    length = st.one_of(
        st.integers(max(low, 0), max(low, 8)), sizes.sizes(name, domain, edges, low=low, cap=cap)
    )
    sequence = st.tuples(length, st.integers(0, 40)).map(list)
    return st.lists(sequence, min_size=1, max_size=most)


def keys_and_values(seed: int, length: int, heads: int, size: int) -> tuple[Tensor, Tensor]:
    """Build k and v [length, heads, size] in float64. Values carry their position, so that a wrong one shows."""
    noise = torch.randn(LONGEST * 2, 2, heads, size, generator=generator(seed), dtype=torch.float64)[:length]
    noise[:, 0, :, 0] = KEY_MEAN
    place = torch.arange(length, dtype=torch.float64)[:, None, None]
    return noise[:, 0], noise[:, 1] + 2 * torch.cos(place * 2.4)


def queries(seed: int, length: int, heads: int, size: int, sharpness: float, lift: float = 0.0) -> Tensor:
    """Build q [length, heads, size] in float64; a large sharpness makes attention look at single keys."""
    noise = torch.randn(LONGEST * 2, heads, size, generator=generator(seed + 50_000), dtype=torch.float64)
    q = noise[:length] * sharpness
    q[..., 0] += (
        lift * size**0.5 / KEY_MEAN
    )  # every score at scale 1/√D moves by `lift`: a forgotten maximum shows
    return q
