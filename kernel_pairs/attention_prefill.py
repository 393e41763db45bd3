"""attention_prefill: q[T, Hq, D], k, v[T, Hkv, D], cu_seqlens[B+1], scale, causal, window, softcap, sinks -> o as q.

Sequences are packed; query head h reads key head h // (Hq/Hkv). Scores are scale · q·k, then softcap · tanh(s/softcap)
where there is a softcap. Causal: key j is seen by query i when j ≤ i, and i − j < window where there is a window;
not causal: |i − j| < window. `sinks`[Hq] are logits that join the denominator of each row. A query that sees no key
gives zeros.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelpact import KernelPair, register_pair

QUERIES, KEYS = 16, 32


def eager_attention_prefill(
    *, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, scale: float, causal: bool,
    window: int | None, softcap: float | None, sinks: Tensor | None,
) -> dict[str, Tensor]:  # fmt: skip
    """K_train: a sequence at a time, whole score matrices in float32, one rounding."""
    group = q.shape[1] // k.shape[1]
    pieces = []
    for start, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        queries = q[start:end].float().transpose(0, 1)
        keys = k[start:end].float().transpose(0, 1).repeat_interleave(group, 0)
        values = v[start:end].float().transpose(0, 1).repeat_interleave(group, 0)
        scores = queries @ keys.transpose(1, 2) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        hidden = ~_visible(end - start, causal, window, q.device)
        scores = scores.masked_fill(hidden, float("-inf"))
        if sinks is not None:
            scores = torch.cat([scores, sinks.float()[:, None, None].expand(-1, end - start, 1)], -1)
        p = torch.softmax(scores, -1)[..., : end - start].masked_fill(hidden, 0.0)  # a row that sees no key
        pieces.append((p @ values).transpose(0, 1).to(q.dtype))
    return {"o": torch.cat(pieces) if pieces else q.clone()}


def _visible(length: int, causal: bool, window: int | None, device: torch.device) -> Tensor:
    i = torch.arange(length, device=device)
    distance = i[:, None] - i[None, :]
    seen = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    return seen if window is None else seen & (distance.abs() < window)


@triton.jit
def _prefill_kernel(
    q, k, v, o, cu_seqlens, sinks, ends_s, sinks_s, scale, window, softcap, group, D,
    q_t, q_h, q_d, k_t, k_h, k_d, v_t, v_h, v_d, o_t, o_h,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    block = tl.program_id(1)
    head = tl.program_id(2).to(tl.int64)  # an index times its stride may pass 2^31
    first = tl.load(cu_seqlens + sequence * ends_s).to(tl.int64)
    length = tl.load(cu_seqlens + (sequence + 1) * ends_s).to(tl.int64) - first
    i = block * QUERIES + tl.arange(0, QUERIES)
    d = tl.arange(0, SIZE).to(tl.int64)
    if block * QUERIES < length:
        rows = (i[:, None] < length) & (d[None, :] < D)
        q_at = q + (first + i[:, None]) * q_t + head * q_h + d[None, :] * q_d
        queries = tl.load(q_at, mask=rows, other=0.0).to(tl.float32)
        top = tl.full([QUERIES], float("-inf"), tl.float32)
        total = tl.zeros([QUERIES], tl.float32)
        if SINKS:
            top = tl.zeros([QUERIES], tl.float32) + tl.load(sinks + head * sinks_s).to(tl.float32)
            total += 1.0  # the sink's own share
        out = tl.zeros([QUERIES, SIZE], tl.float32)
        low = 0
        high = length
        if CAUSAL:
            high = tl.minimum(length, (block + 1) * QUERIES)
        if WINDOW:
            low = tl.maximum(0, block * QUERIES - window + 1) // KEYS * KEYS
            if not CAUSAL:
                high = tl.minimum(length, (block + 1) * QUERIES + window)
        for start in range(low, high, KEYS):
            j = start + tl.arange(0, KEYS)
            columns = (j[:, None] < length) & (d[None, :] < D)
            k_at = k + (first + j[:, None]) * k_t + (head // group) * k_h + d[None, :] * k_d
            v_at = v + (first + j[:, None]) * v_t + (head // group) * v_h + d[None, :] * v_d
            keys = tl.load(k_at, mask=columns, other=0.0).to(tl.float32)
            values = tl.load(v_at, mask=columns, other=0.0).to(tl.float32)
            scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
            if SOFTCAP:
                x = tl.exp(-2.0 * tl.abs(scores) / softcap)  # tanh, without overflow
                scores = softcap * tl.where(scores < 0, -1.0, 1.0) * ((1.0 - x) / (1.0 + x))
            seen = j[None, :] < length
            if CAUSAL:
                seen = seen & (j[None, :] <= i[:, None])
            if WINDOW:
                seen = seen & (i[:, None] - j[None, :] < window) & (j[None, :] - i[:, None] < window)
            scores = tl.where(seen, scores, float("-inf"))
            new = tl.maximum(top, tl.max(scores, 1))
            finite = tl.where(new == float("-inf"), 0.0, new)  # no key seen yet
            kept = tl.exp(top - finite)
            p = tl.exp(scores - finite[:, None])
            total = total * kept + tl.sum(p, 1)
            out = out * kept[:, None] + tl.dot(p, values, input_precision="ieee")
            top = new
        out = out / tl.where(total == 0.0, 1.0, total)[:, None]
        o_at = o + (first + i[:, None]) * o_t + head * o_h + d[None, :]
        tl.store(o_at, out.to(o.dtype.element_ty), mask=rows)


def triton_attention_prefill(
    *, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, scale: float, causal: bool,
    window: int | None, softcap: float | None, sinks: Tensor | None,
) -> dict[str, Tensor]:  # fmt: skip
    """K_inf: flash attention over packed sequences; online softmax, float32 accumulators."""
    tokens, heads, size = q.shape
    o = torch.empty((tokens, heads, size), dtype=q.dtype, device=q.device)
    lengths = cu_seqlens[1:] - cu_seqlens[:-1]
    longest = int(lengths.max()) if len(lengths) else 0
    if longest:
        _prefill_kernel[(len(lengths), triton.cdiv(longest, QUERIES), heads)](
            q, k, v, o, cu_seqlens, q if sinks is None else sinks, cu_seqlens.stride(0),
            0 if sinks is None else sinks.stride(0), float(scale),
            0 if window is None else min(window, longest), float(softcap or 1.0),
            heads // k.shape[1], size, *q.stride(), *k.stride(), *v.stride(), o.stride(0), o.stride(1),
            CAUSAL=causal, WINDOW=window is not None, SOFTCAP=softcap is not None, SINKS=sinks is not None,
            QUERIES=QUERIES, KEYS=KEYS, SIZE=max(16, triton.next_power_of_2(size)),
        )  # fmt: skip
    return {"o": o}


def sdpa_attention_prefill(
    *, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, scale: float, causal: bool,
    window: int | None, softcap: float | None, sinks: Tensor | None,
) -> dict[str, Tensor]:  # fmt: skip
    """K_inf: PyTorch's scaled_dot_product_attention, a sequence at a time; no softcap, no sinks."""
    pieces = []
    for start, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        if start == end:
            continue
        sides = (side[start:end].transpose(0, 1).float()[None] for side in (q, k, v))
        seen = _visible(end - start, causal, window, q.device)
        none = ~seen.any(-1)[:, None]
        out = torch.nn.functional.scaled_dot_product_attention(
            *sides, attn_mask=seen, scale=scale, enable_gqa=True
        )
        pieces.append(out[0].masked_fill(none, 0.0).transpose(0, 1).to(q.dtype))
    return {"o": torch.cat(pieces) if pieces else q.clone()}


register_pair(
    KernelPair(
        name="attention_prefill/triton",
        op="attention_prefill",
        train=eager_attention_prefill,
        inf=triton_attention_prefill,
        edges={"length": (QUERIES, KEYS)},
    )
)
register_pair(
    KernelPair(
        name="attention_prefill/sdpa",
        op="attention_prefill",
        train=eager_attention_prefill,
        inf=sdpa_attention_prefill,
        domain={"softcap": [None], "sinks": [False]},
    )
)
