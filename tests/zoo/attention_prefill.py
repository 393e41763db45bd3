"""Faults of packed prefill attention: q [T, Hq, D], k, v [T, Hkv, D], cu_seqlens [B+1] -> o [T, Hq, D].

Every specimen is the same sound kernel with one of its parts replaced; the parts are the keyword arguments of
`_attend`.
"""

from __future__ import annotations

import functools
import itertools
import math

import torch

from kernel_pairs.attention_prefill import eager_attention_prefill

from . import benign, fault

_fault = functools.partial(fault, "attention_prefill", eager_attention_prefill)
_benign = functools.partial(benign, "attention_prefill", eager_attention_prefill)

_BLOCK = 16


def _visible(i, j, start, causal, window):
    """Say which keys j (a row) the queries i (a column) see, both counted within their sequence."""
    seen = j <= i if causal else torch.ones(len(i), j.shape[1], dtype=torch.bool)
    return seen if window is None else seen & ((i - j).abs() < window)


def _scores(q, k, scale, softcap):
    """Give softcap(scale q·k): [Hq, Tq, Tk] in fp32."""
    scores = torch.einsum("ihd,jhd->hij", q.float(), k.float()) * scale
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def _by_group(cache, heads):
    """Give every query head its key head, h // group: [T, Hq, D]."""
    return cache[:, torch.arange(heads) // (heads // cache.shape[1])]


def _weigh(scores, v, sinks):
    """Give softmax(scores with sinks) v: [Tq, Hq, D] in fp32; zeros where nothing is seen."""
    extra = torch.full(scores.shape[:2], -math.inf)
    if sinks is not None:
        extra = sinks.float()[:, None].expand_as(extra)
    top = torch.maximum(scores.amax(-1), extra)
    top = top.masked_fill(top == -math.inf, 0.0)[..., None]
    exps = (scores - top).exp()
    total = exps.sum(-1, keepdim=True) + (extra[..., None] - top).exp()
    p = exps / total.masked_fill(total == 0, 1.0)
    return torch.einsum("hij,jhd->ihd", p, v.float())


def _attend(
    inputs,
    *,
    visible=_visible,
    scores=_scores,
    by_group=_by_group,
    weigh=_weigh,
    output=torch.zeros_like,
    before=0,
):
    """Attend within each sequence. before: rows of the preceding sequence that its keys are made to include."""
    q, k, v, bounds = inputs["q"], inputs["k"], inputs["v"], inputs["cu_seqlens"].tolist()
    o = output(q)
    for start, stop in itertools.pairwise(bounds):
        if start == stop:
            continue
        first = max(start - before, 0)
        keys, values = (by_group(side[first:stop], q.shape[1]) for side in (k, v))
        i, j = torch.arange(stop - start)[:, None], torch.arange(first - start, stop - start)[None]
        seen = visible(i, j, start, inputs["causal"], inputs["window"])
        s = scores(q[start:stop], keys, inputs["scale"], inputs["softcap"]).masked_fill(~seen, -math.inf)
        o[start:stop] = weigh(s, values, inputs["sinks"]).to(q.dtype)
    return o


@_fault("float32")
def window_one_too_wide(**inputs):
    """Sees window + 1 keys (Z29 mlx-lm#390)."""
    window = inputs["window"]
    return _attend({**inputs, "window": None if window is None else window + 1})


@_fault("float32")
def window_symmetrical(**inputs):
    """Looks ahead as far as back, where the window should look back only (Z30 LightLLM#1311)."""

    def both_ways(i, j, start, causal, window):
        return _visible(i, j, start, causal and window is None, window)

    return _attend(inputs, visible=both_ways)


@_fault("float32")
def window_accepted_and_not_used(**inputs):
    """Takes the window and attends to everything before (Z31 tvm#18630, Z27 hip-ep#144)."""
    return _attend({**inputs, "window": None})


@_fault("float32")
def rows_past_the_window_unwritten(**inputs):
    """Writes the first `window` rows of a longer prompt, and leaves the others as allocated (Z28 nntrainer#3989)."""
    o = torch.empty(inputs["q"].shape, dtype=inputs["q"].dtype)
    bounds = inputs["cu_seqlens"].tolist()
    whole = _attend(inputs)
    for start, stop in itertools.pairwise(bounds):
        last = stop if inputs["window"] is None else min(stop, start + inputs["window"])
        o[start:last] = whole[start:last]
    return o


@_fault("float32")
def causal_mask_one_too_far(**inputs):
    """Lets a query see the key after it (Z29, kind)."""

    def ahead(i, j, start, causal, window):
        seen = j <= i + 1 if causal else torch.ones(len(i), j.shape[1], dtype=torch.bool)
        return seen if window is None else seen & ((i - j).abs() < window)

    return _attend(inputs, visible=ahead)


@_fault("float32")
def causal_mask_from_the_packed_start(**inputs):
    """Counts queries from the start of the packed batch: the second sequence sees ahead (Z33 inference-sim#196)."""

    def packed(i, j, start, causal, window):
        return _visible(i + start, j, start, causal, None) & _visible(i, j, start, False, window)

    return _attend(inputs, visible=packed)


@_fault("float32")
def sequences_leak(**inputs):
    """Lets a sequence see the last key of the one packed before it (Z43 fla#1184, kind)."""
    return _attend(inputs, before=1)


@_fault("float32")
def softcap_before_scale(**inputs):
    """Caps q·k and scales afterwards (Z17, kind)."""

    def capped_first(q, k, scale, softcap):
        return _scores(q, k, 1.0, softcap) * scale

    return _attend(inputs, scores=capped_first)


@_fault("float32")
def softcap_accepted_and_not_used(**inputs):
    """Takes the softcap and does not pass it on (Z17 Liger#243)."""
    return _attend({**inputs, "softcap": None})


@_fault("float32")
def scale_accepted_and_not_used(**inputs):
    """Scales by 1/sqrt(D) whatever scale says (Z17 Liger#243)."""
    return _attend({**inputs, "scale": inputs["q"].shape[-1] ** -0.5})


@_fault("float32")
def sinks_accepted_and_not_used(**inputs):
    """Leaves the sinks out of the denominator (Z17 Liger#243)."""
    return _attend({**inputs, "sinks": None})


@_fault("float32")
def heads_mapped_by_modulo(**inputs):
    """Gives query head h the key head h mod Hkv: right with one key head, or as many as query heads (Z35, kind)."""

    def modulo(cache, heads):
        return cache[:, torch.arange(heads) % cache.shape[1]]

    return _attend(inputs, by_group=modulo)


@_fault()
def scores_in_half(**inputs):
    """Stores scores in the inputs' dtype before the softmax (Z22 genlm-backend#66, kind)."""

    def rounded(q, k, scale, softcap):
        return _scores(q, k, scale, softcap).to(q.dtype).float()

    return _attend(inputs, scores=rounded)


@_fault()
def max_not_subtracted(**inputs):
    """Exponentiates scores as they are (Z26, kind)."""

    def raw(scores, v, sinks):
        total = scores.exp().sum(-1, keepdim=True) + (
            0 if sinks is None else sinks.float().exp()[:, None, None]
        )
        return torch.einsum("hij,jhd->ihd", scores.exp() / total, v.float())

    return _attend(inputs, weigh=raw)


@_fault()
def running_max_starts_at_zero(**inputs):
    """Shifts by max(0, scores): a row that is all far below it divides 0 by 0 (Z39 vllm#31478, kind)."""

    def from_zero(scores, v, sinks):
        top = scores.amax(-1, keepdim=True).clamp(min=0.0)
        exps = (scores - top).exp()
        total = exps.sum(-1, keepdim=True)
        if sinks is not None:
            total = total + (sinks.float()[:, None, None] - top).exp()
        return torch.einsum("hij,jhd->ihd", exps / total, v.float())

    return _attend(inputs, weigh=from_zero)


@_fault("float32")
def masked_block_minus_infinity(**inputs):
    """Takes -inf from -inf while the window masks all of a row's first key block (Z26 vllm#4405)."""

    def online(scores, v, sinks):
        return _online(scores, v, sinks, guard=False)

    return _attend(inputs, weigh=online)


@_fault("float32")
def key_tail_unmasked(**inputs):
    """Counts the zero keys that pad the last block of a full attention into the denominator (Z48)."""

    def padded(scores, v, sinks):
        tail = -scores.shape[-1] % _BLOCK
        pad = torch.nn.functional.pad
        return _weigh(pad(scores, (0, tail)), pad(v, (0, 0, 0, 0, 0, tail)), sinks)

    return _attend(inputs, weigh=padded)


@_fault("float32", "invariance")
def key_split_chosen_by_batch(**inputs):
    """Splits keys in two when few sequences leave cores idle (Z45 vllm#27433)."""
    parts = 2 if len(inputs["cu_seqlens"]) <= 2 else 1

    def split(scores, v, sinks):
        return _online(scores, v, sinks, block=-(-scores.shape[-1] // parts))

    return _attend(inputs, weigh=split)


@_fault("float32")
def strides_ignored(**inputs):
    """Reads a strided q as if it were contiguous (Z46 pytorch#147828)."""
    q = inputs["q"]
    flat = q.as_strided(q.shape, (q.shape[1] * q.shape[2], q.shape[2], 1), q.storage_offset())
    return _attend({**inputs, "q": flat}, output=lambda q: torch.zeros(q.shape, dtype=q.dtype))


def _online(scores, v, sinks, block=_BLOCK, guard=True):
    """Give softmax(scores) v in one pass over blocks of keys. guard: never take -inf from -inf."""
    top = torch.full((*scores.shape[:2], 1), -math.inf)
    total, out = torch.zeros_like(top), torch.zeros(*scores.shape[:2], v.shape[-1])
    if sinks is not None:
        top, total = sinks.float()[:, None, None].expand_as(top), torch.ones_like(top)
    for piece, values in zip(scores.split(block, -1), v.float().split(block, 0), strict=True):
        before, top = top, torch.maximum(top, piece.amax(-1, keepdim=True))
        shift = top.masked_fill(top == -math.inf, 0.0) if guard else top
        exps, kept = (piece - shift).exp(), (before - shift).exp()
        total = total * kept + exps.sum(-1, keepdim=True)
        out = out * kept + torch.einsum("hij,jhd->hid", exps, values)
    return (out / total.masked_fill(total == 0, 1.0)).transpose(0, 1)


@_benign()
def online_over_key_blocks(**inputs):
    """Takes the softmax in one pass over blocks of 16 keys."""
    return _attend(inputs, weigh=_online)


@_benign()
def double_precision(**inputs):
    """Works in double precision, keys in reversed order, and rounds once."""

    def scores(q, k, scale, softcap):
        s = torch.einsum("ihd,jhd->hij", q.double(), k.double()) * scale
        return s if softcap is None else softcap * torch.tanh(s / softcap)

    def weigh(s, v, sinks):
        sink = torch.full((*s.shape[:2], 1), -math.inf, dtype=torch.float64)
        if sinks is not None:
            sink = sinks.double()[:, None, None].expand_as(sink)
        p = (
            torch.cat([sink, s.flip(-1)], -1).softmax(-1)[..., 1:].nan_to_num()
        )  # a row that sees nothing: zeros
        return torch.einsum("hij,jhd->ihd", p, v.double().flip(0))

    return _attend(inputs, scores=scores, weigh=weigh)
