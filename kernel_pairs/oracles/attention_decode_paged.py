"""The oracle of attention_decode_paged: one sequence, one head, one position at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from kernelpact.operators import oracle


@oracle("attention_decode_paged")
def attention_decode_paged(
    *, q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor, scale: float,
    window: int | None, softcap: float | None,
) -> dict[str, Tensor]:  # fmt: skip
    """Give o[B, Hq, D] and its scale Σ p|v|. A sequence of length 0 gives zeros."""
    page = k_cache.shape[1]
    group = q.shape[1] // k_cache.shape[2]
    o = torch.zeros(q.shape, dtype=torch.float64)
    o_scale = torch.zeros(q.shape, dtype=torch.float64)
    for b, length in enumerate(seq_lens.tolist()):
        begin = 0 if window is None else max(0, length - window)
        places = [(int(block_table[b, j // page]), j % page) for j in range(begin, length)]
        for h in range(q.shape[1] if places else 0):
            keys = torch.stack([k_cache[p, s, h // group] for p, s in places]).double()
            values = torch.stack([v_cache[p, s, h // group] for p, s in places]).double()
            z = (keys * q[b, h].double()).sum(-1) * scale
            if softcap is not None:
                z = torch.tanh(z / softcap) * softcap
            weights = torch.exp(z - z.max())
            weights = (weights / weights.sum())[:, None]
            o[b, h] = (weights * values).sum(0)
            o_scale[b, h] = (weights * values.abs()).sum(0)
    return {"o": o, "o_scale": o_scale}
