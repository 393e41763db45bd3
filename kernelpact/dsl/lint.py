"""Lint: what can be said of a contract without running anything."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kernelpact.budgets import budget_value, largest_drift
from kernelpact.contract import Contract, NumericalClause, limit_at

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


def declared_drift(contract: Contract) -> float | None:
    """Give the largest logit drift that N admits, over dtypes and hardware; None where N limits none."""
    limits = [_largest(clause, contract) for clause in contract.numerical if clause.metric == "logit_drift"]
    return max(limits, default=None)


def _largest(clause: NumericalClause, contract: Contract) -> float:
    cells = [
        limit_at(clause.max, dtype, hardware)
        for dtype in contract.scope.dtypes
        for hardware in contract.scope.hardware
    ]
    return max((cell for cell in cells if cell is not None), default=math.inf)


def implications(contract: Contract) -> Iterator[Warned]:
    """Hold each derived budget against the declared drift; warn by how much it is missed, and what would do."""
    drift = declared_drift(contract)
    for position, budget in enumerate(contract.derived):
        line = contract.origin.line("derived", position)
        allowed = budget.min if budget.min is not None else budget.max
        needed = largest_drift(budget, contract.assumptions)
        if drift is None:
            message = (
                f"{budget.quantity} {allowed:g} is not implied by N, which limits no logit_drift: "
                f"measured only; logit_drift max {needed:.4g} would imply it"
            )
            yield Warned(contract.origin.path, line, message, None, None, allowed, needed)
            continue
        if drift <= needed:
            continue
        value = budget_value(budget, drift, contract.assumptions)
        times = f"{value / allowed:.3g} times the budget" if allowed else "and the budget is 0"
        message = (
            f"{budget.quantity} {allowed:g} is not implied by logit_drift {drift:g}, which allows {value:.4g} "
            f"({times}) at horizon {contract.assumptions.horizon}; logit_drift max {needed:.4g} would imply it"
        )
        yield Warned(contract.origin.path, line, message, drift, value, allowed, needed)
