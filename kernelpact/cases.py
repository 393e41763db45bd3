"""Cases: one contract × pair × dtype × device × relation, and what one input says of its clauses.

`plan` decides what can be judged here, and says of everything else why not. No search happens here.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kernelpact import derived, relations
from kernelpact.clauses import Finding, clauses
from kernelpact.contract import Contract, DerivedBudget, NumericalClause
from kernelpact.evidence import Result
from kernelpact.operators import Operator, Oracle, Recipe, operators, oracles
from kernelpact.pairs import KernelPair
from kernelpact.trial import KernelError, Trial
from kernelpact.verdict import Verdict

__all__ = ["Case", "Cell", "PlanError", "Promise", "merge_domain", "plan", "unproven", "within"]

SEARCHED = ("parity", "accuracy", "invariance", "gradient", "derived")

NOT_SEARCHED = {
    "policy": "the host policy that carries a kernel's drift to logits is not part of this release",
    "statistical": "judged on sampled tokens or recorded rollouts; this run has none",
    "runtime": "judged by benchmarks within one run; this run measures none",
}


class PlanError(ValueError):
    """Contracts and pairs do not fit each other; the message names both."""


@dataclass(frozen=True)
class Cell:
    """The machine at hand. device: cpu or cuda. hardware: cpu, or the compute capability, e.g. sm_90."""

    device: str
    hardware: str


@dataclass(frozen=True)
class Promise:
    """One clause of a case: its label, its terms, its limit here, its place in the contract's file."""

    label: str
    family: str
    terms: Any
    limit: float | None
    line: int

    @property
    def higher_is_better(self) -> bool:
        """Whether the limit is a floor."""
        if isinstance(self.terms, NumericalClause):
            return clauses[self.terms.metric].higher_is_better
        return isinstance(self.terms, DerivedBudget) and self.terms.min is not None

    def result(self, verdict: Verdict, **facts: Any) -> Result:
        """Give the result of this promise."""
        metric: str = getattr(self.terms, "metric", "") or self.terms.quantity
        return Result(
            self.label, self.family, metric, self.terms.severity, verdict, self.terms.why or "", self.line,
            higher_is_better=self.higher_is_better, **{"allowed": self.limit, **facts},
        )  # fmt: skip


@dataclass(frozen=True)
class Case:
    """What one test item judges. obstacle: why it cannot be judged here; empty where it can."""

    contract: Contract
    pair: KernelPair
    dtype: str
    cell: Cell
    relation: str
    promises: tuple[Promise, ...]
    obstacle: str = ""

    @cached_property
    def id(self) -> str:
        """Name the case: `rms-norm-rms_norm/triton-bfloat16-cpu-parity`."""
        return "-".join((self.contract.contract, self.pair.name, self.dtype, self.cell.device, self.relation))

    @property
    def operator(self) -> Operator:
        """The pair's operator."""
        return operators[self.pair.op]

    @property
    def oracle(self) -> Oracle:
        """The operator's oracle."""
        return oracles[self.pair.op]

    @property
    def domain(self) -> dict[str, Any]:
        """What contract and pair both admit. Errors: PlanError where nothing is left."""
        where = f"{self.contract.origin.path}: {self.pair.name}"
        return merge_domain(self.contract.scope.domain, self.pair.domain, where)

    def strategy(self) -> Any:
        """Give the strategy of recipes, narrowed to the domain."""
        return self.operator.strategy(self.dtype, self.domain, dict(self.pair.edges))

    def assess(self, recipe: Recipe, wanted: Iterable[int]) -> dict[int, tuple[str, Finding]]:
        """Judge the promises `wanted` on one input; a promise on which the input says nothing is left out.

        A kernel that breaks its interface is an ERROR finding of every promise that it was run for.
        """
        trial = Trial(self.pair, self.operator, self.oracle, recipe, self.dtype, self.cell.device)
        found: dict[int, tuple[str, Finding]] = {}
        for position in wanted:
            try:
                verdict = self._judge(self.promises[position], trial)
            except KernelError as fault:
                verdict = (str(fault).split(" ", 1)[0], relations.as_error(str(fault)))
            if verdict is not None:
                found[position] = verdict
        return found

    def _judge(self, promise: Promise, trial: Trial) -> tuple[str, Finding] | None:
        if isinstance(promise.terms, DerivedBudget):
            return derived.judge(promise.terms, promise.limit or 0.0, trial, self.contract.assumptions)
        if promise.limit is None:
            return None
        found = relations.findings(promise.terms, trial, promise.limit)
        return relations.worst(found, promise.higher_is_better)


def merge_domain(*sources: Any) -> dict[str, Any]:
    """Narrow domains to what all admit: [low, high] ranges intersect, lists of values keep the common ones.

    The last argument says where, for errors. Errors: PlanError where nothing is left.
    """
    *domains, where = sources
    merged: dict[str, Any] = {}
    for domain in domains:
        for key, value in domain.items():
            merged[key] = _narrow(merged[key], value, f"{where}: domain {key}") if key in merged else value
    return merged


def within(domain: Mapping[str, Any], wider: Mapping[str, Any]) -> bool:
    """Whether every input of `domain` lies in `wider`."""
    try:
        merged = merge_domain(domain, wider, "")
    except PlanError:
        return False
    plain = [{key: list(value) for key, value in one.items()} for one in (merged, domain)]
    return plain[0] == plain[1]


def _narrow(ours: Any, theirs: Any, where: str) -> Any:
    if _is_range(ours) and _is_range(theirs):
        low, high = max(ours[0], theirs[0]), min(ours[1], theirs[1])
        common: list[Any] = [low, high] if low <= high else []
    elif _is_range(ours) or _is_range(theirs):
        (low, high), values = (ours, theirs) if _is_range(ours) else (theirs, ours)
        common = [value for value in values if value is not None and low <= value <= high]
    else:
        common = [value for value in ours if value in theirs]
    if not common:
        raise PlanError(f"{where}: nothing is in both {ours!r} and {theirs!r}")
    return common


def _is_range(value: Any) -> bool:
    return len(value) == 2 and all(type(end) in (int, float) for end in value) and value[0] <= value[1]


def plan(
    contracts: Sequence[Contract],
    pairs: Iterable[KernelPair],
    cell: Cell,
    obstacles: Callable[[KernelPair], str] = lambda pair: "",
) -> list[Case]:
    """Lay out every case of the contracts, judged or not.

    obstacles: what stands in the way of a pair here (a substrate that fails), "" for nothing.
    Errors: PlanError for a contract without a pair, an unknown operator, an operator without an oracle,
    and a contract that shares no dtype with a pair.
    """
    known = list(pairs)
    cases: list[Case] = []
    for contract in contracts:
        covered = [pair for pair in known if contract.covers(pair.name)]
        if not covered:
            names = ", ".join(pair.name for pair in known) or "none"
            raise PlanError(
                f"{contract.origin.path}:{contract.origin.line('pairs')}: contract {contract.contract!r} names "
                f"pairs {list(contract.pairs)}, but no registered pair matches; registered: {names}"
            )
        for pair in covered:
            _check_operator(pair)
            _check_terms(contract, operators[pair.op])
            cases.extend(_cases_of(contract, pair, cell, _obstacle(contract, pair, cell) or obstacles(pair)))
    return cases


def unproven(contracts: Iterable[Contract], cell: Cell) -> list[str]:
    """List the hardware cells that contracts speak of and this run does not reach."""
    return [
        f"{contract.contract} · {hardware}"
        for contract in contracts
        for hardware in contract.scope.hardware
        if not fnmatch.fnmatchcase(cell.hardware, hardware)
    ]


def _check_operator(pair: KernelPair) -> None:
    for what, known in (("operator", operators), ("oracle for operator", oracles)):
        if pair.op not in known:
            raise PlanError(f"pair {pair.name!r}: no {what} {pair.op!r}; known: {', '.join(sorted(known))}")


def _check_terms(contract: Contract, operator: Operator) -> None:
    """Hold every output and transformation that a contract names against what the operator has."""
    for position, clause in enumerate(contract.numerical):
        where = f"{contract.origin.path}:{contract.origin.line('numerical', position)}"
        if clause.metric not in clauses:
            raise PlanError(
                f"{where}: no clause measures {clause.metric!r}; known: {', '.join(sorted(clauses))}"
            )
        if clause.relation == "gradient":
            asked, known, what = [clause.output], operator.differentiable, "is differentiable in"
        else:
            asked, known, what = [clause.output], operator.outputs, "has the outputs"
        _check_known(asked, known, f"{where}: operator {operator.name} {what}")
        _check_known(
            clause.under,
            tuple(operator.variants),
            f"{where}: operator {operator.name} can be presented under",
        )


def _check_known(asked: Iterable[str | None], known: Sequence[str], where: str) -> None:
    for name in asked:
        if name is not None and name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise PlanError(f"{where} {', '.join(known) or 'none'}; found {name!r}{hint}")


def _obstacle(contract: Contract, pair: KernelPair, cell: Cell) -> str:
    if missing := pair.missing():
        return f"needs {', '.join(missing)}, which is not installed here"
    if cell.device not in pair.devices:
        return f"runs on {', '.join(pair.devices)}, and this run is on {cell.device}"
    if not any(fnmatch.fnmatchcase(cell.hardware, hardware) for hardware in contract.scope.hardware):
        return f"the contract speaks of {', '.join(contract.scope.hardware)}; this machine is {cell.hardware}"
    return ""


def _cases_of(contract: Contract, pair: KernelPair, cell: Cell, obstacle: str) -> Iterator[Case]:
    dtypes = [dtype for dtype in contract.scope.dtypes if dtype in pair.dtypes]
    if not dtypes:
        raise PlanError(
            f"{contract.origin.path}:{contract.origin.line('scope', 'dtypes')}: contract {contract.contract!r} is "
            f"about {list(contract.scope.dtypes)}, pair {pair.name!r} about {list(pair.dtypes)}: none in common"
        )
    for dtype in dtypes:
        groups: dict[str, list[Promise]] = {}
        for relation, promise in _promises(contract, pair, dtype, cell):
            groups.setdefault(relation, []).append(promise)
        for relation, promises in groups.items():
            why_not = obstacle or NOT_SEARCHED.get(relation, "")
            if relation == "derived" and operators[pair.op].logits is None:
                why_not = why_not or f"operator {pair.op} gives no next-token logits"
            yield Case(contract, pair, dtype, cell, relation, tuple(promises), why_not)


def _promises(contract: Contract, pair: KernelPair, dtype: str, cell: Cell) -> Iterator[tuple[str, Promise]]:
    line = contract.origin.line
    for position, clause in enumerate(contract.numerical):
        if clause.pairs and not any(fnmatch.fnmatchcase(pair.name, pattern) for pattern in clause.pairs):
            continue
        limit = relations.limit_of(clause, dtype, cell.hardware)
        yield (
            clause.relation,
            Promise(clause.label(), "numerical", clause, limit, line("numerical", position)),
        )
    for position, budget in enumerate(contract.derived):
        limit = budget.max if budget.max is not None else budget.min
        label = f"derived.{derived.label(budget)}"
        yield "derived", Promise(label, "derived", budget, limit, line("derived", position))
    families: Mapping[str, Sequence[Any]] = {"statistical": contract.statistical, "runtime": contract.runtime}
    for family, terms in families.items():
        for position, term in enumerate(terms):
            label = f"{family}.{term.metric}.{term.statistic}"
            yield family, Promise(label, family, term, None, line(family, position))
