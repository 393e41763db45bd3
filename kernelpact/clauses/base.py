"""What every clause shares: the sample it judges, the finding it gives, and how non-finite values count."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kernelpact.verdict import Verdict

__all__ = ["Clause", "Finding", "Sample", "ShapeMismatch", "clause", "clauses", "ulp_size", "worst_element"]


class ShapeMismatch(ValueError):
    """Reference and candidate differ in shape."""


@dataclass(frozen=True)
class Sample:
    """A candidate beside its reference.

    Shapes: all tensors equal, any rank. `candidate` has the dtype that is judged; `reference` is float64 or
    the candidate's own dtype. `scale`: the magnitude that enters each element (Σ|p||v| for attention), |reference|
    where none is given, so that cancellation is not blamed on a kernel. `eager`: what same-dtype eager
    PyTorch gives, for metrics that compare errors.
    Errors: ShapeMismatch.
    """

    candidate: Tensor
    reference: Tensor
    scale: Tensor | None = None
    eager: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("reference", "scale", "eager"):
            other = getattr(self, name)
            if other is not None and other.shape != self.candidate.shape:
                raise ShapeMismatch(
                    f"{name} has shape {list(other.shape)}, candidate {list(self.candidate.shape)}"
                )

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that is judged."""
        return self.candidate.dtype

    def values(self) -> tuple[Tensor, Tensor]:
        """Give candidate and reference in float64, with ±inf at the first value past the dtype's range.

        So a reference that rounds to inf agrees with inf, and the largest finite value is one step from it.
        """
        return _finite(self.candidate, self.dtype), _finite(self.reference, self.dtype)

    def magnitude(self) -> Tensor:
        """Give the scale of each element in float64, at least the smallest normal number of the dtype.

        An infinite reference (a masked logit) has no magnitude, so that it cannot drown its row.
        """
        sides = [self.reference] if self.scale is None else [self.reference, self.scale]
        sizes = [side.double().abs().nan_to_num(nan=0.0, posinf=0.0) for side in sides]
        largest = sizes[0] if self.scale is None else torch.maximum(*sizes)
        return _finite(largest, self.dtype).clamp_min(torch.finfo(self.dtype).tiny)

    def difference(self) -> Tensor:
        """Give |candidate − reference|: 0 where both are NaN, inf where one is."""
        candidate, reference = self.values()
        difference = (candidate - reference).abs()
        ours, theirs = candidate.isnan(), reference.isnan()
        return difference.masked_fill(ours & theirs, 0.0).masked_fill(ours ^ theirs, math.inf)


def _finite(values: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.float64:
        return values.double().clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)
    beyond = 2.0 ** math.frexp(torch.finfo(dtype).max)[1]
    return values.double().clamp(-beyond, beyond)


def ulp_size(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Give one unit in the last place of `dtype` at each value (float64, any shape); subnormals share one."""
    info = torch.finfo(dtype)
    exponent = torch.frexp(values.double().abs().clamp_min(info.tiny)).exponent - 1
    return torch.ldexp(torch.full_like(values, info.eps, dtype=torch.float64), exponent)


def worst_element(figures: Tensor) -> tuple[float, tuple[int, ...]]:
    """Give the largest figure and its index; NaN counts as inf."""
    flat = figures.nan_to_num(nan=math.inf, posinf=math.inf).flatten()
    position = int(flat.argmax())
    index = torch.unravel_index(torch.tensor(position), figures.shape) if figures.dim() else ()
    return float(flat[position]), tuple(int(i) for i in index)


def rows(values: Tensor) -> Tensor:
    """See a tensor as rows [R, last]; a vector as one row for each element."""
    return values.reshape(-1, values.shape[-1]) if values.dim() > 1 else values.reshape(-1, 1)


def row_index(row: int, shape: torch.Size) -> tuple[int, ...]:
    """Give the leading index of a row as `rows` numbers it."""
    leading = shape[:-1] if len(shape) > 1 else shape
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(row), leading)) if leading else ()


@dataclass(frozen=True)
class Finding:
    """What one clause says of one sample.

    observed, allowed: in the clause's unit. index: where, leading indices of the output; () for the whole.
    """

    verdict: Verdict
    observed: float | None
    allowed: float | None
    index: tuple[int, ...] = ()
    reason: str = ""
    candidate: str = ""
    reference: str = ""
    bound: float | None = None


@dataclass(frozen=True, kw_only=True)
class Clause(ABC):
    """A promise about one output, and the limit it is held to (`max`, in the clause's unit).

    For metrics of which more is better the limit is a floor; the same field holds it.
    """

    output: str | None = None
    max: float
    why: str
    metric: ClassVar[str] = ""
    higher_is_better: ClassVar[bool] = False

    @abstractmethod
    def measure(self, sample: Sample) -> tuple[float, tuple[int, ...]]:
        """Give the worst figure of a sample that is not empty, and its index."""

    def judge(self, sample: Sample) -> Finding:
        """Judge a sample. The limit itself is allowed. An empty sample is INCONCLUSIVE."""
        if sample.candidate.numel() == 0:
            return Finding(Verdict.INCONCLUSIVE, None, self.max, reason="the output is empty")
        observed, index = self.measure(sample)
        within = observed >= self.max if self.higher_is_better else observed <= self.max
        verdict = Verdict.HOLDS if within else Verdict.VIOLATED
        return Finding(
            verdict, observed, self.max, index, candidate=_at(sample.candidate, index),
            reference=_at(sample.reference, index),
        )  # fmt: skip


def _at(values: Tensor, index: tuple[int, ...]) -> str:
    found = values[index] if index else values
    return f"{float(found):.9g}" if found.numel() == 1 else ""


clauses: dict[str, type[Clause]] = {}


def clause(metric: str) -> Callable[[type[Clause]], type[Clause]]:
    """Register the decorated class as the clause of `metric`. Errors: ValueError if there is one already."""

    def register(cls: type[Clause]) -> type[Clause]:
        if metric in clauses:
            raise ValueError(f"metric {metric!r} already has a clause: {clauses[metric].__name__}")
        cls.metric = metric
        clauses[metric] = cls
        return cls

    return register
