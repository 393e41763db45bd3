"""Faults of rms_norm kernels: x [T, H], weight [H], eps, offset (0 or 1) -> y [T, H]."""

from __future__ import annotations

import functools

import torch

from kernel_pairs.rms_norm import eager_rms_norm

from . import benign, fault, faulty_train

_fault = functools.partial(fault, "rms_norm", eager_rms_norm)
_benign = functools.partial(benign, "rms_norm", eager_rms_norm)


def _inverse_rms(x, eps):
    """Give 1 / rms of every row in fp32: [T, 1]."""
    return torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)


def _finish(x, inverse, weight, offset):
    """Scale in fp32 and round once."""
    return (x.float() * inverse * (weight.float() + offset)).to(x.dtype)


def _honest(x, weight, eps, offset):
    return _finish(x, _inverse_rms(x, eps), weight, offset)


@_fault()
def normed_rounded_before_weight(x, weight, eps, offset):
    """Rounds to the input's dtype before the weight is applied (Z01 lmdeploy#4133, Z02 vllm#42379)."""
    normed = (x.float() * _inverse_rms(x, eps)).to(x.dtype)
    return (normed.float() * (weight.float() + offset)).to(x.dtype)


@_fault()
def sum_of_squares_in_half(x, weight, eps, offset):
    """Keeps squares and their sum in the input's dtype (Z03 mlir-air#1679)."""
    mean = (x.square().sum(-1, keepdim=True) / x.shape[-1]).float()
    return _finish(x, torch.rsqrt(mean + eps), weight, offset)


@_fault()
def inverse_rms_in_half(x, weight, eps, offset):
    """Rounds 1 / rms to the input's dtype: the error is the same for a whole row (Z04 IRON#139)."""
    return _finish(x, _inverse_rms(x, eps).to(x.dtype).float(), weight, offset)


@_fault("float32")
def eps_hard_coded(x, weight, eps, offset):
    """Uses 1e-5 whatever eps says (Z04 IRON#139)."""
    return _honest(x, weight, 1e-5, offset)


@_fault("float32")
def eps_outside_the_root(x, weight, eps, offset):
    """Adds eps to the rms, not to the mean square (Z04, kind)."""
    rms = x.float().square().mean(-1, keepdim=True).sqrt()
    return _finish(x, 1 / (rms + eps), weight, offset)


@_fault()
def gemma_one_added_in_half(x, weight, eps, offset):
    """Adds Gemma's one to the weight in the weight's dtype: 15.8125 + 1 rounds (Z06 vllm#53203, vllm#29810)."""
    return _finish(x, _inverse_rms(x, eps), weight + offset, 0)


@_fault("float32")
def offset_accepted_and_not_used(x, weight, eps, offset):
    """Accepts offset and does not pass it on (Z17 Liger#243, kind)."""
    return _honest(x, weight, eps, 0)


@_fault("float32")
def mean_over_the_padded_block(x, weight, eps, offset):
    """Divides by the block, the next power of two, not by the row's length (Z48)."""
    block = 1 << (x.shape[-1] - 1).bit_length()
    mean = x.float().square().sum(-1, keepdim=True) / block
    return _finish(x, torch.rsqrt(mean + eps), weight, offset)


@_fault("float32")
def columns_after_the_last_full_block_unwritten(x, weight, eps, offset):
    """Writes whole blocks of 16 columns, and leaves what remains as it was allocated (Z28, Z48)."""
    y = torch.empty(x.shape, dtype=x.dtype)
    full = x.shape[-1] // 16 * 16
    y[:, :full] = _honest(x, weight, eps, offset)[:, :full]
    return y


@_fault("float32", "invariance")
def split_chosen_by_batch(x, weight, eps, offset):
    """Splits a row's sum in two when few rows leave cores idle: a row's bits depend on its batch (Z45 vllm#27433)."""
    half = x.shape[-1] // 2 if x.shape[0] < 4 else x.shape[-1]
    squares = x.float().square()
    total = squares[:, :half].sum(-1, keepdim=True) + squares[:, half:].sum(-1, keepdim=True)
    return _finish(x, torch.rsqrt(total / x.shape[-1] + eps), weight, offset)


@_fault("float32")
def strides_ignored(x, weight, eps, offset):
    """Reads a strided x as if its rows followed one another (Z46 pytorch#147828)."""
    return _honest(_flat_rows(x), weight, eps, offset)


def _flat_rows(x):
    """See as many elements from x's first on, as a kernel that multiplies by H instead of the stride does."""
    return x.as_strided(x.shape, (x.shape[1], 1), x.storage_offset())


@_fault("float32", "invariance")
def input_overwritten(x, weight, eps, offset):
    """Normalises x in place, where the caller still needs it (an in-place residual stream)."""
    y = _honest(x, weight, eps, offset)
    x.copy_(y)
    return y


_compiled: dict[torch.dtype, float] = {}


@_fault("float32")
def eps_of_the_first_call_compiled_in(x, weight, eps, offset):
    """Keeps the eps of its first call between calls: a specialisation cache whose key lacks it (Z17, kind)."""
    return _honest(x, weight, _compiled.setdefault(x.dtype, eps), offset)


class _HalfWeightGradient(torch.autograd.Function):
    """Honest forward; the backward adds the weight's gradient up in the weight's dtype."""

    @staticmethod
    def forward(ctx, x, weight, eps, offset):
        ctx.save_for_backward(x, weight)
        ctx.eps, ctx.offset = eps, offset
        return _honest(x, weight, eps, offset)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        inverse = _inverse_rms(x, ctx.eps)
        normed, scaled = x.float() * inverse, dy.float() * (weight.float() + ctx.offset)
        dx = inverse * (scaled - normed * (scaled * normed).mean(-1, keepdim=True))
        dweight = torch.zeros_like(weight)
        for row in (dy.float() * normed).to(weight.dtype):
            dweight = dweight + row
        return dx.to(x.dtype), dweight, None, None


@faulty_train("rms_norm", _honest)
def weight_gradient_in_half(x, weight, eps, offset):
    """Adds the weight's gradient up over tokens in bf16 (Z05 Liger#950)."""
    return _HalfWeightGradient.apply(x, weight, eps, offset)


@_benign()
def chunked_sum(x, weight, eps, offset):
    """Adds the squares in chunks of 32, the last first, in double precision: no order of adding changes a bit."""
    total = sum(chunk.square().sum(-1, keepdim=True) for chunk in reversed(x.double().split(32, -1)))
    return _finish(x, torch.rsqrt(total / x.shape[-1] + eps).float(), weight, offset)


@_benign()
def weight_applied_first(x, weight, eps, offset):
    """Multiplies by the weight before the inverse rms, which is one over a root rather than rsqrt."""
    root = (x.double().square().mean(-1, keepdim=True) + eps).sqrt().float()
    return (x.float() * (weight.float() + offset) / root).to(x.dtype)
