"""lm_head_logprobs: hidden[T, H], weight[V, H], targets[T], temperature -> logits[T, V], logp[T].

Logits are in the dtype of `hidden`, before the temperature. The float32 log-probs are those of the float32
logits, which are never rounded: rounding them first would cost the tail up to half an ulp of the logit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelpact import KernelPair, register_pair

TOKENS, VOCAB, HIDDEN = 16, 64, 64


def eager_lm_head_logprobs(
    *, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float
) -> dict[str, Tensor]:
    """K_train: a float32 product, a float32 log-softmax, a gather."""
    wide = hidden.float() @ weight.float().T
    logp = torch.log_softmax(wide / temperature, -1).gather(-1, targets[:, None]).squeeze(-1)
    return {"logits": wide.to(hidden.dtype), "logp": logp}


@triton.jit
def _lm_head_kernel(
    hidden, weight, targets, logits, logp, T, V, H, stride_t, stride_h, stride_v, stride_w, stride_target, temperature,
    TOKENS: tl.constexpr, VOCAB: tl.constexpr, HIDDEN: tl.constexpr,
):  # fmt: skip
    # int64 offsets throughout: an index times its stride may pass 2^31
    t = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    target = tl.load(targets + t * stride_target, mask=t < T, other=0)
    top = tl.full([TOKENS], float("-inf"), tl.float32)
    total = tl.zeros([TOKENS], tl.float32)
    chosen = tl.zeros([TOKENS], tl.float32)
    for first in range(0, V, VOCAB):
        v = (first + tl.arange(0, VOCAB)).to(tl.int64)
        z = tl.zeros([TOKENS, VOCAB], tl.float32)
        for start in range(0, H, HIDDEN):
            h = (start + tl.arange(0, HIDDEN)).to(tl.int64)
            a_at = hidden + t[:, None] * stride_t + h[None, :] * stride_h
            b_at = weight + v[None, :] * stride_v + h[:, None] * stride_w
            a = tl.load(a_at, mask=(t[:, None] < T) & (h[None, :] < H), other=0.0)
            b = tl.load(b_at, mask=(v[None, :] < V) & (h[:, None] < H), other=0.0)
            z += tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
        inside = (t[:, None] < T) & (v[None, :] < V)
        tl.store(logits + t[:, None] * V + v[None, :], z.to(logits.dtype.element_ty), mask=inside)
        z = tl.where(v[None, :] < V, z / temperature, float("-inf"))
        chosen += tl.sum(tl.where(v[None, :] == target[:, None], z, 0.0), 1)
        new = tl.maximum(top, tl.max(z, 1))
        total = total * tl.exp(top - new) + tl.sum(tl.exp(z - new[:, None]), 1)
        top = new
    tl.store(logp + t, (chosen - top) - tl.log(total), mask=t < T)


def triton_lm_head_logprobs(
    *, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float
) -> dict[str, Tensor]:
    """K_inf: tiled product, online log-sum-exp and gather fused; float32 accumulators."""
    rows, size = hidden.shape
    vocab = weight.shape[0]
    logits = torch.empty((rows, vocab), dtype=hidden.dtype, device=hidden.device)
    logp = torch.empty(rows, dtype=torch.float32, device=hidden.device)
    if rows:
        _lm_head_kernel[(triton.cdiv(rows, TOKENS),)](
            hidden, weight, targets, logits, logp, rows, vocab, size, *hidden.stride(), *weight.stride(),
            targets.stride(0), float(temperature), TOKENS=TOKENS, VOCAB=VOCAB, HIDDEN=HIDDEN,
        )  # fmt: skip
    return {"logits": logits, "logp": logp}


def rowwise_lm_head_logprobs(
    *, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float
) -> dict[str, Tensor]:
    """K_inf: float32 logits a token at a time, so that a row never depends on its batch."""
    wide = (
        torch.stack([weight.float().contiguous() @ row for row in hidden.float().contiguous()])
        if len(hidden)
        else hidden.float() @ weight.float().T
    )
    scaled = wide / temperature
    chosen = scaled.gather(-1, targets[:, None]).squeeze(-1)
    return {"logits": wide.to(hidden.dtype), "logp": chosen - scaled.logsumexp(-1)}


register_pair(
    KernelPair(
        name="lm_head_logprobs/triton",
        op="lm_head_logprobs",
        train=eager_lm_head_logprobs,
        inf=triton_lm_head_logprobs,
        edges={"tokens": (TOKENS,), "vocab": (VOCAB,), "hidden": (HIDDEN,)},
    )
)
register_pair(
    KernelPair(
        name="lm_head_logprobs/rowwise",
        op="lm_head_logprobs",
        train=eager_lm_head_logprobs,
        inf=rowwise_lm_head_logprobs,
    )
)
