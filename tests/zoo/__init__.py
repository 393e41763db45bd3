"""The zoo: kernels with exactly one fault each, and sound ones beside them, kept to test the suite itself.

One file to an operator. A specimen is a plain function that takes the operator's inputs; `fault` and `benign`
register it as a pair against the honest training kernel. What a fault's search should try first, a dtype and a
relation, stands beside it: it saves time, it does not narrow what is judged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernelpact.pairs import KernelPair, registry

Kernel = Callable[..., Any]

LIKELY: dict[str, tuple[str, str]] = {}
"""Pair name -> the dtype and relation that most likely show its fault."""

BENIGN: list[str] = []
"""Names of pairs that differ from the shipped kernels and are sound: they must not be called faulty."""


def fault(
    op: str, train: Kernel, dtype: str = "bfloat16", relation: str = "accuracy"
) -> Callable[[Kernel], Kernel]:
    """Register the decorated function as a faulty K_inf of `op`, named after the function."""

    def register(kernel: Kernel) -> Kernel:
        LIKELY[_add(op, train, kernel)] = (dtype, relation)
        return kernel

    return register


def faulty_train(
    op: str, inf: Kernel, dtype: str = "bfloat16", relation: str = "gradient"
) -> Callable[[Kernel], Kernel]:
    """Register the decorated function as a faulty K_train of `op`, named after the function."""

    def register(kernel: Kernel) -> Kernel:
        LIKELY[_add(op, kernel, inf, named_after=kernel)] = (dtype, relation)
        return kernel

    return register


def benign(op: str, train: Kernel) -> Callable[[Kernel], Kernel]:
    """Register the decorated function as a sound K_inf of `op`: `op/benign_<name>`."""

    def register(kernel: Kernel) -> Kernel:
        BENIGN.append(_add(op, train, kernel, prefix="benign_"))
        return kernel

    return register


def _add(op: str, train: Kernel, inf: Kernel, *, named_after: Kernel | None = None, prefix: str = "") -> str:
    code = (named_after or inf).__code__
    pair = KernelPair(name=f"{op}/{prefix}{code.co_name}", op=op, train=train, inf=inf, devices=("cpu",))
    registry.add(pair, f"{code.co_filename}:{code.co_firstlineno}")
    return pair.name
