"""Faults of paged decode attention: q [B, Hq, D], k_cache, v_cache [P, S, Hkv, D], block_table [B, M] -> o.

Every specimen is the same sound kernel with one of its parts replaced; the parts are the keyword arguments of
`_decode`.
"""

from __future__ import annotations

import functools
import math

import torch

from kernel_pairs.attention_decode_paged import eager_attention_decode_paged

from . import benign, fault

_fault = functools.partial(fault, "attention_decode_paged", eager_attention_decode_paged)
_benign = functools.partial(benign, "attention_decode_paged", eager_attention_decode_paged)

_SPLIT = 16


def _first_seen(length, window):
    """Give the first position that the newest token sees."""
    return 0 if window is None else max(0, length - window)


def _gather(cache, table, positions):
    """Read the rows of `positions` [N] through one sequence's table [M]: [N, Hkv, D]."""
    page = cache.shape[1]
    return cache[table[positions // page].long(), positions % page]


def _by_group(rows, heads):
    """Give every query head its key head, h // group: [N, Hq, D]."""
    return rows[:, torch.arange(heads) // (heads // rows.shape[1])]


def _scores(q, k, scale, softcap):
    """Give softcap(scale q·k): [Hq, N] in fp32."""
    scores = torch.einsum("hd,jhd->hj", q.float(), k.float()) * scale
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def _weigh(scores, v):
    """Give softmax(scores) v: [Hq, D] in fp32."""
    return torch.einsum("hj,jhd->hd", scores.softmax(-1), v.float())


def _decode(
    inputs, *, first=_first_seen, gather=_gather, by_group=_by_group, scores=_scores, weigh=_weigh,
    length_of=lambda length: length, output=torch.zeros_like,
):  # fmt: skip
    """Attend from the newest token of each sequence to what it sees."""
    q, table = inputs["q"], inputs["block_table"]
    o = output(q)
    for b, length in enumerate(inputs["seq_lens"].tolist()):
        positions = torch.arange(first(length, inputs["window"]), length_of(length))
        if length == 0 or not len(positions):
            continue
        k, v = (
            by_group(gather(cache, table[b], positions), q.shape[1])
            for cache in (inputs["k_cache"], inputs["v_cache"])
        )
        o[b] = weigh(scores(q[b], k, inputs["scale"], inputs["softcap"]), v).to(q.dtype)
    return o


@_fault("float32")
def window_accepted_and_not_used(**inputs):
    """Applies the window in prefill and not in decode (Z27 hip-ep#144)."""
    return _decode({**inputs, "window": None})


@_fault("float32")
def window_one_too_wide(**inputs):
    """Sees window + 1 keys (Z29 mlx-lm#390)."""
    return _decode(inputs, first=lambda length, window: _first_seen(length, window and window + 1))


@_fault("float32")
def window_rounded_to_pages(**inputs):
    """Starts at the page in which the window starts, and masks nothing within it (Z29, Z31, kind)."""
    page = inputs["k_cache"].shape[1]
    return _decode(inputs, first=lambda length, window: _first_seen(length, window) // page * page)


@_fault("float32")
def pages_read_as_contiguous(**inputs):
    """Reads the cache from the first page on, as if the pages followed one another (Z32 ssd#23)."""

    def contiguous(cache, table, positions):
        page = cache.shape[1]
        return cache[(table[0].long() + positions // page) % len(cache), positions % page]

    return _decode(inputs, gather=contiguous)


@_fault("float32")
def second_page_stale(**inputs):
    """Reads the first page twice in place of the second: the other pages dilute it (Z35 rocm-libraries#6054, Z34)."""

    def stale(cache, table, positions):
        kept = table.clone()
        kept[1:2] = table[0]
        return _gather(cache, kept, positions)

    return _decode(inputs, gather=stale)


@_fault("float32")
def page_size_hard_coded(**inputs):
    """Finds page and slot for pages of 16, whatever the cache's (Z33, Z35, kind)."""

    def sixteen(cache, table, positions):
        pages = table[(positions // 16).clamp(max=len(table) - 1)].long().clamp(min=0)
        return cache[pages, (positions % 16).clamp(max=cache.shape[1] - 1)]

    return _decode(inputs, gather=sixteen)


@_fault("float32")
def unused_entry_dereferenced(**inputs):
    """Reads the page of an entry −1 and gives it weight 0: memory before the cache may be NaN (Z37 sparkinfer#152)."""

    def whole_table(cache, table, positions):
        before = torch.full_like(cache[:1], math.nan)  # page −1 is whatever lies in front of the cache
        known = torch.cat([cache, before])
        every = torch.arange(len(table) * cache.shape[1])
        rows = _gather(known, table, every)
        unused = -(-(int(positions.max()) + 1) // cache.shape[1]) * cache.shape[1]
        return torch.cat([_gather(cache, table, positions), rows[unused:]])

    def masked(scores, v):
        # The mask hides the scores, not the values: 0 · NaN is NaN.
        return _weigh(scores.where(scores.isfinite(), -math.inf), v)

    return _decode(inputs, gather=whole_table, weigh=masked)


@_fault("float32")
def last_page_tail_unmasked(**inputs):
    """Reads the last page to its end, slots that nothing was written to included (Z48, Z34)."""
    page = inputs["k_cache"].shape[1]
    return _decode(inputs, length_of=lambda length: -(-length // page) * page)


@_fault("float32")
def newest_token_unseen(**inputs):
    """Attends to what was cached before this step: the newest key is missing (Z33, Z34, kind)."""
    return _decode(inputs, length_of=lambda length: max(length - 1, 1))


@_fault("float32")
def empty_sequences_unwritten(**inputs):
    """Skips sequences of length 0 and leaves their rows as allocated (Z28 nntrainer#3989, kind)."""
    return _decode(inputs, output=lambda q: torch.empty(q.shape, dtype=q.dtype))


@_fault("float32")
def empty_splits_merged_to_nan(**inputs):
    """Merges splits in pairs; two empty ones, both with LSE −inf, give NaN (Z25 flashinfer#4051)."""

    def four_splits(scores, v):
        size = max(_SPLIT, -(-scores.shape[-1] // 4))
        states = [_split(scores[:, at : at + size], v[at : at + size]) for at in range(0, 4 * size, size)]
        return _merge(_merge(*states[:2]), _merge(*states[2:]))[0]

    return _decode(inputs, weigh=four_splits)


@_fault("float32")
def splits_averaged(**inputs):
    """Merges two splits by their lengths, not by their LSE (Z25, kind)."""

    def by_length(scores, v):
        states = [(_split(s, x)[0], s.shape[-1]) for s, x in _pieces(scores, v, _SPLIT)]
        return sum(o * n for o, n in states) / scores.shape[-1]

    return _decode(inputs, weigh=by_length)


@_fault("float32", "invariance")
def splits_chosen_by_batch(**inputs):
    """Sizes splits by the longest sequence of the batch: a row's bits depend on its batch (Z45 vllm#27433)."""
    size = max(1, -(-int(inputs["seq_lens"].max()) // 4))

    def split(scores, v):
        states = [_split(s, x) for s, x in _pieces(scores, v, size)]
        return functools.reduce(_merge, states)[0]

    return _decode(inputs, weigh=split)


@_fault("float32")
def heads_mapped_by_modulo(**inputs):
    """Gives query head h the key head h mod Hkv (Z35, kind)."""
    return _decode(inputs, by_group=lambda rows, heads: rows[:, torch.arange(heads) % rows.shape[1]])


@_fault("float32")
def softcap_accepted_and_not_used(**inputs):
    """Takes the softcap and does not pass it on (Z17 Liger#243)."""
    return _decode({**inputs, "softcap": None})


@_fault("float32")
def softcap_before_scale(**inputs):
    """Caps q·k and scales afterwards (Z17, kind)."""
    return _decode(inputs, scores=lambda q, k, scale, softcap: _scores(q, k, 1.0, softcap) * scale)


@_fault("float32")
def scale_accepted_and_not_used(**inputs):
    """Scales by 1/sqrt(D) whatever scale says (Z17 Liger#243)."""
    return _decode({**inputs, "scale": inputs["q"].shape[-1] ** -0.5})


@_fault()
def cache_rounded_to_fp8(**inputs):
    """Stores keys and values in e4m3 without a scale: decode differs from prefill (Z38 vllm#54035, sglang#25790)."""

    def rounded(cache, table, positions):
        rows = _gather(cache, table, positions).float()
        return rows.clamp(-448, 448).to(torch.float8_e4m3fn).float()

    return _decode(inputs, gather=rounded)


@_fault("float32")
def page_offset_wraps(**inputs):
    """Keeps page times page size in 8 bits: wraps at slot 128, as int32 does in a large cache (Z36 vllm#50427)."""

    def wrapped(cache, table, positions):
        page = cache.shape[1]
        slot = (table[positions // page].long() * page).to(torch.int8).long() + positions % page
        return cache.flatten(0, 1)[slot % (len(cache) * page)]

    return _decode(inputs, gather=wrapped)


@_fault()
def running_max_starts_at_zero(**inputs):
    """Shifts by max(0, scores): a row that is all far below it divides 0 by 0 (Z39 vllm#31478, kind)."""

    def from_zero(scores, v):
        exps = (scores - scores.amax(-1, keepdim=True).clamp(min=0.0)).exp()
        return torch.einsum("hj,jhd->hd", exps / exps.sum(-1, keepdim=True), v.float())

    return _decode(inputs, weigh=from_zero)


def _pieces(scores, v, size):
    return zip(scores.split(size, -1), v.split(size, 0), strict=True)


def _split(scores, v):
    """Give a split's output [Hq, D] and LSE [Hq, 1]; an empty split has zeros and −inf."""
    if not scores.shape[-1]:
        return torch.zeros(scores.shape[0], v.shape[-1]), torch.full((scores.shape[0], 1), -math.inf)
    return _weigh(scores, v), scores.logsumexp(-1, keepdim=True)


def _merge(one, two):
    """Merge two splits by their LSE; NaN where both are empty."""
    top = torch.maximum(one[1], two[1])
    weights = [(lse - top).exp() for _, lse in (one, two)]
    total = weights[0] + weights[1]
    return (one[0] * weights[0] + two[0] * weights[1]) / total, top + total.log()


@_benign()
def splits_merged_in_order(**inputs):
    """Splits every sequence into runs of 16 keys and merges them in order."""

    def split(scores, v):
        return functools.reduce(_merge, [_split(s, x) for s, x in _pieces(scores, v, _SPLIT)])[0]

    return _decode(inputs, weigh=split)


@_benign()
def keys_in_reversed_order(**inputs):
    """Reads the keys last to first, in double precision, and rounds once."""

    def scores(q, k, scale, softcap):
        s = torch.einsum("hd,jhd->hj", q.double(), k.double()) * scale
        return s if softcap is None else softcap * torch.tanh(s / softcap)

    def weigh(s, v):
        return torch.einsum("hj,jhd->hd", s.softmax(-1), v.double())

    def backwards(cache, table, positions):
        return _gather(cache, table, positions.flip(0))

    return _decode(inputs, gather=backwards, scores=scores, weigh=weigh)
