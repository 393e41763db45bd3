"""Batch compositions: one long and many short sequences, empty and length-1 ones, repeated prefixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor

from strategies import sizes
from strategies.tensors import generator

__all__ = ["keys_and_values", "queries", "sequences"]

BLOCK = 200  # tokens drawn at once: how long a sequence is never changes what its first tokens are
KEY_MEAN = 4.0  # the first column of every key, by which queries shift all their scores


def sequences(
    name: str, domain: sizes.Domain, edges: Mapping[str, Sequence[int]], *, most: int = 4, cap: int = 70
) -> st.SearchStrategy[list[list[int]]]:
    """Draw sequences, [length, seed] each: any, one long and a few short, or several of one seed.

    Equal seeds give sequences of which one is the other's prefix.
    """
    low, high = domain.get(name, (0, cap))
    low = max(low, 0)

    def short(longest: int) -> st.SearchStrategy[int]:
        return st.integers(low, min(high, max(low, longest)))

    def of(length: st.SearchStrategy[int], seed: st.SearchStrategy[int]) -> st.SearchStrategy[list[int]]:
        return st.tuples(length, seed).map(list)

    length = st.one_of(short(8), sizes.sizes(name, domain, edges, low=low, cap=cap))
    seed = st.integers(0, 40)
    usual = sizes.several(of(length, seed), 1, most)
    if most < 2:
        return usual
    few = st.lists(of(short(2), seed), min_size=1, max_size=most - 1)
    long = sizes.sizes(name, domain, edges, low=low, cap=cap)
    one_long = st.tuples(of(long, seed), few).map(lambda pair: [pair[0], *pair[1]])
    prefixes = st.tuples(seed, st.lists(length, min_size=2, max_size=most)).map(
        lambda pair: [[length, pair[0]] for length in pair[1]]
    )
    return st.one_of(usual, one_long, prefixes)


def keys_and_values(seed: int, length: int, heads: int, size: int) -> tuple[Tensor, Tensor]:
    """Build k and v [length, heads, size] in float64. Values carry their position, so that a wrong one shows."""
    noise = _noise(seed, length, (2, heads, size))
    noise[:, 0, :, 0] = KEY_MEAN
    place = torch.arange(length, dtype=torch.float64)[:, None, None]
    return noise[:, 0], noise[:, 1] + 2 * torch.cos(place * 2.4)


def queries(seed: int, length: int, heads: int, size: int, sharpness: float, lift: float = 0.0) -> Tensor:
    """Build q [length, heads, size] in float64; a large sharpness makes attention look at single keys."""
    q = _noise(seed + 50_000, length, (heads, size)) * sharpness
    # Every score at scale 1/√D moves by `lift`: a forgotten maximum shows.
    q[..., 0] += lift * size**0.5 / KEY_MEAN
    return q


def _noise(seed: int, length: int, shape: tuple[int, ...]) -> Tensor:
    """Draw [length, *shape] in float64; a longer draw of the same seed begins with the same bits."""
    blocks = [
        torch.randn(BLOCK, *shape, generator=generator(seed + 1_000_003 * block), dtype=torch.float64)
        for block in range(max(1, -(-length // BLOCK)))
    ]
    return torch.cat(blocks)[:length]
