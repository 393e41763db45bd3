"""Promises about single elements: absolute, relative, in units in the last place, bit for bit."""

from __future__ import annotations

import torch
from torch import Tensor

from kernelpact.clauses.base import Clause, Sample, clause, ulp_size, worst_element

__all__ = ["Bitwise", "MaxAbs", "MaxRel", "Nonfinite", "Ulp"]


@clause("max_abs")
class MaxAbs(Clause):
    """Every element of `output` lies within `max` of the reference.

    Shapes: reference and candidate equal, any rank; empty is INCONCLUSIVE. Units: the output's own.
    Errors: ShapeMismatch. NaN on one side only is VIOLATED, at that index.
    """

    def measure(self, sample: Sample) -> tuple[float, tuple[int, ...]]:
        """Give max |y − ref| and where."""
        return worst_element(sample.difference())


@clause("max_rel")
class MaxRel(Clause):
    """Every element of `output` lies within `max` times its scale (|reference|, or Σ of magnitudes).

    Shapes: as max_abs. Units: 1. The scale is never less than the dtype's smallest normal number.
    Source: Higham 2002, section 3.1 (componentwise error).
    """

    def measure(self, sample: Sample) -> tuple[float, tuple[int, ...]]:
        """Give max |y − ref| / scale and where."""
        return worst_element(sample.difference() / sample.magnitude())


@clause("ulp")
class Ulp(Clause):
    """Every element of `output` lies within `max` units in the last place of the reference.

    Fractions count: one correct rounding of the exact result is 0.5 ulp, two roundings may reach 1.
    Shapes: reference and candidate equal, any rank; empty is INCONCLUSIVE.
    Units:  ulp of the candidate's dtype, at the scale of the element.
    Errors: ShapeMismatch. NaN on one side only is VIOLATED, at that index.
    Source: Goldberg 1991, section 1.2.
    """

    def measure(self, sample: Sample) -> tuple[float, tuple[int, ...]]:
        """Give the largest distance in ulp and where."""
        return worst_element(sample.difference() / ulp_size(sample.magnitude(), sample.dtype))


@clause("bitwise")
class Bitwise(Clause):
    """`output` equals the reference bit for bit; NaN equals NaN, and −0 does not equal 0.

    Shapes: as max_abs. Units: elements that differ; `max` of them are allowed (0 in a contract).
    """

    def measure(self, sample: Sample) -> tuple[float, tuple[int, ...]]:
        """Count the elements that differ, and find the first."""
        differs = _differs(sample.candidate, sample.reference)
        _, index = worst_element(differs.double())
        return float(differs.sum()), index


@clause("nonfinite")
class Nonfinite(Clause):
    """`output` is finite wherever the reference is, in the output's own range.

    Shapes: as max_abs. Units: elements that are NaN or infinite and should not be; `max` are allowed.
    """

    def measure(self, sample: Sample) -> tuple[float, tuple[int, ...]]:
        """Count the elements at fault, and find the first."""
        faulty = ~sample.candidate.isfinite() & sample.reference.to(sample.dtype).isfinite()
        _, index = worst_element(faulty.double())
        return float(faulty.sum()), index


_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _differs(candidate: Tensor, reference: Tensor) -> Tensor:
    if candidate.dtype != reference.dtype:
        raise TypeError(f"bitwise compares equal dtypes, found {candidate.dtype} and {reference.dtype}")
    bits = _BITS[candidate.element_size()]
    differs = candidate.contiguous().view(bits) != reference.contiguous().view(bits)
    return differs & ~(candidate.isnan() & reference.isnan()) if candidate.is_floating_point() else differs
