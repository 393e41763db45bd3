"""Verdicts: what evidence says of a clause. No evidence is no pass."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

__all__ = ["Verdict"]


class Verdict(StrEnum):
    """What the evidence says.

    HOLDS: measured, and within the limit. VIOLATED: measured, and outside. INCONCLUSIVE: not enough evidence
    either way, which fails a gate. ERROR: the kernel or the measurement broke.
    """

    HOLDS = "HOLDS"
    VIOLATED = "VIOLATED"
    INCONCLUSIVE = "INCONCLUSIVE"
    ERROR = "ERROR"

    @classmethod
    def worst(cls, verdicts: Iterable[Verdict]) -> Verdict:
        """Give the verdict of the whole: the worst of its parts; of no parts, INCONCLUSIVE."""
        return max(verdicts, key=_SEVERITY.__getitem__, default=cls.INCONCLUSIVE)


_SEVERITY = {Verdict.HOLDS: 0, Verdict.INCONCLUSIVE: 1, Verdict.ERROR: 2, Verdict.VIOLATED: 3}
