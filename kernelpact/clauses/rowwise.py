"""Promises about rows: a fault in one row must not hide in the average of the others.

A row is the last axis of the output (a head's vector, a token's logits); of a vector, each element.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernelpact.clauses.base import Clause, Sample, clause, row_index, rows, ulp_size, worst_element

__all__ = ["Cosine", "ErrorRatio", "RelRms", "SqnrDb"]


def _rms(values: Tensor) -> Tensor:
    return rows(values).square().mean(-1).sqrt()


def _worst(figures: Tensor, sample: Sample) -> tuple[float, tuple[int, ...]]:
    figure, (row,) = worst_element(figures)
    return figure, row_index(row, sample.candidate.shape)


@clause("rel_rms")
class RelRms(Clause):
    """In every row of `output`, the rms of the error is within `max` times the rms of the scale.

    Shapes: reference and candidate equal, any rank; empty is INCONCLUSIVE. Units: 1.
    Errors: ShapeMismatch. NaN on one side only is VIOLATED, at that row.
    """

    def measure(self, sample: Sample) -> tuple[float, tuple[int, ...]]:
        """Give the largest ratio and its row."""
        return _worst(_rms(sample.difference()) / _rms(sample.magnitude()), sample)


@clause("error_ratio")
class ErrorRatio(Clause):
    """In every row, the error is within `max` times what same-dtype eager PyTorch loses there.

    Both errors are rms against the reference; the eager one counts as at least the noise of one rounding,
    1/√12 ulp rms, so that a lucky exact row does not make every other kernel look bad.
    Shapes: as rel_rms; `eager` must be given. Units: 1. Errors: ValueError without `eager`.
    """

    def measure(self, sample: Sample) -> tuple[float, tuple[int, ...]]:
        """Give the largest ratio and its row."""
        if sample.eager is None:
            raise ValueError("error_ratio needs what eager PyTorch gives: sample.eager is None")
        eager = Sample(sample.eager, sample.reference, sample.scale)
        floor = _rms(ulp_size(sample.magnitude(), sample.dtype)) / 12**0.5
        return _worst(_rms(sample.difference()) / torch.maximum(_rms(eager.difference()), floor), sample)


@clause("cosine")
class Cosine(Clause):
    """In every row of `output`, the cosine with the reference is at least the limit.

    Blind to a wrong scale: promise something else beside it. Rows of zeros on both sides agree.
    Shapes: as rel_rms. Units: 1. Errors: ShapeMismatch.
    """

    higher_is_better = True

    def measure(self, sample: Sample) -> tuple[float, tuple[int, ...]]:
        """Give the smallest cosine and its row."""
        candidate, reference = (rows(side) for side in sample.values())
        norms = candidate.norm(dim=-1) * reference.norm(dim=-1)
        cosine = (candidate * reference).sum(-1) / norms.where(norms > 0, 1.0)
        cosine = cosine.where((norms > 0) | norms.isnan(), (_rms(sample.difference()) == 0).double())
        figure, index = _worst(-cosine.nan_to_num(nan=-torch.inf), sample)
        return -figure, index


@clause("sqnr_db")
class SqnrDb(Clause):
    """In every row of `output`, signal to quantisation noise is at least the limit.

    Shapes: as rel_rms. Units: dB, 10 log10(Σ ref² / Σ error²); +inf for an exact row. Errors: ShapeMismatch.
    """

    higher_is_better = True

    def measure(self, sample: Sample) -> tuple[float, tuple[int, ...]]:
        """Give the smallest ratio and its row."""
        noise, signal = _rms(sample.difference()), _rms(sample.values()[1])
        ratio = noise / signal.where(signal > 0, 1.0)
        figure, index = _worst(ratio.where((signal > 0) | (noise == 0), torch.inf), sample)
        return float(-20 * torch.tensor(figure).log10()), index
