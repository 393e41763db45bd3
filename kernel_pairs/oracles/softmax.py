"""The oracle of softmax: e^(z − max) over its sum, a row at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from kernelpact.operators import oracle


@oracle("softmax")
def softmax(*, logits: Tensor) -> dict[str, Tensor]:
    """Give p[T, V]. There is no cancellation."""
    rows = []
    for row in logits.double():
        weights = torch.exp(row - row.detach().max())
        rows.append(weights / weights.sum())
    return {"p": torch.stack(rows) if rows else logits.double()}
