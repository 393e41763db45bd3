"""Derived budgets on measured logits: the chain of bounds, applied to what a kernel pair really does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from kernelpact import bounds, divergence
from kernelpact.budgets import budget_value
from kernelpact.clauses import Finding
from kernelpact.contract import Assumptions, DerivedBudget
from kernelpact.trial import Trial
from kernelpact.verdict import Verdict

__all__ = ["Measured", "judge", "label", "measure"]

# Of each quantity that one token has: the field of `compare`, and the bound at that token's drift.
_PER_TOKEN = {
    "tv": ("tv", bounds.total_variation),
    "kl": ("kl", bounds.kl),
    "chi2": ("chi2", bounds.chi2),
    "importance_ratio": ("max_dlogp", bounds.importance_ratio),
    "ess": ("ess", bounds.ess),
}
_SLACK = 1e-5  # relative: what `compare` promises of its own figures
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Measured:
    """A budgeted quantity on one input: its worst figure, the token where, and the bound at the same drift.

    For quantities of a whole response the figure is the bound at the worst measured drift, since one input
    holds no response: `bound` equals `observed`.
    """

    observed: float
    bound: float
    token: int
    drift: float


def label(budget: DerivedBudget) -> str:
    """Name a budget for people: `gradient_bias(tis)`."""
    return f"{budget.quantity}({budget.estimator})" if budget.estimator else budget.quantity


def measure(budget: DerivedBudget, figures: Mapping[str, Tensor], assumptions: Assumptions) -> Measured:
    """Measure a budgeted quantity. figures: what `divergence.compare` gives, tensors [T], T ≥ 1."""
    drift = figures["drift"]
    if budget.quantity not in _PER_TOKEN:
        token = int(drift.nan_to_num(nan=float("inf")).argmax())
        worst = float(drift[token])
        unscaled = worst * assumptions.temperature  # `compare` has divided by it already
        value = budget_value(budget, unscaled, assumptions)
        return Measured(value, value, token, worst)
    name, bound = _PER_TOKEN[budget.quantity]
    observed = figures[name]
    badness = (-observed if budget.quantity == "ess" else observed).nan_to_num(nan=float("inf"))
    token = int(badness.argmax())
    return Measured(float(observed[token]), float(bound(float(drift[token]))), token, float(drift[token]))


def judge(
    budget: DerivedBudget, limit: float, trial: Trial, assumptions: Assumptions
) -> tuple[str, Finding] | None:
    """Judge a budget on one trial; None where the trial has no token.

    A measured figure outside its own bound is an ERROR: the bounds are theorems, so the measurement is at fault.
    """
    logits = trial.operator.logits
    if logits is None:
        return None
    train, inf = logits(trial.train, trial.inputs), logits(trial.inf, trial.inputs)
    if not len(train):
        return None
    figures = divergence.compare(train, inf, temperature=assumptions.temperature)
    found = measure(budget, figures, assumptions)
    floor = budget.min is not None
    within = found.observed >= limit if floor else found.observed <= limit
    verdict = Verdict.HOLDS if within else Verdict.VIOLATED
    finding = Finding(verdict, found.observed, limit, (found.token,), bound=found.bound)
    if not _sound(found, floor):
        reason = (
            f"{budget.quantity} {found.observed:.9g} is outside its bound {found.bound:.9g} "
            f"at drift {found.drift:.9g}"
        )
        finding = replace(finding, verdict=Verdict.ERROR, reason=reason)
    return "logits", finding


def _sound(found: Measured, floor: bool) -> bool:
    if floor:
        return found.observed >= found.bound * (1 - _SLACK) - _ROUNDING
    return not found.observed > found.bound * (1 + _SLACK) + _ROUNDING
