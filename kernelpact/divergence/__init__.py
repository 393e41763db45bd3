"""Divergence of the two policies that a training and an inference kernel make of the same tokens.

`compare` turns two logit tensors into per-token figures: how far apart the logits are (`drift`), how far
apart the distributions are (`tv`, `kl`, …), and what that does to importance weights (`chi2`, `ess`,
`ratio`). Importing this module needs torch; triton is imported only when a CUDA tensor is compared.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from kernelpact.divergence.blocked import compare_blocked
from kernelpact.divergence.metrics import at_tokens

__all__ = ["Divergence", "compare"]


@dataclass(frozen=True, slots=True, eq=False)
class Divergence(Mapping[str, Tensor]):
    """Per-token divergence of π_train and π_inf; every field a tensor [T], float64 unless it is a flag.

    Read it by attribute or as a mapping (`result["tv"]`, `dict(result)`); `dlogp` and `ratio` are None as
    attributes and absent from the mapping when no targets were given. Logarithms are natural;
    w = π_train/π_inf, δ = z_train − z_inf.
    """

    drift: Tensor
    """ε = (max δ − min δ)/(2τ) over the common support: the logit drift, centred."""
    drift_rms: Tensor
    """σ, the standard deviation of δ/τ under π_inf."""
    drift_max: Tensor
    """b = max over the vocabulary of δ/τ, less its mean under π_inf."""
    tv: Tensor
    """Total variation ½ Σ|π_train − π_inf|, in [0, 1]."""
    kl: Tensor
    """KL(π_train ‖ π_inf)."""
    reverse_kl: Tensor
    """KL(π_inf ‖ π_train)."""
    js: Tensor
    """Jensen-Shannon divergence, in [0, ln 2]."""
    hellinger: Tensor
    """Hellinger distance sqrt(1 − Σ sqrt(π_train·π_inf)), in [0, 1]; its square is 1 − Bhattacharyya."""
    chi2: Tensor
    """χ² = Var_inf(w) = Σ(π_train − π_inf)²/π_inf."""
    ess: Tensor
    """Effective sample size per sample, 1/(1 + χ²), in [0, 1]."""
    max_dlogp: Tensor
    """Largest |log w| over the common support."""
    entropy_train: Tensor
    """Entropy of π_train."""
    entropy_inf: Tensor
    """Entropy of π_inf."""
    top1_agreement: Tensor
    """1 where the likeliest token is the same on both sides, else 0; of tied tokens the first counts."""
    support_violation: Tensor
    """Flag: one side masks (−inf) a token that the other does not."""
    nonfinite: Tensor
    """Flag: NaN or +inf among the logits, or a side with no token at all; the metrics of the row are NaN."""
    dlogp: Tensor | None = None
    """log w of the target token; NaN where both sides mask it."""
    ratio: Tensor | None = None
    """w of the target token."""

    def __getitem__(self, name: str) -> Tensor:
        if name not in _FIELDS or (value := getattr(self, name)) is None:
            raise KeyError(f"{name!r}: have {', '.join(self)}")
        assert isinstance(value, Tensor)  # noqa: S101 - narrows getattr's Any
        return value

    def __iter__(self) -> Iterator[str]:
        return (name for name in _FIELDS if getattr(self, name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    # Mapping would compare by value, and a tensor's == is no truth value.
    __eq__ = object.__eq__
    __hash__ = object.__hash__


_FIELDS = tuple(field.name for field in fields(Divergence))


def compare(
    train: Tensor, inf: Tensor, targets: Tensor | None = None, temperature: float = 1.0
) -> Divergence:
    """Per-token divergence of softmax(train/τ) and softmax(inf/τ).

    Shapes: train, inf [T, V], any float dtypes, mixed or not, any strides, one device; targets [T] of
    integers.
    Units:  logarithms are natural; `drift` and `drift_rms` are in logits over τ. Results are float64 [T].
    Masks:  −inf on both sides leaves a token out. −inf on one side only is a support violation: flagged,
            `drift`, `max_dlogp` and `drift_max` are inf, and every other metric has its limit (KL is inf
            in the direction whose first argument has mass where the second has none; `tv`, `js`,
            `hellinger` stay finite). NaN or +inf, and a row masked throughout, are flagged `nonfinite`
            with NaN metrics; the other rows are not touched.
    Errors: TypeError for what is no float tensor (or integer targets); ValueError for shapes, devices,
            targets out of range, a temperature that is not positive and finite.
    Source: "Training-Inference Kernel Contracts", arXiv 2606.07581; DESIGN.md sections 4 and 8.

    Relative error at most 1e-5 for drifts down to 1e-6 (for `dlogp`, relative to the larger of it and
    `tv`). No temporary of the logits' size: scratch is a few rows. No gradient flows.
    """
    temperature = _checked(train, inf, targets, temperature)
    train, inf = train.detach(), inf.detach()
    columns = _route(train)(train, inf, temperature)
    center, shift = columns.pop("center"), columns.pop("shift")
    if targets is not None:
        columns |= _at_targets(train, inf, targets, temperature, center, shift)
    return Divergence(**columns)


def _route(train: Tensor) -> Callable[[Tensor, Tensor, float], dict[str, Tensor]]:
    """The fused kernel for CUDA tensors where triton is installed, the blocked path for everything else."""
    if train.device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        from kernelpact.divergence.fused import compare_fused

        return compare_fused
    return compare_blocked


def _checked(train: Tensor, inf: Tensor, targets: Tensor | None, temperature: float) -> float:
    for name, logits in (("train", train), ("inf", inf)):
        if not isinstance(logits, Tensor) or not logits.is_floating_point():
            what = str(logits.dtype) if isinstance(logits, Tensor) else type(logits).__name__
            raise TypeError(f"{name} must be a tensor of floating-point logits, got {what}")
    if train.shape != inf.shape or train.ndim != 2 or train.shape[1] == 0:
        shapes = f"train {tuple(train.shape)} and inf {tuple(inf.shape)}"
        raise ValueError(f"logits must both be [T, V] with V >= 1, got {shapes}")
    if train.device != inf.device:
        raise ValueError(f"logits must share a device, got train on {train.device} and inf on {inf.device}")
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(f"temperature must be positive and finite, got {temperature!r}")
    if targets is not None:
        _check_targets(targets, *train.shape)
    return float(temperature)


def _check_targets(targets: Tensor, rows: int, width: int) -> None:
    if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.is_complex():
        what = str(targets.dtype) if isinstance(targets, Tensor) else type(targets).__name__
        raise TypeError(f"targets must be a tensor of integer token ids, got {what}")
    if targets.dtype is torch.bool:
        raise TypeError("targets must be a tensor of integer token ids, got torch.bool")
    if tuple(targets.shape) != (rows,):
        raise ValueError(f"targets must be [T] = [{rows}], got {tuple(targets.shape)}")
    outside = ((targets < 0) | (targets >= width)).nonzero()
    if outside.numel():
        row = int(outside[0])
        raise ValueError(f"targets must lie in [0, {width}), got {int(targets[row])} at index {row}")


def _at_targets(
    train: Tensor, inf: Tensor, targets: Tensor, temperature: float, center: Tensor, shift: Tensor
) -> dict[str, Tensor]:
    """log w and w of the target tokens, [T] each, from the row's centre and shift."""
    tokens = targets.to(device=train.device, dtype=torch.long)
    dlogp = (at_tokens(train, tokens) - at_tokens(inf, tokens) - center) / temperature - shift
    return {"dlogp": dlogp, "ratio": dlogp.exp()}
