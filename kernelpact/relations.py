"""Relations: which tensors a promise sets beside each other. Pure functions of one trial; no search here.

parity: K_inf against K_train. accuracy: either against the float64 oracle. invariance: K_inf against itself,
the same rows presented differently. gradient: K_train's backward against the oracle's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernelpact import clauses
from kernelpact.clauses import Finding, Sample
from kernelpact.contract import LIMITLESS, NumericalClause
from kernelpact.trial import KernelError, Trial
from kernelpact.verdict import Verdict

__all__ = ["RELATIONS", "RelationError", "findings"]


class RelationError(ValueError):
    """A clause asks for an output or a transformation that its operator does not have."""


@dataclass(frozen=True)
class Located:
    """A sample, and what it is a sample of, in words: `o`, `o after pages`, `d/d weight`."""

    name: str
    sample: Sample


def findings(clause: NumericalClause, trial: Trial, limit: float) -> list[tuple[str, Finding]]:
    """Judge one clause on one trial: a finding for each output, each named.

    Errors: KernelError when a kernel breaks its interface; RelationError for an unknown output.
    """
    judge = clauses.make(clause.metric, output=clause.output, limit=limit, why=clause.why).judge
    return [(located.name, judge(located.sample)) for located in RELATIONS[clause.relation](clause, trial)]


def limit_of(clause: NumericalClause, dtype: str, hardware: str) -> float | None:
    """Give a clause's limit for a cell; promises that are their own limit (bitwise) allow 0."""
    return 0.0 if clause.metric in LIMITLESS else clause.limit(dtype, hardware)


def outputs_of(clause: NumericalClause, trial: Trial) -> tuple[str, ...]:
    """Name the outputs a clause speaks of: the one it names, or all."""
    names = trial.operator.outputs
    if clause.output is None:
        return names
    if clause.output not in names:
        raise RelationError(
            f"operator {trial.operator.name} has outputs {list(names)}, not {clause.output!r}"
        )
    return (clause.output,)


def _parity(clause: NumericalClause, trial: Trial) -> Iterator[Located]:
    for name in outputs_of(clause, trial):
        scale = None if clause.metric in LIMITLESS else trial.scale(name)
        eager = trial.train[name] if clause.metric == "error_ratio" else None
        yield Located(name, Sample(trial.inf[name], trial.train[name], scale, eager))


def _accuracy(clause: NumericalClause, trial: Trial) -> Iterator[Located]:
    side = trial.train if clause.of == "train" else trial.inf
    for name in outputs_of(clause, trial):
        eager = trial.train[name] if clause.metric == "error_ratio" else None
        yield Located(name, Sample(side[name], trial.exact[name], trial.scale(name), eager))


def _invariance(clause: NumericalClause, trial: Trial) -> Iterator[Located]:
    names = outputs_of(clause, trial)
    for transformation in clause.under:
        present = trial.operator.variants.get(transformation)
        if present is None:
            known = sorted(trial.operator.variants)
            raise RelationError(f"operator {trial.operator.name} knows {known}, not {transformation!r}")
        with torch.no_grad():
            variant = present(trial.inputs, trial.recipe)
            if variant is None:
                continue
            restored = variant.restore(trial.run("inf", variant.inputs))
        expected = variant.expect(trial.inf)
        for name in names:
            scale = None if clause.metric in LIMITLESS else expected[name].double().abs()
            yield Located(f"{name} under {transformation}", Sample(restored[name], expected[name], scale))


def _gradient(clause: NumericalClause, trial: Trial) -> Iterator[Located]:
    names = trial.operator.differentiable
    if clause.output is not None:
        if clause.output not in names:
            raise RelationError(
                f"operator {trial.operator.name} is differentiable in {list(names)}, not in {clause.output!r}"
            )
        names = (clause.output,)
    if not any(value.numel() for value in trial.exact.values()):
        return  # no output, no gradient
    exact, ours = _gradients(trial, "exact"), _gradients(trial, "train")
    for name in names:
        scale = exact[name].abs() + _WIDE * _natural_size(trial, name) / max(
            _WIDE, torch.finfo(ours[name].dtype).eps
        )
        yield Located(f"d/d {name}", Sample(ours[name], exact[name], scale))


_WIDE = 64 * 2.0**-23  # what the float32 inside of a K_train may lose of the terms of a gradient


def _natural_size(trial: Trial, name: str) -> Tensor:
    """Give the size of the terms that a gradient is the sum of, for each row of an input: they may cancel.

    The terms are float32 whatever the dtype, so they add to the scale what float32 loses of them.

    |cotangent| · max(1, |y|) · max(1, |x|, 1/|x|), the largest of each in the row, or in all where the input has no
    row for each row of the output.
    """
    x = trial.inputs[name].double()
    x = x.abs().where(x.isfinite(), 0.0)
    size = torch.zeros((), dtype=torch.float64, device=x.device)
    for output, cotangent in _cotangents(trial).items():
        y = trial.exact[output]
        terms = cotangent.double().abs() * y.abs().where(y.isfinite(), 0.0).clamp_min(1.0)
        size = torch.maximum(size, _largest(terms, x))
    own = _largest(x, x)
    own = torch.maximum(own, 1 / own.where(own > 0, 1.0)).clamp_min(1.0)
    return (size * own).expand(x.shape)


def _largest(values: Tensor, like: Tensor) -> Tensor:
    """Give the largest value of each row, shaped to broadcast over `like`; of all where the rows differ in number."""
    if like.dim() > 1 and values.dim() and len(values) == len(like):
        return values.reshape(len(values), -1).amax(-1).reshape(-1, *[1] * (like.dim() - 1))
    return values.amax()


def _cotangents(trial: Trial) -> dict[str, Tensor]:
    """Draw the fixed random weights that turn outputs into a scalar to differentiate; in the outputs' dtypes."""
    generator = torch.Generator().manual_seed(0)
    dtypes = trial.operator.dtypes(trial.inputs, trial.dtype)
    return {
        name: torch.randn(trial.exact[name].shape, generator=generator).to(trial.device, dtypes[name])
        for name in trial.operator.outputs
    }


def _gradients(trial: Trial, side: str) -> dict[str, Tensor]:
    """Differentiate the weighted sum of the outputs with respect to the differentiable inputs."""
    wanted = trial.operator.differentiable
    inputs = dict(trial.inputs)
    for name in wanted:
        value = inputs[name].detach()
        inputs[name] = (value.double() if side == "exact" else value.clone()).requires_grad_()
    outputs = trial.differentiable(side, inputs)
    total = torch.zeros((), dtype=torch.float64, device=trial.device)
    for name, weights in _cotangents(trial).items():
        value = outputs[name].double()
        total = total + (value.where(value.isfinite(), 0.0) * weights.double()).sum()
    if not total.requires_grad:
        raise KernelError(f"{side} gives outputs that do not depend on {list(wanted)} for autograd")
    try:
        gradients = torch.autograd.grad(total, [inputs[name] for name in wanted], allow_unused=True)
    except Exception as error:
        raise KernelError(f"{side} raised {type(error).__name__} in its backward: {error}") from error
    return {
        name: torch.zeros_like(inputs[name]) if gradient is None else gradient.detach()
        for name, gradient in zip(wanted, gradients, strict=True)
    }


RELATIONS = {"parity": _parity, "accuracy": _accuracy, "invariance": _invariance, "gradient": _gradient}


def worst(found: list[tuple[str, Finding]], higher_is_better: bool) -> tuple[str, Finding] | None:
    """Give the finding that decides: a violated one before others, then the figure closest to its limit."""
    judged = [pair for pair in found if pair[1].observed is not None]
    if not judged:
        return found[0] if found else None

    def badness(pair: tuple[str, Finding]) -> tuple[bool, float]:
        observed = pair[1].observed
        assert observed is not None  # noqa: S101 - filtered above
        figure = math.inf if math.isnan(observed) else observed
        return pair[1].verdict is Verdict.VIOLATED, -figure if higher_is_better else figure

    return max(judged, key=badness)


def describe_index(name: str, finding: Finding) -> str:
    """Write where a finding was made: `o[2, 5]`."""
    return f"{name}[{', '.join(map(str, finding.index))}]" if finding.index else name


def as_error(reason: str) -> Finding:
    """Give the finding of a kernel that broke."""
    return replace(Finding(Verdict.ERROR, None, None), reason=reason)
