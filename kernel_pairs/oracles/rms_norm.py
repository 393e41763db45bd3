"""The oracle of rms_norm: y = x / √(mean x² + eps) · (weight + offset), a row at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from kernelpact.operators import oracle


@oracle("rms_norm")
def rms_norm(*, x: Tensor, weight: Tensor, eps: float, offset: int) -> dict[str, Tensor]:
    """Give y[T, H]. There is no cancellation."""
    factor = weight.double() + float(offset)
    rows = []
    for row in x.double():
        mean = torch.dot(row, row) / row.numel()
        rows.append(row / (mean + eps).sqrt() * factor)
    return {"y": torch.stack(rows) if rows else x.double()}
