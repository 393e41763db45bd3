"""Budgets: what a contract's derived budget says of a logit drift, under the contract's assumptions."""

from __future__ import annotations

from typing import Any

from kernelpact import bounds
from kernelpact.contract import Assumptions, DerivedBudget

__all__ = ["budget_value", "largest_drift"]

_BOUND = {"tv": "total_variation", "sequence_tv": "sequence_total_variation"}


def budget_value(budget: DerivedBudget, drift: float, assumptions: Assumptions) -> float:
    """Give the bound on the budgeted quantity at a logit drift ε (nats, before the temperature)."""
    name = _BOUND.get(budget.quantity, budget.quantity)
    value: float = getattr(bounds, name)(drift / assumptions.temperature, **_options(budget, assumptions))
    return value


def largest_drift(budget: DerivedBudget, assumptions: Assumptions) -> float:
    """Give the largest logit drift ε (nats, before the temperature) that implies the budget."""
    limit = budget.min if budget.min is not None else budget.max
    options = _options(budget, assumptions)
    name = _BOUND.get(budget.quantity, budget.quantity)
    found = bounds.max_drift(quantity=name, budget=limit or 0.0, **options)
    return found * assumptions.temperature


def _options(budget: DerivedBudget, assumptions: Assumptions) -> dict[str, Any]:
    if budget.quantity in ("sequence_tv", "sequence_ess"):
        return {"horizon": assumptions.horizon}
    if budget.quantity == "reward_drift":
        return {"horizon": assumptions.horizon, "reward": assumptions.reward}
    if budget.quantity == "gradient_bias":
        return {
            "estimator": budget.estimator,
            "cap": budget.cap,
            "floor": budget.floor,
            "advantage_max": assumptions.advantage_max,
            "score_norm_max": assumptions.score_norm_max,
        }
    return {}
