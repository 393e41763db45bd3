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
    """Give o[B, Hq, D] = Σ p v and its scale Σ p|v|, in float64.

    Shapes: q[B, Hq, D], k_cache and v_cache[P, S, Hkv, D], block_table[B, M] int32, seq_lens[B] int32, Hkv dividing Hq.
    Position j of sequence b is slot j % S of page block_table[b, j // S]. Entries past the last page, −1 or not, and
    slots that no sequence owns are never read, whatever they hold.
    The one query of a sequence stands at seq_len − 1 and sees the last `window` positions, all where it is None.
    Scores: scale · q·k; then softcap · tanh(score/softcap) unless softcap is None. Length 0 gives zeros.
    """
    page = k_cache.shape[1]
    group = q.shape[1] // k_cache.shape[2]
    o = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    o_scale = torch.zeros_like(o)
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
            o_scale[b, h] = (weights * values.abs()).sum(0).detach()
    return {"o": o, "o_scale": o_scale}
