"""The oracle of lm_head_logprobs: logits by dot products, log-probs of the exact logits."""

from __future__ import annotations

import torch
from torch import Tensor

from kernelpact.operators import oracle


@oracle("lm_head_logprobs")
def lm_head_logprobs(
    *, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float
) -> dict[str, Tensor]:
    """Give logits[T, V] = hidden · weightᵀ and logp[T] = z_target/τ − ln Σ e^(z/τ) of those exact logits, in float64.

    Shapes: hidden[T, H], weight[V, H], targets[T] int64 in [0, V), temperature τ > 0. Logits are before the
    temperature. A kernel returns them in the dtype of `hidden`, and logp in float32, of logits never rounded.
    Scales: Σ|h||w| of a logit; the row's largest of these over τ, plus |logp|, of a log-prob.
    """
    h, w = hidden.double(), weight.double()
    logits = torch.einsum("th,vh->tv", h, w)
    scale = torch.einsum("th,vh->tv", h.detach().abs(), w.detach().abs())
    values = []
    for row, target in zip(logits, targets.tolist(), strict=True):
        z = row / temperature
        top = z.detach().max()
        values.append(z[target] - top - torch.exp(z - top).sum().log())
    logp = torch.stack(values) if values else logits.new_zeros(0)
    largest = scale.amax(-1) / temperature if len(values) else logits.new_zeros(0)
    return {
        "logits": logits,
        "logits_scale": scale,
        "logp": logp,
        "logp_scale": largest + logp.detach().abs(),
    }
