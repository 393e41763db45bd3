"""rms_norm: x[T, H], weight[H], eps, offset (0 or 1: Gemma adds one to the weight) -> y[T, H].

Both sides compute in float32 and round once, to the dtype of x.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelpact import KernelPair, register_pair

BLOCK = 256


def eager_rms_norm(*, x: Tensor, weight: Tensor, eps: float, offset: int) -> dict[str, Tensor]:
    """K_train: float32 inside, one rounding."""
    wide = x.float()
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return {"y": (wide * rstd * (weight.float() + offset)).to(x.dtype)}


@triton.jit
def _rms_norm_kernel(x, weight, y, H, stride_t, stride_h, stride_w, eps, offset, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)  # int64 offsets throughout: row or column times stride may pass 2^31
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, H, BLOCK):
        h = (start + tl.arange(0, BLOCK)).to(tl.int64)
        value = tl.load(x + row * stride_t + h * stride_h, mask=h < H, other=0.0).to(tl.float32)
        total += value * value
    rstd = 1.0 / tl.sqrt(tl.sum(total, 0) / H + eps)
    for start in range(0, H, BLOCK):
        h = (start + tl.arange(0, BLOCK)).to(tl.int64)
        value = tl.load(x + row * stride_t + h * stride_h, mask=h < H, other=0.0).to(tl.float32)
        scale = tl.load(weight + h * stride_w, mask=h < H, other=0.0).to(tl.float32) + offset
        tl.store(y + row * H + h, (value * rstd * scale).to(y.dtype.element_ty), mask=h < H)


def triton_rms_norm(*, x: Tensor, weight: Tensor, eps: float, offset: int) -> dict[str, Tensor]:
    """K_inf: one program a row, in blocks of 256, whatever the batch."""
    rows, hidden = x.shape
    y = torch.empty((rows, hidden), dtype=x.dtype, device=x.device)
    if y.numel():
        _rms_norm_kernel[(rows,)](
            x, weight, y, hidden, x.stride(0), x.stride(1), weight.stride(0), eps, float(offset), BLOCK=BLOCK
        )
    return {"y": y}


def library_rms_norm(*, x: Tensor, weight: Tensor, eps: float, offset: int) -> dict[str, Tensor]:
    """K_inf: PyTorch's own operator, in float32, rounded once.

    Contiguous first: on a transposed input PyTorch's reduction order depends on the number of rows.
    """
    wide = torch.nn.functional.rms_norm(x.float().contiguous(), (x.shape[-1],), weight.float() + offset, eps)
    return {"y": wide.to(x.dtype)}


register_pair(
    KernelPair(
        name="rms_norm/triton",
        op="rms_norm",
        train=eager_rms_norm,
        inf=triton_rms_norm,
        edges={"hidden": (BLOCK,)},
    )
)
register_pair(KernelPair(name="rms_norm/library", op="rms_norm", train=eager_rms_norm, inf=library_rms_norm))
