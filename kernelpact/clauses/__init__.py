"""Clauses: what is promised of a kernel's output, one promise to a module. The folder is scanned."""

from __future__ import annotations

import importlib
import pkgutil

from kernelpact.clauses.base import Clause, Finding, Sample, clauses

__all__ = ["Clause", "Finding", "Sample", "clauses", "make"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def make(metric: str, *, output: str | None, limit: float, why: str) -> Clause:
    """Build the clause of a metric. Errors: KeyError for a metric that no module defines."""
    return clauses[metric](output=output, max=limit, why=why)
