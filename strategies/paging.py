"""Paged KV caches: fragmented and shared pages, a last page partly filled, poison wherever nothing is stored."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor

from strategies.batches import keys_and_values
from strategies.tensors import generator

__all__ = ["PAGES", "POISONS", "PREFIXES", "Paged", "page_recipes", "paged"]

PAGES = (1, 4, 7, 16)
POISONS = ("nan", "large")
UNUSED = ("minus_one", "poisoned")
PREFIXES = (False, True)
SPARES = (2, 150)

Paged = tuple[Tensor, Tensor, Tensor]


def page_recipes() -> st.SearchStrategy[dict[str, object]]:
    """Draw how pages lie in memory.

    order: seed of the shuffle; 0 leaves pages in order. spare: pages that no sequence owns; many make a large cache, in
    which page numbers are large. poison: what unused slots hold. unused: what table entries
    past the last page hold. shared: whether equal full pages of equal prefixes are one page.
    """
    return st.fixed_dictionaries(
        {
            "order": st.integers(0, 20),
            "spare": st.sampled_from(SPARES),
            "poison": st.sampled_from(POISONS),
            "unused": st.sampled_from(UNUSED),
            "shared": st.sampled_from(PREFIXES),
        }
    )


def paged(
    sequences: Sequence[Sequence[int]],
    page: int,
    heads: int,
    size: int,
    pages: dict[str, object],
    dtype: torch.dtype,
) -> Paged:
    """Build k_cache, v_cache [P, page, heads, size] and block_table [B, M] int32, on the CPU."""
    wanted: list[list[tuple[int, ...]]] = []
    for b, (length, seed) in enumerate(sequences):
        count = -(-length // page)
        full = [
            (seed, i) if pages["shared"] and (i + 1) * page <= length else (seed, i, b) for i in range(count)
        ]
        wanted.append(full)
    names = sorted({name for row in wanted for name in row}, key=str)
    total = len(names) + int(str(pages["spare"]))
    order = list(range(total))
    if pages["order"]:
        order = torch.randperm(total, generator=generator(int(str(pages["order"])))).tolist()
    place = {name: order[i] for i, name in enumerate(names)}
    fill = float("nan") if pages["poison"] == "nan" else 1e4
    k_cache = torch.full((total, page, heads, size), fill, dtype=dtype)
    v_cache = torch.full_like(k_cache, fill)
    width = max([len(row) for row in wanted] + [0]) + 2
    unused = -1 if pages["unused"] == "minus_one" else order[-1]
    table = torch.full((len(sequences), width), unused, dtype=torch.int32)
    for b, ((length, seed), row) in enumerate(zip(sequences, wanted, strict=True)):
        keys, values = keys_and_values(seed, length, heads, size)
        for i, name in enumerate(row):
            held = min(page, length - i * page)
            k_cache[place[name], :held] = keys[i * page : i * page + held].to(dtype)
            v_cache[place[name], :held] = values[i * page : i * page + held].to(dtype)
            table[b, i] = place[name]
    return k_cache, v_cache, table
