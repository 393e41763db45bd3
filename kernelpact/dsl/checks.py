"""What a contract must satisfy beyond its shape: names that exist, limits for every dtype, rules that can fire."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, get_args

from kernelpact.contract import (
    LIMITLESS,
    NUMERICAL_METRICS,
    Contract,
    DerivedBudget,
    PolicyRule,
    RuntimeMetric,
    StatisticalMetric,
)
from kernelpact.dsl.errors import Problem, hint, shorten
from kernelpact.dsl.slices import SliceError, parse
from kernelpact.dsl.yaml import Document, Loc

__all__ = ["check"]


def check(contract: Contract, document: Document) -> Iterator[Problem]:
    """Give every problem of a contract whose shape is right."""
    found = (
        *_limits(contract), *_slices(contract), *_rules(contract, document), *_empty(contract),
        *_domain(contract), *_repeated(contract),
    )  # fmt: skip
    for loc, message in found:
        while loc not in document.lines and loc:
            loc = loc[:-1]
        line, column = document.lines.get(loc, (1, 1))
        yield Problem(document.path, line, column, message)


Found = tuple[Loc, str]


def _empty(contract: Contract) -> Iterator[Found]:
    if not any((contract.numerical, contract.derived, contract.statistical, contract.runtime)):
        yield (), "the contract promises nothing: no numerical, derived, statistical or runtime clause"


def _domain(contract: Contract) -> Iterator[Found]:
    for key, values in contract.scope.domain.items():
        loc: Loc = ("scope", "domain", key)
        if not isinstance(values, list) or not values:
            yield loc, f"domain {key} is {shorten(repr(values))}; allowed: [low, high], or a list of values"
            continue
        for index, value in enumerate(values):
            plain = value is None or isinstance(value, bool | int | float | str)
            if not plain or (isinstance(value, float) and not math.isfinite(value)):
                yield (
                    (*loc, index),
                    f"domain {key} holds {shorten(repr(value))}; allowed: finite numbers and words",
                )
        numbers = [
            value for value in values if isinstance(value, int | float) and not isinstance(value, bool)
        ]
        if len(values) == len(numbers) == 2 and numbers[0] > numbers[1]:
            yield loc, f"domain {key} is {values}, which is empty; allowed: [low, high] with low ≤ high"


def _repeated(contract: Contract) -> Iterator[Found]:
    """A list that names something twice means less than it says."""
    lists: list[tuple[Loc, Sequence[str]]] = [
        (("pairs",), contract.pairs),
        (("scope", "dtypes"), contract.scope.dtypes),
        (("scope", "hardware"), contract.scope.hardware),
    ]
    for position, clause in enumerate(contract.numerical):
        lists += [(("numerical", position, key), getattr(clause, key)) for key in ("under", "pairs")]
    for position, sampled in enumerate(contract.statistical):
        lists.append((("statistical", position, "slices"), sampled.slices))
    if contract.observability is not None:
        lists.append((("observability", "require"), contract.observability.require))
    for loc, values in lists:
        for index, value in enumerate(values):
            if value in values[:index]:
                yield (*loc, index), f"{value!r} stands twice in {loc[-1]}"


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
        if isinstance(inner, Mapping):
            yield from _by_hardware(inner, contract, (*loc, dtype))
    if missing := [dtype for dtype in scope if dtype not in limit]:
        yield loc, f"no limit for {', '.join(missing)}, which scope.dtypes names"


def _by_hardware(limit: Mapping[str, Any], contract: Contract, loc: Loc) -> Iterator[Found]:
    scope = contract.scope.hardware
    if not limit:
        yield loc, "the limit is an empty mapping; allowed: a limit for each hardware of the scope"
        return
    for cell in limit:
        if any(mark in cell for mark in "*?"):
            yield (*loc, cell), f"a limit for {cell}; allowed: one hardware by its name"
        elif not any(fnmatchcase(cell, pattern) for pattern in scope):
            yield (*loc, cell), f"a limit for {cell}, which scope.hardware {list(scope)} does not name"
    # A glob of the scope names cells that nobody can list: it is met by any that it matches.
    if missing := [pattern for pattern in scope if not any(fnmatchcase(cell, pattern) for cell in limit)]:
        yield loc, f"no limit for {', '.join(missing)}, which scope.hardware names"


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


_METRICS = sorted({
    *NUMERICAL_METRICS, *get_args(StatisticalMetric), *get_args(RuntimeMetric),
    *get_args(DerivedBudget.model_fields["quantity"].annotation),
})  # fmt: skip


def _rules(contract: Contract, document: Document) -> Iterator[Found]:
    """An unreachable rule is one that an earlier rule always takes the findings of."""
    for later, rule in enumerate(contract.policy):
        for earlier, other in enumerate(contract.policy[:later]):
            if _covers(other, rule):
                yield (
                    ("policy", later),
                    f"this rule never fires: rule {earlier + 1} (line {document.lines['policy', earlier][0]}) "
                    "matches everything that it matches",
                )
                break
    for position, rule in enumerate(contract.policy):
        if (rule.then == "reroute") != (rule.to is not None):
            yield ("policy", position), f"`to` belongs to reroute, which needs it; found then: {rule.then}"
        metric = rule.when.metric
        if metric not in (None, "*", *_METRICS):
            message = (
                f"no metric is called {metric!r}; allowed: {', '.join(_METRICS)}{hint(str(metric), _METRICS)}"
            )
            yield ("policy", position, "when", "metric"), message


def _covers(other: PolicyRule, rule: PolicyRule) -> bool:
    if other.within is not None:
        return False
    pairs = [
        (getattr(other.when, name), getattr(rule.when, name))
        for name in ("family", "metric", "slice", "severity", "verdict")
    ]
    pairs.append((other.stage or other.when.stage, rule.stage or rule.when.stage))
    return all(theirs in (None, "*") or theirs == ours for theirs, ours in pairs)
