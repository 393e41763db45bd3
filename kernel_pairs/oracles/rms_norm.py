"""The oracle of rms_norm: y = x / √(mean x² + eps) · (weight + offset), a row at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from kernelpact.operators import oracle


@oracle("rms_norm")
def rms_norm(*, x: Tensor, weight: Tensor, eps: float, offset: int) -> dict[str, Tensor]:
    """Give y[T, H] = x / √(mean over H of x² + eps) · (weight + offset), in float64.

    Shapes: x[T, H], weight[H]; eps > 0; offset 0 or 1 (Gemma adds one to the weight). T may be 0.
    No scale: every y is one product, so nothing cancels. Source: Zhang and Sennrich 2019, arXiv 1910.07467.
    """
    factor = weight.double() + float(offset)
    rows = []
    for row in x.double():
        mean = torch.dot(row, row) / row.numel()
        rows.append(row / (mean + eps).sqrt() * factor)
    return {"y": torch.stack(rows) if rows else x.double()}
