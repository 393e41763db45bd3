"""Divergence of two logit tensors in one Triton kernel: the CUDA path.

One program a row reads both logit rows twice. The first pass keeps running maxima, partition sums and
Σ e^a·expm1(δ − δ_head) beside them, rescaled whenever a likelier token turns up, so that the
log-partition difference of two rows that hardly differ keeps its digits. The second sums the non-negative
terms of `blocked._Block._direct`.

Logits are loaded in their own dtype, converted once, and computed on in float64: the terms of a row with
a drift of 1e-6 need more than float32 has, and one pass cannot know the row's centre beforehand as the
blocked path does. Nothing here uses libdevice, dynamic loop bounds or a NaN-propagating reduction, which
Triton's interpreter and compiler treat differently (DESIGN.md section 8).
"""

# ruff: noqa: ANN001, ANN202, N803, N806 - arguments of Triton functions are tensors of the kernel language
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelpact.divergence.blocked import compare_blocked
from kernelpact.divergence.metrics import Columns, limits

# What the kernel stores, one float64 a row each, in this order.
_COLUMNS = (
    "xmax", "ymax", "hi", "lo", "center", "shift", "bad", "lost_inf", "lost_train", "agree",
    "rest", "rest_train", "sum_a", "sum_b", "tv", "kl", "reverse_kl", "js", "hellinger2", "chi2", "second",
)  # fmt: skip
_NARROW = (torch.float16, torch.bfloat16, torch.float32)
_MAX_BLOCK = 1024


@triton.jit
def _expm1(z):
    """exp(z) − 1 in float64, relative error below 1e-13; held at exp(300), beyond which nothing is read."""
    near = tl.abs(z) < 1e-2
    u = tl.where(near, z, 0.0)
    series = u * (1.0 + u / 2.0 * (1.0 + u / 3.0 * (1.0 + u / 4.0 * (1.0 + u / 5.0 * (1.0 + u / 6.0)))))
    return tl.where(near, series, tl.exp(tl.minimum(z, 300.0)) - 1.0)


@triton.jit
def _log1p(z):
    """ln(1 + z) in float64, relative error below 1e-13; the series is that of 2·atanh(z/(2 + z))."""
    h = z / (2.0 + z)
    series = 2.0 * h * (1.0 + h * h * (1.0 / 3.0 + h * h * (1.0 / 5.0 + h * h / 7.0)))
    return tl.where(tl.abs(z) < 1e-2, series, tl.log(1.0 + z))


@triton.jit
def _load(pointer, offsets, stride, inside, WIDE: tl.constexpr):
    """One block of logits as float64, −inf outside the row; narrow floats by way of float32."""
    raw = tl.load(pointer + offsets.to(tl.int64) * stride, mask=inside, other=float("-inf"))
    if WIDE:
        return raw.to(tl.float64)
    return raw.to(tl.float32).to(tl.float64)


@triton.jit
def _grow(z, offsets, inside, top, head, rest, moment, inverse, BIG: tl.constexpr):
    """One block's share of a partition sum.

    Returns the new maximum, its index, Σ e^a without that token, Σ e^a·a, the factor by which what was
    summed before shrinks, and e^a of the block.
    """
    best = tl.max(z, 0)
    better = best > top
    new_top = tl.where(better, best, top)
    where_best = tl.min(tl.where((z == best) & inside, offsets, BIG), 0)
    new_head = tl.where(better, where_best, head)
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    present = z > float("-inf")
    a = (tl.where(present, z, base) - base) * inverse
    e = tl.where(present, tl.exp(a), 0.0)
    begun = top > float("-inf")
    step = tl.where(begun, (tl.where(begun, top, base) - base) * inverse, 0.0)
    shrink = tl.where(begun, tl.exp(step), 0.0)
    total = rest + tl.where(begun, 1.0, 0.0)
    moment = shrink * (moment + step * total) + tl.sum(e * a, 0)
    rest = tl.where(better, total * shrink, rest) + tl.sum(tl.where(offsets == new_head, 0.0, e), 0)
    return new_top, new_head, rest, moment, shrink, e


@triton.jit
def _divergence_kernel(
    train, inf, out, inverse_pointer, V, T, train_row, train_col, inf_row, inf_col,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, WIDE_TRAIN: tl.constexpr, WIDE_INF: tl.constexpr,
):  # fmt: skip
    """Sums of one row of [T, V] logits into column `row` of out [len(_COLUMNS), T]."""
    row = tl.program_id(0).to(tl.int64)
    x_row = train + row * train_row
    y_row = inf + row * inf_row
    inverse = tl.load(inverse_pointer)  # from memory: a float argument would be rounded to float32
    zero = inverse * 0.0
    index = tl.arange(0, BLOCK)
    BIG: tl.constexpr = BLOCK * BLOCKS

    xmax, ymax, hi, lo = zero - float("inf"), zero - float("inf"), zero - float("inf"), zero + float("inf")
    rest_train, rest, sum_b, sum_a = zero, zero, zero, zero
    center, growth, lost_mass = zero, zero, zero
    bad, lost_inf, lost_train = zero, zero, zero
    top = tl.program_id(0) * 0
    head = tl.program_id(0) * 0
    for i in range(BLOCKS):
        offsets = i * BLOCK + index
        inside = offsets < V
        x = _load(x_row, offsets, train_col, inside, WIDE_TRAIN)
        y = _load(y_row, offsets, inf_col, inside, WIDE_INF)
        broken = (x != x) | (y != y) | (x == float("inf")) | (y == float("inf"))
        bad += tl.sum(tl.where(broken, 1.0, 0.0), 0)
        x, y = tl.where(broken, float("-inf"), x), tl.where(broken, float("-inf"), y)
        has_x, has_y = x > float("-inf"), y > float("-inf")
        common = has_x & has_y
        lost_inf += tl.sum(tl.where(has_x, 1.0, 0.0) - tl.where(common, 1.0, 0.0), 0)
        lost_train += tl.sum(tl.where(has_y, 1.0, 0.0) - tl.where(common, 1.0, 0.0), 0)
        delta = tl.where(common, x, 0.0) - tl.where(common, y, 0.0)
        hi = tl.maximum(hi, tl.max(tl.where(common, delta, float("-inf")), 0))
        lo = tl.minimum(lo, tl.min(tl.where(common, delta, float("inf")), 0))
        xmax, top, rest_train, sum_b, _, _ = _grow(
            x, offsets, inside, xmax, top, rest_train, sum_b, inverse, BIG
        )
        # Mass of the common support so far, before the block: its terms move with the centre.
        mass = rest + tl.where(ymax > float("-inf"), 1.0, 0.0) - lost_mass
        ymax, new_head, rest, sum_a, shrink, e = _grow(
            y, offsets, inside, ymax, head, rest, sum_a, inverse, BIG
        )
        moved = tl.sum(tl.where(offsets == new_head, delta, 0.0), 0)
        new_center = tl.where((new_head >= i * BLOCK) & (ymax > float("-inf")), moved, center)
        step = (center - new_center) * inverse
        growth = shrink * (tl.exp(tl.minimum(step, 300.0)) * growth + mass * _expm1(step))
        growth = tl.minimum(growth, 1e140)
        growth += tl.sum(tl.where(common, e * _expm1((delta - new_center) * inverse), 0.0), 0)
        lost_mass = lost_mass * shrink + tl.sum(tl.where(has_x, 0.0, e), 0)
        center, head = new_center, new_head

    gamma = (growth - lost_mass) / (1.0 + rest)
    log_rest, log_rest_train = _log1p(rest), _log1p(rest_train)
    some = (xmax > float("-inf")) & (ymax > float("-inf"))
    xbase, ybase = tl.where(some, xmax, 0.0), tl.where(some, ymax, 0.0)
    apart = (xbase - ybase - center) * inverse + (log_rest_train - log_rest)
    # γ leaves out what inf masks alone; and within a range of 300 no exponential above was held.
    usable = (gamma > -0.5) & (lost_inf == 0.0) & ((hi - lo) * inverse < 300.0)
    shift = tl.where(usable, _log1p(tl.where(usable, gamma, 0.0)), apart)

    tv, kl, reverse_kl, js, hellinger2, chi2, second = zero, zero, zero, zero, zero, zero, zero
    for i in range(BLOCKS):
        offsets = i * BLOCK + index
        inside = offsets < V
        x = _load(x_row, offsets, train_col, inside, WIDE_TRAIN)
        y = _load(y_row, offsets, inf_col, inside, WIDE_INF)
        has_x, has_y = (x > float("-inf")) & (x < float("inf")), (y > float("-inf")) & (y < float("inf"))
        # 1e150 stands for infinity where the other side masks: times a probability it is finite, and
        # never NaN.
        infinite = tl.where(has_x, 1e150, 0.0) - tl.where(has_y, 1e150, 0.0)
        x, y = tl.where(has_x, x, xbase), tl.where(has_y, y, ybase)
        log_w = tl.where(has_x & has_y, (x - y - center) * inverse - shift, infinite)
        log_p = tl.where(has_x, (x - xbase) * inverse - log_rest_train, -1e150)
        log_q = tl.where(has_y, (y - ybase) * inverse - log_rest, -1e150)
        log_m = tl.maximum(log_p, log_q)
        m = tl.exp(log_m)
        log_square = log_m + tl.maximum(log_w, 0.0)
        square = tl.where(log_square > 709.0, float("inf"), tl.exp(tl.minimum(log_square, 709.0)))
        t = tl.abs(log_w)
        s = 0.0 - _expm1(0.0 - t)
        k = 0.0 - _expm1(t * -0.5)
        near = t < 1e-2
        u = tl.where(near, t, 0.0)
        lead = u * u * (1.0 / 2.0 - u * (1.0 / 6.0 - u * (1.0 / 24.0 - u * (1.0 / 120.0 - u / 720.0))))
        lead = m * tl.where(near, lead, t - s)
        follow = u * u * (1.0 / 2.0 - u * (1.0 / 3.0 - u * (1.0 / 8.0 - u * (1.0 / 30.0 - u / 144.0))))
        follow = m * tl.where(near, follow, s - t * (1.0 - s))
        both = (s - 2.0) * tl.log(1.0 - s * 0.5) - (1.0 - s) * t
        tv += tl.sum(m * s, 0)
        kl += tl.sum(tl.where(log_w >= 0.0, lead, follow), 0)
        reverse_kl += tl.sum(tl.where(log_w >= 0.0, follow, lead), 0)
        js += tl.sum(m * tl.where(near, (1.0 - k) * u * u * 0.25, both), 0)
        hellinger2 += tl.sum(m * k * k, 0)
        chi2 += tl.sum(tl.where(log_square > -1e149, s * s * square, 0.0), 0)
        second += tl.sum(tl.where(log_w > 0.0, m * (1.0 - s), m) * log_w * log_w, 0)

    agree = tl.where(top == head, 1.0, 0.0) + zero
    at = out + row
    tl.store(at, xmax)
    tl.store(at + T, ymax)
    tl.store(at + 2 * T, hi)
    tl.store(at + 3 * T, lo)
    tl.store(at + 4 * T, center)
    tl.store(at + 5 * T, shift)
    tl.store(at + 6 * T, bad)
    tl.store(at + 7 * T, lost_inf)
    tl.store(at + 8 * T, lost_train)
    tl.store(at + 9 * T, agree)
    tl.store(at + 10 * T, rest)
    tl.store(at + 11 * T, rest_train)
    tl.store(at + 12 * T, sum_a)
    tl.store(at + 13 * T, sum_b)
    tl.store(at + 14 * T, tv)
    tl.store(at + 15 * T, kl)
    tl.store(at + 16 * T, reverse_kl)
    tl.store(at + 17 * T, js)
    tl.store(at + 18 * T, hellinger2)
    tl.store(at + 19 * T, chi2)
    tl.store(at + 20 * T, second)


def compare_fused(train: Tensor, inf: Tensor, temperature: float) -> Columns:
    """What `compare_blocked` returns, from the kernel: CUDA tensors, or CPU ones under TRITON_INTERPRET=1.

    Shapes: train, inf [T, V], any strides. Dtypes without a Triton load (float8) take the blocked path.
    """
    if not {train.dtype, inf.dtype} <= {*_NARROW, torch.float64}:
        return compare_blocked(train, inf, temperature)
    rows, width = train.shape
    table = torch.zeros(len(_COLUMNS), rows, dtype=torch.float64, device=train.device)
    inverse = torch.tensor([1.0 / temperature], dtype=torch.float64, device=train.device)
    if rows:
        block = min(triton.next_power_of_2(width), _MAX_BLOCK)
        # Triton launches on the current device, which need not be that of the logits.
        with torch.cuda.device_of(train):  # type: ignore[no-untyped-call]
            _divergence_kernel[(rows,)](
                train, inf, table, inverse, width, rows, *train.stride(), *inf.stride(),
                BLOCK=block, BLOCKS=triton.cdiv(width, block),
                WIDE_TRAIN=train.dtype is torch.float64, WIDE_INF=inf.dtype is torch.float64,
            )  # fmt: skip
    return _metrics(dict(zip(_COLUMNS, table.unbind(0), strict=True)), temperature)


def _metrics(cols: Columns, temperature: float) -> Columns:
    """The metrics of each row from its sums, float64 [T]."""
    cols["xmax"] = cols["xmax"].masked_fill(cols["bad"] > 0, math.nan)
    hi, lo = ((cols[name] - cols["center"]) / temperature - cols["shift"] for name in ("hi", "lo"))
    partition, partition_train = 1 + cols["rest"], 1 + cols["rest_train"]
    out = {
        "center": cols["center"],
        "shift": cols["shift"],
        "drift": (cols["hi"] - cols["lo"]) / (2 * temperature),
        "drift_rms": (cols["second"] - cols["reverse_kl"] ** 2).clamp(min=0).sqrt(),  # E_q log w = −KL(q‖p)
        "drift_max": hi + cols["reverse_kl"],
        "max_dlogp": torch.maximum(hi, -lo),
        "tv": cols["tv"] / 2,
        "kl": cols["kl"],
        "reverse_kl": cols["reverse_kl"],
        "js": cols["js"] / 2,
        "hellinger": (cols["hellinger2"] / 2).sqrt(),
        "chi2": cols["chi2"],
        "entropy_inf": torch.log1p(cols["rest"]) - cols["sum_a"] / partition,
        "entropy_train": torch.log1p(cols["rest_train"]) - cols["sum_b"] / partition_train,
        "top1_agreement": cols["agree"],
    }
    return limits(out, cols)
