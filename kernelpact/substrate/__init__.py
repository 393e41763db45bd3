"""What Triton kernels run on here: a CUDA device, or Triton's CPU interpreter with its faults corrected.

`prepare()` decides, before Triton is imported, and says what it decided; the description belongs in every
evidence record. `conformance` then measures whether the substrate computes what it should.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import sys
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Substrate", "interpreting", "prepare", "uninstall"]

_TRUE = frozenset({"1", "true", "yes", "on", "y"})  # what Triton takes for true in an environment variable


@dataclass(frozen=True)
class Substrate:
    """What Triton kernels run on, for evidence records.

    kind: ``cuda``, ``triton-interpreter``, or ``none`` where no Triton kernel can run.
    corrections: the corrections of the interpreter that are installed, by name.
    notes: what a reader of the evidence should know, e.g. that no correction fits this Triton release.
    problem: why Triton kernels cannot be judged here; empty where they can.
    """

    kind: Literal["cuda", "triton-interpreter", "none"]
    triton: str = ""
    torch: str = ""
    numpy: str = ""
    device: str = "cpu"
    corrections: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Give the fields as plain JSON values."""
        return asdict(self) | {"corrections": list(self.corrections), "notes": list(self.notes)}


_prepared: Substrate | None = None
_installation: Any = None


def interpreting() -> bool:
    """Whether Triton kernels are interpreted on the CPU (TRITON_INTERPRET is true)."""
    return os.environ.get("TRITON_INTERPRET", "").strip().lower() in _TRUE


def prepare() -> Substrate:
    """Decide what Triton kernels run on, correct the interpreter if it is that, and describe the result.

    Call it before the first import of Triton: `triton.jit` decides at decoration. Without a CUDA device, and
    with TRITON_INTERPRET not set, sets TRITON_INTERPRET=1. With a device and TRITON_INTERPRET not set, or
    without Triton, changes nothing. A second call returns the first one's answer.
    """
    global _prepared
    if _prepared is None:
        _prepared = _prepare()
    return _prepared


def uninstall() -> None:
    """Put Triton's interpreter back and forget what `prepare` decided. The environment is left alone."""
    global _prepared, _installation
    if _installation is not None:
        _installation.uninstall()
    _prepared = _installation = None


def _prepare() -> Substrate:
    absent = " and ".join(name for name in ("triton", "torch") if not _version(name))
    if absent:
        return _describe("none", problem=f"{absent} is not installed: no Triton kernel can run here")
    device = _cuda_device()
    if device and not interpreting():
        return _describe("cuda", device=device)
    if not device and "TRITON_INTERPRET" not in os.environ:
        os.environ["TRITON_INTERPRET"] = "1"
    if not interpreting():
        value = os.environ["TRITON_INTERPRET"]
        return _describe("none", problem=f"no CUDA device, and TRITON_INTERPRET={value} forbids interpreting")
    return _interpret()


def _interpret() -> Substrate:
    global _installation
    if not _imported_in_interpret_mode():
        problem = (
            "triton was imported before TRITON_INTERPRET=1 was set, so its own functions wait for a device: "
            "call kernelpact.substrate.prepare() before anything imports triton, or set TRITON_INTERPRET=1"
        )
        return _describe("triton-interpreter", problem=problem)
    from kernelpact.substrate import interpreter  # here, because it is needed in this case alone

    _installation = interpreter.install()
    notes: tuple[str, ...] = ()
    if not _installation.names:
        known = ", ".join(f"{major}.{minor}" for major, minor in interpreter.SUPPORTED)
        notes = (f"triton {_version('triton')} is none of {known}: its interpreter runs uncorrected",)
    return _describe("triton-interpreter", corrections=_installation.names, notes=notes)


def _describe(kind: Literal["cuda", "triton-interpreter", "none"], **facts: Any) -> Substrate:
    return Substrate(kind, _version("triton"), _version("torch"), _version("numpy"), **facts)


def _imported_in_interpret_mode() -> bool:
    importlib.import_module("triton.language")
    standard = sys.modules["triton.language.standard"]
    return type(standard.max).__name__ == "InterpretedFunction"


def _version(name: str) -> str:
    if importlib.util.find_spec(name) is None:
        return ""
    module = sys.modules.get(name)
    version = getattr(module, "__version__", None)
    return str(version) if version else importlib.metadata.version(name)


def _cuda_device() -> str:
    """Name of the current CUDA device, or nothing."""
    torch = importlib.import_module("torch")
    return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else ""
