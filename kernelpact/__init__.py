"""Contracts for training/inference kernel pairs.

`import kernelpact` is cheap and needs no torch; each public name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from kernelpact import bounds, divergence
    from kernelpact.dsl import load_contract
    from kernelpact.pairs import KernelPair, register_pair
    from kernelpact.verdict import Verdict

__all__ = ["KernelPair", "Verdict", "__version__", "bounds", "divergence", "load_contract", "register_pair"]

_HOMES = {
    "KernelPair": "kernelpact.pairs",
    "register_pair": "kernelpact.pairs",
    "load_contract": "kernelpact.dsl",
    "Verdict": "kernelpact.verdict",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # late: it reads the installed metadata

        return version("kernelpact")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in ("bounds", "divergence"):
        return importlib.import_module(f"kernelpact.{name}")
    raise AttributeError(f"module 'kernelpact' has no attribute {name!r}: it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
