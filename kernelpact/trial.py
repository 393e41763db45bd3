"""One input of one pair: both sides run on it, the oracle beside them, each once and only when asked."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from kernelpact.operators import Inputs, Operator, Oracle, Recipe
from kernelpact.pairs import KernelPair

__all__ = ["KernelError", "Outputs", "Trial"]

Outputs = dict[str, Tensor]


class KernelError(Exception):
    """A kernel broke its interface: it raised, mutated an input, or returned the wrong thing."""


class Trial:
    """One recipe, built for one dtype and device, and what each side makes of it.

    Errors: KernelError from the properties that run a kernel.
    """

    def __init__(
        self, pair: KernelPair, operator: Operator, oracle: Oracle, recipe: Recipe, dtype: str, device: str
    ) -> None:
        self.pair, self.operator, self.recipe = pair, operator, recipe
        self.dtype, self.device = dtype, device
        self._oracle = oracle
        self.inputs: Inputs = operator.build(recipe, dtype, device)

    @cached_property
    def train(self) -> Outputs:
        """K_train's outputs."""
        with torch.no_grad():
            return self.run("train", self.inputs)

    @cached_property
    def inf(self) -> Outputs:
        """K_inf's outputs."""
        with torch.no_grad():
            return self.run("inf", self.inputs)

    @cached_property
    def exact(self) -> Outputs:
        """The oracle's outputs in float64, on the pair's device."""
        with torch.no_grad():
            outputs = self._oracle(**self.inputs)
        return {name: torch.as_tensor(value).double().to(self.device) for name, value in outputs.items()}

    def scale(self, output: str) -> Tensor:
        """Give the magnitude that enters each element of an output."""
        return self.exact.get(f"{output}_scale", self.exact[output]).abs()

    def differentiable(self, side: str, inputs: Inputs) -> Outputs:
        """Run K_train (`train`) or the oracle (`exact`) under autograd. Errors: KernelError if K_train raises."""
        if side == "exact":
            return dict(self._oracle(**inputs))
        try:
            given = self.pair.train(**inputs)
        except Exception as error:
            raise KernelError(
                f"train raised {type(error).__name__} under autograd: {_first_line(error)}"
            ) from error
        outputs = self._named(side, given, detach=False)
        self._check(side, outputs, inputs)  # another shape would broadcast against the cotangents
        return outputs

    def run(self, side: str, inputs: Inputs) -> Outputs:
        """Run one side on the given inputs and check what it gives, and what it left of its inputs."""
        kernel: Callable[..., Any] = getattr(self.pair, side)
        before = {name: _snapshot(value) for name, value in inputs.items() if isinstance(value, Tensor)}
        with _loud_memory():
            try:
                given = kernel(**inputs)
            except Exception as error:
                raise KernelError(f"{side} raised {type(error).__name__}: {_first_line(error)}") from error
        for name, (tensor, bits) in before.items():
            if not torch.equal(_bits(tensor), bits):
                raise KernelError(f"{side} mutates its input {name}")
        outputs = self._named(side, given)
        self._check(side, outputs, inputs)
        return outputs

    def _named(self, side: str, given: Any, *, detach: bool = True) -> Outputs:
        expected = self.operator.outputs
        if isinstance(given, Tensor):
            given = {expected[0]: given}
        if not isinstance(given, Mapping):
            raise KernelError(
                f"{side} returns {type(given).__name__}, expected a tensor or a dict of {list(expected)}"
            )
        if missing := [name for name in expected if not isinstance(given.get(name), Tensor)]:
            raise KernelError(f"{side} returns {sorted(given)}, without the tensors {missing}")
        # A copy: a kernel may hand out a buffer that its next call overwrites, and would then equal itself.
        return {name: given[name].detach().clone() if detach else given[name] for name in expected}

    def _check(self, side: str, outputs: Outputs, inputs: Inputs) -> None:
        shapes, dtypes = self.operator.shapes(inputs), self.operator.dtypes(inputs, self.dtype)
        for name, value in outputs.items():
            facts: tuple[tuple[str, Any, Any], ...] = (
                ("shape", list(value.shape), list(shapes[name])),
                ("dtype", value.dtype, dtypes[name]),
                ("device", value.device.type, self.device),
            )
            for what, found, expected in facts:
                if found != expected:
                    raise KernelError(f"{side} returns {name} with {what} {found}, expected {expected}")


def _bits(tensor: Tensor) -> Tensor:
    """See a tensor's elements as bytes, so that NaN equals itself."""
    return tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def _snapshot(tensor: Tensor) -> tuple[Tensor, Tensor]:
    return tensor, _bits(tensor)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or "(no message)").splitlines()[0][:300]


@contextlib.contextmanager
def _loud_memory() -> Iterator[None]:
    """Fill what `torch.empty` gives with NaN, so that an element left unwritten is seen; restore after it."""
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
