"""What a contract must satisfy beyond its shape: names that exist, limits for every dtype, rules that can fire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kernelpact.contract import LIMITLESS, Contract, PolicyRule
from kernelpact.dsl.errors import Problem, hint
from kernelpact.dsl.slices import SliceError, parse
from kernelpact.dsl.yaml import Document, Loc

__all__ = ["check"]


def check(contract: Contract, document: Document) -> Iterator[Problem]:
    """Give every problem of a contract whose shape is right."""
    for loc, message in (*_limits(contract), *_slices(contract), *_rules(contract), *_empty(contract)):
        while loc not in document.lines and loc:
            loc = loc[:-1]
        line, column = document.lines.get(loc, (1, 1))
        yield Problem(document.path, line, column, message)


Found = tuple[Loc, str]


def _empty(contract: Contract) -> Iterator[Found]:
    if not any((contract.numerical, contract.derived, contract.statistical, contract.runtime)):
        yield (), "the contract promises nothing: no numerical, derived, statistical or runtime clause"
    for key, values in contract.scope.domain.items():
        if not isinstance(values, list) or not values:
            yield (
                ("scope", "domain", key),
                f"domain {key} is {values!r}; allowed: [low, high], or a list of values",
            )


def _limits(contract: Contract) -> Iterator[Found]:
    for family in ("numerical", "statistical"):
        for position, clause in enumerate(getattr(contract, family)):
            side = "max" if clause.max is not None else "min"
            limit = getattr(clause, side)
            if isinstance(limit, Mapping) and clause.metric not in LIMITLESS:
                yield from _by_dtype(limit, contract, (family, position, side))


def _by_dtype(limit: Mapping[str, Any], contract: Contract, loc: Loc) -> Iterator[Found]:
    scope = contract.scope.dtypes
    if not limit:
        yield loc, "the limit is an empty mapping; allowed: a limit for each dtype of the scope"
        return
    for dtype, inner in limit.items():
        if dtype not in scope:
            yield (*loc, dtype), f"a limit for {dtype}, which scope.dtypes {list(scope)} does not name"
        if isinstance(inner, Mapping) and not inner:
            yield (*loc, dtype), "the limit is an empty mapping; allowed: a limit for each hardware"
    if missing := [dtype for dtype in scope if dtype not in limit]:
        yield loc, f"no limit for {', '.join(missing)}, which scope.dtypes names"


def _slices(contract: Contract) -> Iterator[Found]:
    for name, predicate in contract.slices.items():
        try:
            parse(predicate)
        except SliceError as error:
            yield ("slices", name), f"slice {name!r}: {error}"
    known = sorted(contract.slices)
    for position, clause in enumerate(contract.statistical):
        for index, name in enumerate(clause.slices):
            if name not in known:
                yield ("statistical", position, "slices", index), _no_slice(name, known)
    for position, rule in enumerate(contract.policy):
        name_ = rule.when.slice
        if name_ is not None and name_ != "*" and name_ not in known:
            yield ("policy", position, "when", "slice"), _no_slice(name_, known)


def _no_slice(name: str, known: list[str]) -> str:
    return f"slice {name!r} is not declared; declared: {', '.join(known) or 'none'}{hint(name, known)}"


def _rules(contract: Contract) -> Iterator[Found]:
    """An unreachable rule is one that an earlier rule always takes the findings of."""
    for later, rule in enumerate(contract.policy):
        for earlier, other in enumerate(contract.policy[:later]):
            if _covers(other, rule):
                yield (
                    ("policy", later),
                    f"this rule never fires: rule {earlier + 1} (line {_line(contract, earlier)}) "
                    "matches everything that it matches",
                )
                break
    for position, rule in enumerate(contract.policy):
        if (rule.then == "reroute") != (rule.to is not None):
            yield ("policy", position), f"`to` belongs to reroute, which needs it; found then: {rule.then}"


def _line(contract: Contract, position: int) -> str:
    return (
        str(position + 1)
        if contract.origin.path == "<memory>"
        else str(contract.origin.line("policy", position))
    )


def _covers(other: PolicyRule, rule: PolicyRule) -> bool:
    if other.within is not None:
        return False
    pairs = [
        (getattr(other.when, name), getattr(rule.when, name))
        for name in ("family", "metric", "slice", "severity", "verdict", "stage")
    ]
    pairs.append((other.stage, rule.stage))
    return all(theirs in (None, "*") or theirs == ours for theirs, ours in pairs)
