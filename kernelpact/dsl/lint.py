"""Lint: what can be said of a contract without running anything."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kernelpact.budgets import budget_value, largest_drift, vacuous
from kernelpact.contract import Contract, DerivedBudget, NumericalClause, limit_at

__all__ = ["Warned", "declared_drift", "implications"]


@dataclass(frozen=True)
class Warned:
    """A budget that the declared drift does not imply, or cannot be held against.

    line: of the budget. drift: declared, nats; None where none is. value: what it implies. allowed: the budget.
    needed: the largest drift that implies the budget.
    """

    path: str
    line: int
    message: str
    drift: float | None = None
    value: float | None = None
    allowed: float | None = None
    needed: float | None = None

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: warning: {self.message}"


def declared_drift(contract: Contract, metric: str = "logit_drift") -> float | None:
    """Give the largest drift between the pair that N admits, over dtypes and hardware; None where N limits none.

    metric: logit_drift (ε), or logit_drift_rms (σ). Only parity and policy set K_inf beside K_train, and a clause
    for some of the pairs says nothing of the others.
    """
    limits = [
        _largest(clause, contract)
        for clause in contract.numerical
        if clause.metric == metric and clause.relation in ("parity", "policy") and not clause.pairs
    ]
    return max(limits, default=None)


def _largest(clause: NumericalClause, contract: Contract) -> float:
    cells = [
        limit_at(clause.max, dtype, hardware)
        for dtype in contract.scope.dtypes
        for hardware in contract.scope.hardware
    ]
    return max((math.inf if cell is None else cell for cell in cells), default=math.inf)


def implications(contract: Contract) -> Iterator[Warned]:
    """Hold each derived budget against the declared drift; warn by how much it is missed, and what would do."""
    drift, rms = declared_drift(contract), declared_drift(contract, "logit_drift_rms")
    for position, budget in enumerate(contract.derived):
        line = contract.origin.line("derived", position)
        allowed = _limit(budget)
        needed = largest_drift(budget, contract.assumptions)
        if math.isinf(needed):
            continue  # every drift is within it
        if drift is None:
            message = (
                f"{budget.quantity} {allowed:g} is not implied by N, which limits no logit_drift of every pair: "
                f"measured only; logit_drift max {needed:.4g} would imply it"
            )
            yield Warned(contract.origin.path, line, message, None, None, allowed, needed)
            continue
        if drift <= needed:
            continue
        value = budget_value(budget, drift, contract.assumptions, rms=rms)
        if _within(budget, value):
            continue  # the variance-aware chain does what ε alone does not
        times = f"{value / allowed:.3g} times the budget" if allowed else "and the budget is 0"
        said = " and is vacuous" if vacuous(budget, value, contract.assumptions) else ""
        also = "" if rms is None else f" with logit_drift_rms {rms:g}"
        message = (
            f"{budget.quantity} {allowed:g} is not implied by logit_drift {drift:g}{also}, which allows {value:.4g} "
            f"({times}){said} at horizon {contract.assumptions.horizon}; logit_drift max {needed:.4g} would imply it"
        )
        yield Warned(contract.origin.path, line, message, drift, value, allowed, needed)


def _limit(budget: DerivedBudget) -> float:
    """Give the budget's figure; the model sees to it that there is exactly one."""
    return next(limit for limit in (budget.min, budget.max) if limit is not None)


def _within(budget: DerivedBudget, value: float) -> bool:
    return value >= _limit(budget) if budget.min is not None else value <= _limit(budget)
