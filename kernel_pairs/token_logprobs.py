"""token_logprobs: logits[T, V], targets[T], temperature -> logp[T] in float32, of the target at that temperature."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelpact import KernelPair, register_pair

BLOCK = 256
CHUNK = 128


def eager_token_logprobs(*, logits: Tensor, targets: Tensor, temperature: float) -> dict[str, Tensor]:
    """K_train: a whole float32 log-softmax, and a gather."""
    logp = torch.log_softmax(logits.float() / temperature, -1)
    return {"logp": logp.gather(-1, targets[:, None]).squeeze(-1)}


@triton.jit
def _token_logprobs_kernel(
    logits, targets, logp, V, stride_t, stride_v, stride_target, temperature, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)  # int64 offsets throughout: row or column times stride may pass 2^31
    base = logits + row * stride_t
    top = float("-inf")
    total = 0.0
    for start in range(0, V, BLOCK):
        v = (start + tl.arange(0, BLOCK)).to(tl.int64)
        z = tl.load(base + v * stride_v, mask=v < V, other=float("-inf")).to(tl.float32) / temperature
        new = tl.maximum(top, tl.max(z, 0))
        finite = tl.where(new == float("-inf"), 0.0, new)
        total = total * tl.exp(top - finite) + tl.sum(tl.exp(z - finite), 0)
        top = new
    target = tl.load(targets + row * stride_target)
    z = tl.load(base + target * stride_v).to(tl.float32) / temperature
    tl.store(logp + row, (z - top) - tl.log(total))


def triton_token_logprobs(*, logits: Tensor, targets: Tensor, temperature: float) -> dict[str, Tensor]:
    """K_inf: log-sum-exp and gather in one pass, no [T, V] temporary."""
    rows, vocab = logits.shape
    logp = torch.empty(rows, dtype=torch.float32, device=logits.device)
    if rows:
        _token_logprobs_kernel[(rows,)](
            logits, targets, logp, vocab, *logits.stride(), targets.stride(0), float(temperature), BLOCK=BLOCK
        )
    return {"logp": logp}


def chunked_token_logprobs(*, logits: Tensor, targets: Tensor, temperature: float) -> dict[str, Tensor]:
    """K_inf: log-sum-exp over chunks of the vocabulary, merged, as trainers with long vocabularies do."""
    wide = logits.float().contiguous() / temperature  # else the reduction order depends on the number of rows
    parts = [chunk.logsumexp(-1) for chunk in wide.split(CHUNK, -1)]
    chosen = wide.gather(-1, targets[:, None]).squeeze(-1)
    return {"logp": chosen - torch.stack(parts, -1).logsumexp(-1)}


register_pair(
    KernelPair(
        name="token_logprobs/triton",
        op="token_logprobs",
        train=eager_token_logprobs,
        inf=triton_token_logprobs,
        edges={"vocab": (BLOCK,)},
    )
)
register_pair(
    KernelPair(
        name="token_logprobs/chunked",
        op="token_logprobs",
        train=eager_token_logprobs,
        inf=chunked_token_logprobs,
        edges={"vocab": (CHUNK,)},
    )
)
