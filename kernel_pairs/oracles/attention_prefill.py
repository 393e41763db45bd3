"""The oracle of attention_prefill: one query and one head at a time, straight from the definition."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from kernelpact.operators import oracle


@oracle("attention_prefill")
def attention_prefill(
    *, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, scale: float, causal: bool,
    window: int | None, softcap: float | None, sinks: Tensor | None,
) -> dict[str, Tensor]:  # fmt: skip
    """Give o[T, Hq, D] = Σ p v and its scale Σ p|v|, in float64.

    Shapes: q[T, Hq, D], k and v[T, Hkv, D], Hkv dividing Hq; query head h reads head h // (Hq/Hkv). Sequence b is
    tokens cu_seqlens[b] to cu_seqlens[b + 1]; it may be empty, and sees nothing of the others.
    Scores: scale · q·k; then softcap · tanh(score/softcap) unless softcap is None.
    Seen by query i: causal, keys i − window < j ≤ i; not causal, |i − j| < window; window None is no limit.
    sinks: None, or [Hq] logits that join the denominator and bring no value. A query that sees no key gives zeros.
    """
    q, k, v = q.double(), k.double(), v.double()
    tokens, heads, _ = q.shape
    group = heads // k.shape[1]
    bounds = cu_seqlens.tolist()
    first = [start for start, end in itertools.pairwise(bounds) for _ in range(start, end)]
    last = [end for start, end in itertools.pairwise(bounds) for _ in range(start, end)]
    outputs, scales = [], []
    for i in range(tokens):
        low, high = first[i], i + 1 if causal else last[i]
        if window is not None:
            low = max(low, i - window + 1)
            high = high if causal else min(high, i + window)
        for h in range(heads):
            keys, values = k[low:high, h // group], v[low:high, h // group]
            z = (keys * q[i, h]).sum(-1) * scale
            if softcap is not None:
                z = torch.tanh(z / softcap) * softcap
            sink = z.new_zeros(0) if sinks is None else sinks[h : h + 1].double()
            if low >= high:
                outputs.append(q[i, h] * 0)
                scales.append(torch.zeros_like(q[i, h]))
                continue
            top = torch.cat([z, sink]).detach().max()
            weights = torch.exp(z - top)
            weights = weights / (weights.sum() + torch.exp(sink - top).sum())
            outputs.append((weights[:, None] * values).sum(0))
            scales.append((weights[:, None] * values.abs()).sum(0).detach())
    if not outputs:
        return {"o": torch.zeros_like(q), "o_scale": torch.zeros_like(q)}
    return {"o": torch.stack(outputs).reshape(q.shape), "o_scale": torch.stack(scales).reshape(q.shape)}
