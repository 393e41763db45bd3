"""Hypothesis strategies of every operator's inputs, one operator a file; the folder is scanned.

A strategy draws a *recipe*, a small JSON value; `build` turns it into tensors, the same bits every time. Recipes
shrink to something a person can read. The content of a row never depends on the other rows.
"""

from __future__ import annotations

import importlib
import pkgutil

__all__ = ["load_operators"]


def load_operators() -> None:
    """Import every module of this folder; those that describe an operator register it."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
