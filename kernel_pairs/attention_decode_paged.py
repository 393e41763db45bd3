"""attention_decode_paged: q[B, Hq, D], k_cache, v_cache[P, S, Hkv, D], block_table[B, M], seq_lens[B], scale, window,
softcap -> o[B, Hq, D].

One query a sequence, at position seq_len − 1. Position j lives in page block_table[b, j // S], slot j % S. Slots past
seq_len, pages no table names and table entries past the last page hold anything at all, −1 and NaN included, and must
not be read into the result. A sequence of length 0 gives zeros. Window and softcap as in attention_prefill.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelpact import KernelPair, register_pair

SPLIT = 32  # positions a program reads; fixed, so that a row's result never depends on its batch


def eager_attention_decode_paged(
    *, q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor, scale: float,
    window: int | None, softcap: float | None,
) -> dict[str, Tensor]:  # fmt: skip
    """K_train: gathers a sequence's keys, then one row of attention in float32, one rounding."""
    page, heads_kv = k_cache.shape[1], k_cache.shape[2]
    group = q.shape[1] // heads_kv
    rows = []
    for b, length in enumerate(seq_lens.tolist()):
        positions = torch.arange(0 if window is None else max(0, length - window), length, device=q.device)
        if not len(positions):
            rows.append(torch.zeros_like(q[b]))
            continue
        pages = block_table[b, positions // page].long()
        keys = k_cache[pages, positions % page].float().repeat_interleave(group, 1)
        values = v_cache[pages, positions % page].float().repeat_interleave(group, 1)
        scores = torch.einsum("hd,jhd->hj", q[b].float(), keys) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        rows.append(torch.einsum("hj,jhd->hd", torch.softmax(scores, -1), values).to(q.dtype))
    return {"o": torch.stack(rows) if rows else torch.zeros_like(q)}


@triton.jit
def _decode_split_kernel(
    q, k_cache, v_cache, block_table, seq_lens, partial, lse, scale, window, softcap, group, page, D, splits,
    q_b, q_h, q_d, k_p, k_s, k_h, k_d, v_p, v_s, v_h, v_d, table_b, table_m, lens_b,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SPLIT: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)  # int64 offsets throughout: an index times its stride may pass 2^31
    split = tl.program_id(2)
    length = tl.load(seq_lens + b * lens_b).to(tl.int64)
    j = (split * SPLIT + tl.arange(0, SPLIT)).to(tl.int64)
    d = tl.arange(0, SIZE).to(tl.int64)
    seen = j < length
    if WINDOW:
        seen = seen & (j >= length - window)
    pages = tl.load(block_table + b * table_b + (j // page) * table_m, mask=seen, other=0).to(tl.int64)
    inside = seen[:, None] & (d[None, :] < D)
    k_at = (
        k_cache + pages[:, None] * k_p + (j % page)[:, None] * k_s + (head // group) * k_h + d[None, :] * k_d
    )
    v_at = (
        v_cache + pages[:, None] * v_p + (j % page)[:, None] * v_s + (head // group) * v_h + d[None, :] * v_d
    )
    query = tl.load(q + b * q_b + head * q_h + d * q_d, mask=d < D, other=0.0).to(tl.float32)
    keys = tl.load(k_at, mask=inside, other=0.0).to(tl.float32)
    values = tl.load(v_at, mask=inside, other=0.0).to(tl.float32)
    scores = tl.sum(keys * query[None, :], 1) * scale
    if SOFTCAP:
        x = tl.exp(-2.0 * tl.abs(scores) / softcap)  # tanh, without overflow
        scores = softcap * tl.where(scores < 0, -1.0, 1.0) * ((1.0 - x) / (1.0 + x))
    scores = tl.where(seen, scores, float("-inf"))
    top = tl.max(scores, 0)
    finite = tl.where(top == float("-inf"), 0.0, top)  # a split that sees nothing
    p = tl.exp(scores - finite)
    total = tl.sum(p, 0)
    out = tl.sum(p[:, None] * values, 0) / tl.where(total == 0.0, 1.0, total)
    at = (b * tl.num_programs(1) + head) * splits + split
    tl.store(partial + at * D + d, out, mask=d < D)
    tl.store(
        lse + at, tl.where(total == 0.0, float("-inf"), finite + tl.log(tl.where(total == 0.0, 1.0, total)))
    )


@triton.jit
def _decode_merge_kernel(partial, lse, o, splits, D, SIZE: tl.constexpr):
    # One split after the other: empty ones at the end change nothing, so a row does not depend on the longest.
    at = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, SIZE)
    top = float("-inf")
    total = 0.0
    out = tl.zeros([SIZE], tl.float32)
    for split in range(0, splits):
        part = tl.load(lse + at * splits + split)
        new = tl.maximum(top, part)
        finite = tl.where(new == float("-inf"), 0.0, new)
        kept = tl.exp(top - finite)
        weight = tl.exp(part - finite)
        out = out * kept + weight * tl.load(partial + (at * splits + split) * D + d, mask=d < D, other=0.0)
        total = total * kept + weight
        top = new
    out = out / tl.where(total == 0.0, 1.0, total)
    tl.store(o + at * D + d, out.to(o.dtype.element_ty), mask=d < D)


def triton_attention_decode_paged(
    *, q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor, scale: float,
    window: int | None, softcap: float | None,
) -> dict[str, Tensor]:  # fmt: skip
    """K_inf: split-KV decode over the block table, merged by log-sum-exp."""
    batch, heads, size = q.shape
    page = k_cache.shape[1]
    o = torch.empty((batch, heads, size), dtype=q.dtype, device=q.device)
    if not o.numel():
        return {"o": o}
    splits = max(1, triton.cdiv(int(seq_lens.max()), SPLIT))
    partial = torch.empty((batch, heads, splits, size), dtype=torch.float32, device=q.device)
    lse = torch.empty((batch, heads, splits), dtype=torch.float32, device=q.device)
    width = triton.next_power_of_2(size)
    _decode_split_kernel[(batch, heads, splits)](
        q, k_cache, v_cache, block_table, seq_lens, partial, lse, float(scale), window or 0, float(softcap or 1.0),
        heads // k_cache.shape[2], page, size, splits, *q.stride(), *k_cache.stride(), *v_cache.stride(),
        *block_table.stride(), seq_lens.stride(0),
        WINDOW=window is not None, SOFTCAP=softcap is not None, SPLIT=SPLIT, SIZE=width,
    )  # fmt: skip
    _decode_merge_kernel[(batch * heads,)](partial, lse, o, splits, size, SIZE=width)
    return {"o": o}


def gathered_attention_decode_paged(
    *, q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor, scale: float,
    window: int | None, softcap: float | None,
) -> dict[str, Tensor]:  # fmt: skip
    """K_inf: PyTorch's scaled_dot_product_attention over gathered pages; no softcap."""
    page = k_cache.shape[1]
    o = torch.zeros_like(q)
    for b, length in enumerate(seq_lens.tolist()):
        positions = torch.arange(0 if window is None else max(0, length - window), length, device=q.device)
        if not len(positions):
            continue
        at = block_table[b, positions // page].long(), positions % page
        keys, values = (cache[at].float().transpose(0, 1)[None] for cache in (k_cache, v_cache))
        out = torch.nn.functional.scaled_dot_product_attention(
            q[b].float()[None, :, None], keys, values, scale=scale, enable_gqa=True
        )
        o[b] = out[0, :, 0].to(q.dtype)
    return {"o": o}


register_pair(
    KernelPair(
        name="attention_decode_paged/triton",
        op="attention_decode_paged",
        train=eager_attention_decode_paged,
        inf=triton_attention_decode_paged,
        edges={"kv_len": (SPLIT,)},
    )
)
register_pair(
    KernelPair(
        name="attention_decode_paged/gathered",
        op="attention_decode_paged",
        train=eager_attention_decode_paged,
        inf=gathered_attention_decode_paged,
        domain={"softcap": [None]},
    )
)
