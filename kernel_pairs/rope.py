"""rope: x[T, N, D], positions[T], theta, interleaved -> y[T, N, D].

Pair i of a head turns by positions · theta^(−2i/D). Half-split pairs (i, i + D/2); interleaved pairs (2i, 2i + 1).
Angles are computed in float64 on the host, as a table that both sides share in meaning but not in code: in float32
an angle at position 131072 would be wrong by up to 0.008.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelpact import KernelPair, register_pair


def eager_rope(*, x: Tensor, positions: Tensor, theta: float, interleaved: bool) -> dict[str, Tensor]:
    """K_train: complex rotation written out, float32 inside, one rounding."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    angles = positions.double()[:, None, None] * frequencies
    cos, sin = angles.cos().float(), angles.sin().float()
    wide = x.float()
    if interleaved:
        a, b = wide[..., 0::2], wide[..., 1::2]
    else:
        a, b = wide[..., :half], wide[..., half:]
    turned = (a * cos - b * sin, a * sin + b * cos)
    y = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return {"y": y.to(x.dtype)}


@triton.jit
def _rope_kernel(
    x, table, y, N, D, stride_t, stride_n, stride_d,
    INTERLEAVED: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    half = D // 2
    head = tl.arange(0, HEADS)[:, None].to(tl.int64)  # an index times its stride may pass 2^31
    pair = tl.arange(0, HALF)[None, :].to(tl.int64)
    inside = (head < N) & (pair < half)
    first = pair * 2 if INTERLEAVED else pair
    second = pair * 2 + 1 if INTERLEAVED else pair + half
    angle = table + token * D + pair
    cos = tl.load(angle, mask=pair < half, other=0.0)
    sin = tl.load(angle + half, mask=pair < half, other=0.0)
    source = x + token * stride_t + head * stride_n
    a = tl.load(source + first * stride_d, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(source + second * stride_d, mask=inside, other=0.0).to(tl.float32)
    target = y + token * N * D + head * D
    tl.store(target + first, (a * cos - b * sin).to(y.dtype.element_ty), mask=inside)
    tl.store(target + second, (a * sin + b * cos).to(y.dtype.element_ty), mask=inside)


def _table(positions: Tensor, size: int, theta: float) -> Tensor:
    """Give cosines, then sines, of each token's angles: float32 [T, D], from float64 angles."""
    exponents = torch.arange(0, size, 2, dtype=torch.float64, device=positions.device) / size
    angles = torch.outer(positions.to(torch.float64), 1.0 / torch.pow(theta, exponents))
    return torch.cat([torch.cos(angles), torch.sin(angles)], 1).to(torch.float32)


def triton_rope(*, x: Tensor, positions: Tensor, theta: float, interleaved: bool) -> dict[str, Tensor]:
    """K_inf: one program a token, all heads at once."""
    tokens, heads, size = x.shape
    y = torch.empty((tokens, heads, size), dtype=x.dtype, device=x.device)
    if y.numel():
        _rope_kernel[(tokens,)](
            x, _table(positions, size, theta), y, heads, size, *x.stride(), INTERLEAVED=interleaved,
            HEADS=triton.next_power_of_2(heads), HALF=triton.next_power_of_2(size // 2),
        )  # fmt: skip
    return {"y": y}


def rotated_rope(*, x: Tensor, positions: Tensor, theta: float, interleaved: bool) -> dict[str, Tensor]:
    """K_inf: x · cos + rotate(x) · sin over whole heads, as model code writes it; float32 inside, one rounding."""
    size = x.shape[-1]
    cos, sin = _table(positions, size, theta)[:, None].chunk(2, -1)
    wide = x.float()
    if interleaved:
        cos, sin = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
        rotated = torch.stack([-wide[..., 1::2], wide[..., 0::2]], -1).flatten(-2)
    else:
        cos, sin = cos.repeat(1, 1, 2), sin.repeat(1, 1, 2)
        rotated = torch.cat([-wide[..., size // 2 :], wide[..., : size // 2]], -1)
    return {"y": (wide * cos + rotated * sin).to(x.dtype)}


register_pair(KernelPair(name="rope/triton", op="rope", train=eager_rope, inf=triton_rope))
register_pair(KernelPair(name="rope/rotated", op="rope", train=eager_rope, inf=rotated_rope))
