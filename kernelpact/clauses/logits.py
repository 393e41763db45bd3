"""Promises about next-token logits: the drifts that the chain of bounds starts from."""

from __future__ import annotations

from torch import Tensor

from kernelpact.clauses.base import Clause, Sample, ShapeMismatch, clause, row_index, rows, worst_element
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
        return _worst(compare(*_logits(sample)).drift, sample)


@clause("logit_drift_rms")
class LogitDriftRms(Clause):
    """σ, the standard deviation of δ under π_inf, is within `max` for every token.

    Shapes: [T, V]. Units: nats of logit, at temperature 1. A token that one side masks is VIOLATED.
    """

    def measure(self, sample: Sample) -> tuple[float, tuple[int, ...]]:
        """Give the largest σ and its token."""
        found = compare(*_logits(sample))
        # π_inf gives no weight to what K_inf alone masks; the supports differ all the same.
        return _worst(found.drift_rms.where(found.drift.isfinite(), float("inf")), sample)


@clause("head_drift")
class HeadDrift(Clause):
    """The centred drift over the head of each token's distribution is within `max`.

    The head is the smallest set of tokens that holds 0.99 of π_inf. A token that one side masks is VIOLATED.
    Shapes: [T, V]. Units: nats of logit, at temperature 1.
    """

    def measure(self, sample: Sample) -> tuple[float, tuple[int, ...]]:
        """Give the largest drift within a head and its token."""
        train, inf = (side.double() for side in _logits(sample))
        # A token that one side masks is no tail: what K_inf masks would otherwise leave its head unseen.
        tail = ~_head(inf) & (train.isneginf() == inf.isneginf())
        infinite = float("-inf")
        drift = compare(train.masked_fill(tail, infinite), inf.masked_fill(tail, infinite)).drift
        return _worst(drift, sample)


def _logits(sample: Sample) -> tuple[Tensor, Tensor]:
    """Give K_train's and K_inf's logits as rows; a vector has none, and its drift would always be 0."""
    if sample.candidate.dim() < 2:
        raise ShapeMismatch(f"logits are [T, V], found {list(sample.candidate.shape)}")
    return rows(sample.reference), rows(sample.candidate)


def _worst(figures: Tensor, sample: Sample) -> tuple[float, tuple[int, ...]]:
    figure, (row,) = worst_element(figures)
    return figure, row_index(row, sample.candidate.shape)


def _head(logits: Tensor) -> Tensor:
    p, order = logits.softmax(-1).sort(-1, descending=True)
    inside = p.cumsum(-1) - p < _HEAD
    return inside.scatter(-1, order, inside)
