"""The oracle of rope: each pair of a head turned by its angle, as complex numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from kernelpact.operators import oracle


@oracle("rope")
def rope(*, x: Tensor, positions: Tensor, theta: float, interleaved: bool) -> dict[str, Tensor]:
    """Give y[T, N, D] and its scale |a cos| + |b sin|, since the two terms may cancel, in float64.

    Pair i of a head turns by the exact float64 angle positions · theta^(−2i/D); a kernel that builds angles in
    float32 is wrong by up to positions · 2^−24 radians for each rounding, and answers for it.
    Shapes: x[T, N, D] with D even, positions[T] integers ≥ 0, theta > 0. T may be 0.
    interleaved: pairs are (2i, 2i + 1); otherwise (i, i + D/2). Source: Su et al. 2021, arXiv 2104.09864.
    """
    wide = x.double()
    tokens, _, size = wide.shape
    half = size // 2
    order = [2 * i for i in range(half)] if interleaved else list(range(half))
    partner = [2 * i + 1 for i in range(half)] if interleaved else [half + i for i in range(half)]
    speed = torch.tensor([float(theta) ** (-2.0 * i / size) for i in range(half)], dtype=torch.float64)
    angle = positions.double().reshape(tokens, 1, 1) * speed.to(x.device)
    turn = torch.polar(torch.ones_like(angle), angle)
    turned = torch.complex(wide[:, :, order], wide[:, :, partner]) * turn
    magnitude = wide[:, :, order].detach().abs(), wide[:, :, partner].detach().abs()
    cos, sin = turn.real.abs(), turn.imag.abs()
    y, scale = torch.zeros_like(wide), torch.zeros_like(wide)
    y[:, :, order], y[:, :, partner] = turned.real, turned.imag
    scale[:, :, order] = magnitude[0] * cos + magnitude[1] * sin
    scale[:, :, partner] = magnitude[0] * sin + magnitude[1] * cos
    return {"y": y, "y_scale": scale}
