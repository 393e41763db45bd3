"""The oracle of token_logprobs: z/τ of the target, less the log of the sum of exponentials."""

from __future__ import annotations

import torch
from torch import Tensor

from kernelpact.operators import oracle


@oracle("token_logprobs")
def token_logprobs(*, logits: Tensor, targets: Tensor, temperature: float) -> dict[str, Tensor]:
    """Give logp[T] = z_target/τ − ln Σ e^(z/τ), and its scale, in float64.

    Scale: |z_target/τ − max| + ln Σ, the two terms of the difference, and the largest |z/τ|, since dividing by the
    temperature rounds there.
    Shapes: logits[T, V], targets[T] int64 in [0, V), temperature τ > 0. logp is float32 whatever the logits are.
    A masked target (−inf) gives −inf; a row of nothing but −inf gives NaN, as in PyTorch.
    """
    values, scales = [], []
    for row, target in zip(logits.double(), targets.tolist(), strict=True):
        z = row / temperature
        top = z.detach().max()
        log_sum = torch.exp(z - top).sum().log()
        values.append(z[target] - top - log_sum)
        seen = z.detach().abs().where(z.detach().isfinite(), 0.0).max()
        scales.append(seen + log_sum.detach() + (z[target].detach() - top).abs().nan_to_num(posinf=0.0))
    empty = logits.new_zeros(0, dtype=torch.float64)
    return {
        "logp": torch.stack(values) if values else empty,
        "logp_scale": torch.stack(scales) if scales else empty,
    }
