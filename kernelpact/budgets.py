"""Budgets: what a contract's derived budget says of a logit drift, under the contract's assumptions."""

from __future__ import annotations

from typing import Any

from kernelpact import bounds
from kernelpact.contract import Assumptions, DerivedBudget

__all__ = ["budget_value", "largest_drift", "vacuous"]

_VACUOUS = 0.999

_BOUND = {"tv": "total_variation", "sequence_tv": "sequence_total_variation"}


def budget_value(
    budget: DerivedBudget, drift: float, assumptions: Assumptions, *, rms: float | None = None
) -> float:
    """Give the bound on the budgeted quantity at a logit drift ε (nats, before the temperature).

    rms: σ, the standard deviation of the drift under π_inf at temperature 1. Where it is known the variance-aware
    chain may give less, for quantities that rest on TV; at another temperature π_inf, and so σ, is another.
    """
    name = _BOUND.get(budget.quantity, budget.quantity)
    value: float = getattr(bounds, name)(drift / assumptions.temperature, **_options(budget, assumptions))
    scale = _of_tv(budget, assumptions)
    if rms is None or scale is None or assumptions.temperature != 1:
        return value
    horizon = 1 if budget.quantity in ("tv", "gradient_bias") else assumptions.horizon
    tv = bounds.tightest_total_variation(drift, sigma=rms, largest=2 * drift, horizon=horizon)
    return min(value, scale * tv.value)


def vacuous(budget: DerivedBudget, value: float, assumptions: Assumptions) -> bool:
    """Whether a bound says nothing that is not known without it: TV, or an ESS, at the end of its range."""
    if budget.quantity in ("ess", "sequence_ess"):
        return value <= 1 - _VACUOUS
    scale = _of_tv(budget, assumptions)
    return scale is not None and value >= _VACUOUS * scale


def _of_tv(budget: DerivedBudget, assumptions: Assumptions) -> float | None:
    """Give the factor of a quantity that is a multiple of TV; None for others."""
    if budget.quantity in ("tv", "sequence_tv"):
        return 1.0
    if budget.quantity == "reward_drift":
        return assumptions.reward[1] - assumptions.reward[0]
    if budget.estimator == "uncorrected":
        return 2 * assumptions.advantage_max * assumptions.score_norm_max
    return None


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
    if budget.quantity == "clip_budget":
        range_ = {
            "low": 1 - budget.floor if budget.floor else None,
            "high": budget.cap - 1 if budget.cap else None,
        }
        return {name: width for name, width in range_.items() if width is not None}
    return {}
