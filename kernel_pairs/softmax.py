"""softmax: logits[T, V] -> p[T, V], in the dtype of the logits. A row without a finite logit gives NaN."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelpact import KernelPair, register_pair

BLOCK = 256


def eager_softmax(*, logits: Tensor) -> dict[str, Tensor]:
    """K_train: float32 inside, one rounding."""
    return {"p": torch.softmax(logits.float(), -1).to(logits.dtype)}


@triton.jit
def _softmax_kernel(logits, p, V, stride_t, stride_v, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)  # int64 offsets throughout: row or column times stride may pass 2^31
    top = float("-inf")
    total = 0.0
    for start in range(0, V, BLOCK):
        v = (start + tl.arange(0, BLOCK)).to(tl.int64)
        z = tl.load(logits + row * stride_t + v * stride_v, mask=v < V, other=float("-inf")).to(tl.float32)
        new = tl.maximum(top, tl.max(z, 0))
        finite = tl.where(new == float("-inf"), 0.0, new)  # a block of masked logits before any other
        total = total * tl.exp(top - finite) + tl.sum(tl.exp(z - finite), 0)
        top = new
    for start in range(0, V, BLOCK):
        v = (start + tl.arange(0, BLOCK)).to(tl.int64)
        z = tl.load(logits + row * stride_t + v * stride_v, mask=v < V, other=float("-inf")).to(tl.float32)
        tl.store(p + row * V + v, (tl.exp(z - top) / total).to(p.dtype.element_ty), mask=v < V)


def triton_softmax(*, logits: Tensor) -> dict[str, Tensor]:
    """K_inf: online softmax, one program a row, in blocks of 256."""
    rows, vocab = logits.shape
    p = torch.empty((rows, vocab), dtype=logits.dtype, device=logits.device)
    if p.numel():
        _softmax_kernel[(rows,)](logits, p, vocab, *logits.stride(), BLOCK=BLOCK)
    return {"p": p}


def native_softmax(*, logits: Tensor) -> dict[str, Tensor]:
    """K_inf: PyTorch's own softmax in the dtype of the logits, as engines without a kernel of their own run it."""
    return {"p": torch.softmax(logits, -1)}


register_pair(
    KernelPair(
        name="softmax/triton",
        op="softmax",
        train=eager_softmax,
        inf=triton_softmax,
        edges={"vocab": (BLOCK,)},
    )
)
register_pair(KernelPair(name="softmax/native", op="softmax", train=eager_softmax, inf=native_softmax))
