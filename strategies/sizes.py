"""Sizes biased to edges: 1, primes, powers of two and declared tile edges, each ±1; and domains that narrow them.

A domain maps a name to `[low, high]`, both included, where the operator's docstring calls the name a range; to a
list of allowed values elsewhere, two numbers too: `{"kv_len": [0, 300], "page": [16, 64]}` allows 301 lengths and
2 page sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

__all__ = ["Domain", "check_domain", "choices", "counted", "seeds", "several", "sizes"]

Domain = Mapping[str, Any]

_PRIMES = (3, 5, 7, 13, 17, 31, 61, 127, 251, 509)
_POWERS = (2, 4, 8, 16, 32, 64, 128, 256, 512)


def check_domain(domain: Domain, allowed: Sequence[str], operator: str) -> None:
    """Refuse a domain that names something the operator does not have. Errors: ValueError."""
    if unknown := sorted(set(domain) - set(allowed)):
        raise ValueError(f"{operator}: domain names {', '.join(unknown)}; allowed: {', '.join(allowed)}")


def sizes(
    name: str, domain: Domain, edges: Mapping[str, Sequence[int]], *, low: int = 1, cap: int
) -> st.SearchStrategy[int]:
    """Draw a size called `name`, within the domain, at most `cap` (what the budget of a run affords), small first.

    edges: sizes at which a kernel changes its path; drawn around, once and twice, up to twice the cap.
    A domain that lies above the cap altogether is drawn at its lower end.
    """
    bottom, top = domain.get(name, (low, 2 * cap))
    bottom, reach = max(low, bottom), min(cap, top)
    if bottom > reach:
        reach = bottom
    declared = [edge * k + d for edge in edges.get(name, ()) for k in (1, 2) for d in (-1, 0, 1)]
    general = [1, *_PRIMES, *(power + d for power in _POWERS for d in (-1, 0, 1))]
    near = sorted({n for n in declared if bottom <= n <= min(top, 2 * cap)})
    usual = sorted({n for n in general if bottom <= n <= reach})
    options = [st.integers(bottom, reach)]
    options += [st.sampled_from(usual)] if usual else []
    options += [st.sampled_from(near), st.sampled_from(near)] if near else []
    return st.one_of(options)


def choices(name: str, domain: Domain, values: Sequence[Any]) -> st.SearchStrategy[Any]:
    """Draw one of `values`, or, where the domain names any, one of those that it allows: all of them, and those
    that stand in `values` first, in that order. Errors: ValueError if it allows none.
    """
    if name not in domain:
        return st.sampled_from(values)
    allowed = list(domain[name])
    if not allowed:
        raise ValueError(f"domain {name} is empty; by default it is {list(values)!r}")
    usual = [value for value in values if value in allowed]
    return st.sampled_from(usual + [value for value in allowed if value not in usual])


def counted(name: str, domain: Domain, *, least: int = 1, most: int = 6) -> tuple[int, int]:
    """Give the fewest and the most rows to draw within the domain. A domain above `most` gives its lower end.

    Errors: ValueError where the domain allows none of `least` rows or more.
    """
    low, high = domain.get(name, (1, most))
    if high < max(low, least):
        raise ValueError(f"domain {name}: [{low}, {high}] holds no number of rows from {least} on")
    low = max(low, least)
    return low, max(low, min(high, most))


def several(element: st.SearchStrategy[Any], low: int, high: int) -> st.SearchStrategy[list[Any]]:
    """Draw lists of low to high elements, seldom of one: a row alone says nothing of invariance or of its batch."""
    starts = sorted({low, *(n for n in (2, 3, 4) if low <= n <= high)})
    return st.one_of([st.lists(element, min_size=start, max_size=high) for start in starts])


def seeds() -> st.SearchStrategy[int]:
    """Draw the seed of a row's content."""
    return st.integers(0, 9999)
