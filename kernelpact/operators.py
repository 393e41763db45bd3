"""Operators: what a family of kernels computes, apart from any kernel.

The suite registers one `Operator` for each file in `strategies/`, and one oracle for each file in
`kernel_pairs/oracles/`; the engine finds both here by the operator's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "Operator",
    "OperatorError",
    "Recipe",
    "Variant",
    "operators",
    "oracle",
    "oracles",
    "register_operator",
]

Recipe = dict[str, Any]
"""A compact, JSON-serialisable description of one input: shapes, layout, kinds of rows, seed."""

Inputs = dict[str, Any]
"""Keyword arguments of a kernel: tensors and plain numbers."""


class OperatorError(ValueError):
    """An operator or an oracle is unknown, or registered twice."""


@dataclass(frozen=True)
class Variant:
    """The same rows, presented differently, and how to find them again.

    inputs: what the kernel is called with. restore: maps the variant's outputs {name: tensor} to tensors that
    must equal the outputs of the original inputs on `rows` (restored from the original by `expect`).
    """

    inputs: Inputs
    restore: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    expect: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda outputs: outputs
    note: str = ""


@dataclass(frozen=True)
class Operator:
    """One operator: its inputs, its outputs, and the ways in which its rows may be presented.

    name: as in `KernelPair.op`.
    outputs: output names; the first is what a bare tensor is taken for.
    strategy: (dtype, domain, edges) -> a Hypothesis strategy of recipes. Opaque to the engine.
    build: (recipe, dtype, device) -> inputs. Deterministic in the recipe.
    shapes: inputs -> {output: shape}, what a kernel must return.
    dtypes: (inputs, dtype) -> {output: torch.dtype}, likewise.
    variants: transformation name -> (inputs, recipe) -> Variant, or None where the input admits none.
    differentiable: names of the inputs that a gradient is taken with respect to.
    logits: maps outputs of one side (and the inputs) to next-token logits [T, V], where the operator
        yields a distribution; None where it does not.
    describe: recipe -> one line that a person can read.
    """

    name: str
    outputs: tuple[str, ...]
    strategy: Callable[..., Any]
    build: Callable[[Recipe, str, str], Inputs]
    shapes: Callable[[Inputs], Mapping[str, tuple[int, ...]]]
    dtypes: Callable[[Inputs, str], Mapping[str, Any]]
    variants: Mapping[str, Callable[[Inputs, Recipe], Variant | None]] = field(default_factory=dict)
    differentiable: tuple[str, ...] = ()
    logits: Callable[[Mapping[str, Any], Inputs], Any] | None = None
    describe: Callable[[Recipe], str] = repr


Oracle = Callable[..., Mapping[str, Any]]
"""Called with the inputs; gives {output: value} in float64, and {output + "_scale": magnitude} where the sum
of magnitudes that enters an output exceeds the output itself, so that cancellation is not blamed on a kernel."""

operators: dict[str, Operator] = {}
oracles: dict[str, Oracle] = {}


def register_operator(operator: Operator) -> Operator:
    """Register an operator. Errors: OperatorError if the name is taken."""
    if operator.name in operators:
        raise OperatorError(f"operator {operator.name!r} is already registered")
    operators[operator.name] = operator
    return operator


def oracle(op: str) -> Callable[[Oracle], Oracle]:
    """Register the decorated function as the float64 oracle of `op`. Errors: OperatorError if it has one."""

    def register(function: Oracle) -> Oracle:
        if op in oracles:
            raise OperatorError(f"operator {op!r} already has an oracle: {oracles[op].__module__}")
        oracles[op] = function
        return function

    return register
