"""The oracle of softmax: e^(z − max) over its sum, a row at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from kernelpact.operators import oracle


@oracle("softmax")
def softmax(*, logits: Tensor) -> dict[str, Tensor]:
    """Give p[T, V] = e^(z − max) / Σ e^(z − max), in float64.

    Shapes: logits[T, V], V ≥ 1. −inf is a masked logit, with p = 0; a row of nothing but −inf is NaN, as in PyTorch.
    No scale: a sum of positive terms does not cancel.
    """
    rows = []
    for row in logits.double():
        weights = torch.exp(row - row.detach().max())
        rows.append(weights / weights.sum())
    return {"p": torch.stack(rows) if rows else logits.double()}
