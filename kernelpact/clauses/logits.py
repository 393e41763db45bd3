"""Promises about next-token logits: the drifts that the chain of bounds starts from."""

from __future__ import annotations

from torch import Tensor

from kernelpact.clauses.base import Clause, Sample, clause, rows, worst_element
from kernelpact.divergence import compare

__all__ = ["HeadDrift", "LogitDrift", "LogitDriftRms"]

_HEAD = 0.99


@clause("logit_drift")
class LogitDrift(Clause):
    """The centred logit drift ε = ½(max δ − min δ) of every token is within `max`.

    Shapes: [T, V]. Units: nats of logit, at temperature 1. A token that one side masks is VIOLATED.
    Source: arXiv 2606.07581; DESIGN section 4.
    """

    def measure(self, sample: Sample) -> tuple[float, tuple[int, ...]]:
        """Give the largest drift and its token; the reference is K_train's side."""
        return worst_element(compare(rows(sample.reference), rows(sample.candidate)).drift)


@clause("logit_drift_rms")
class LogitDriftRms(Clause):
    """σ, the standard deviation of δ under π_inf, is within `max` for every token.

    Shapes: [T, V]. Units: nats of logit, at temperature 1.
    """

    def measure(self, sample: Sample) -> tuple[float, tuple[int, ...]]:
        """Give the largest σ and its token."""
        return worst_element(compare(rows(sample.reference), rows(sample.candidate)).drift_rms)


@clause("head_drift")
class HeadDrift(Clause):
    """The centred drift over the head of each token's distribution is within `max`.

    The head is the smallest set of tokens that holds 0.99 of π_inf.
    Shapes: [T, V]. Units: nats of logit, at temperature 1.
    """

    def measure(self, sample: Sample) -> tuple[float, tuple[int, ...]]:
        """Give the largest drift within a head and its token."""
        train, inf = rows(sample.reference).double(), rows(sample.candidate).double()
        tail = ~_head(inf)
        infinite = float("-inf")
        return worst_element(
            compare(train.masked_fill(tail, infinite), inf.masked_fill(tail, infinite)).drift
        )


def _head(logits: Tensor) -> Tensor:
    p, order = logits.softmax(-1).sort(-1, descending=True)
    inside = p.cumsum(-1) - p < _HEAD
    return inside.scatter(-1, order, inside)
