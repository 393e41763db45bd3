"""Sizes biased to edges: 1, primes, powers of two and declared tile edges, each ±1; and domains that narrow them.

A domain maps a name to `[low, high]`, a range, where the name is a size; to a list of allowed values elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

__all__ = ["Domain", "check_domain", "choices", "sizes"]

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
    """
    bottom, top = domain.get(name, (low, cap))
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
    """Draw one of `values` that the domain allows, the first ones first. Errors: ValueError if it allows none."""
    allowed = domain.get(name)
    kept = [value for value in values if allowed is None or value in allowed]
    if not kept and allowed is not None:
        kept = list(allowed)
    if not kept:
        raise ValueError(f"domain {name}: {allowed!r} allows none of {list(values)!r}")
    return st.sampled_from(kept)


def seeds() -> st.SearchStrategy[int]:
    """Draw the seed of a row's content."""
    return st.integers(0, 9999)
