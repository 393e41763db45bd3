"""Faults of softmax kernels: logits [T, V] -> p [T, V]."""

from __future__ import annotations

import functools
import math

import torch

from kernel_pairs.softmax import eager_softmax

from . import benign, fault

_fault = functools.partial(fault, "softmax", eager_softmax)
_benign = functools.partial(benign, "softmax", eager_softmax)

_BLOCK = 64


def _normalised(shifted, dtype):
    exps = shifted.exp()
    return (exps / exps.sum(-1, keepdim=True)).to(dtype)


def _online(logits, start=-math.inf, rescale=True, guard=True):
    """Give the running maximum and sum [T, 1] after all blocks of the vocabulary.

    guard: while nothing but -inf was seen, shift by 0, so that -inf - -inf never happens.
    """
    wide = logits if logits.dtype == torch.float64 else logits.float()
    largest = torch.full((logits.shape[0], 1), start, dtype=wide.dtype)
    total = torch.zeros_like(largest)
    for block in wide.split(_BLOCK, -1):
        before, largest = largest, torch.maximum(largest, block.amax(-1, keepdim=True))
        shift = largest.masked_fill(largest == -math.inf, 0.0) if guard else largest
        total = total * ((before - shift).exp() if rescale else 1.0)
        total = total + (block - shift).exp().sum(-1, keepdim=True)
    return largest, total


@_fault("float32")
def max_not_subtracted(logits):
    """Exponentiates logits as they are: inf over inf from 89 on, 0 over 0 from -104 down (Z26, kind)."""
    return _normalised(logits.float(), logits.dtype)


@_fault("float32")
def max_of_the_batch(logits):
    """Subtracts one maximum for all rows: a row far below its batch underflows to 0 over 0 (Z45, kind)."""
    return _normalised(logits.float() - logits.float().max(), logits.dtype)


@_fault("float32")
def running_max_starts_at_zero(logits):
    """Starts the running maximum at 0: a row that is all far below it underflows (Z39 vllm#31478, kind)."""
    largest, total = _online(logits, start=0.0)
    return ((logits.float() - largest).exp() / total).to(logits.dtype)


@_fault("float32")
def running_sum_not_rescaled(logits):
    """Does not rescale the running sum when a later block raises the maximum (Z25, kind)."""
    largest, total = _online(logits, rescale=False)
    return ((logits.float() - largest).exp() / total).to(logits.dtype)


@_fault("float32")
def masked_first_block_is_nan(logits):
    """Takes -inf from -inf while the first block of the row is all masked (Z26 vllm#4405)."""
    largest, total = _online(logits, guard=False)
    return ((logits.float() - largest).exp() / total).to(logits.dtype)


@_fault("float32")
def tail_of_the_last_block_loaded_as_zero(logits):
    """Pads the last block with 0 where -inf is meant: right when V is a multiple of the block (Z48)."""
    vocabulary = logits.shape[-1]
    padded = torch.nn.functional.pad(logits.float(), (0, -vocabulary % _BLOCK))
    return _normalised(padded - padded.amax(-1, keepdim=True), logits.dtype)[:, :vocabulary]


@_fault()
def sum_in_half(logits):
    """Keeps the sum of exponentials in the logits' dtype (Z03 mlir-air#1679, kind)."""
    exps = (logits.float() - logits.float().amax(-1, keepdim=True)).exp()
    return (exps / exps.sum(-1, keepdim=True).to(logits.dtype).float()).to(logits.dtype)


@_fault()
def difference_in_half(logits):
    """Rounds logit minus maximum to the logits' dtype before exp (Z22 genlm-backend#66, kind)."""
    return _normalised((logits - logits.amax(-1, keepdim=True)).float(), logits.dtype)


@_fault()
def reciprocal_in_half(logits):
    """Multiplies by a rounded 1 / sum instead of dividing (Z11 sglang#4362)."""
    exps = (logits.float() - logits.float().amax(-1, keepdim=True)).exp()
    return (exps * (1 / exps.sum(-1, keepdim=True)).to(logits.dtype).float()).to(logits.dtype)


@_fault("float32")
def strides_ignored(logits):
    """Reads strided logits as if the rows followed one another (Z46 pytorch#147828)."""
    flat = logits.as_strided(logits.shape, (logits.shape[1], 1), logits.storage_offset()).float()
    return _normalised(flat - flat.amax(-1, keepdim=True), logits.dtype)


@_fault("float32", "invariance")
def split_chosen_by_batch(logits):
    """Sums in two halves when the batch is small: a row's bits depend on its batch (Z45 vllm#27433)."""
    half = logits.shape[-1] // 2 if logits.shape[0] < 4 else logits.shape[-1]
    exps = (logits.float() - logits.float().amax(-1, keepdim=True)).exp()
    total = exps[:, :half].sum(-1, keepdim=True) + exps[:, half:].sum(-1, keepdim=True)
    return (exps / total).to(logits.dtype)


@_fault("float32")
def rows_after_the_last_full_tile_unwritten(logits):
    """Launches one program to four rows and rounds their number down (Z28, Z48)."""
    p = torch.empty(logits.shape, dtype=logits.dtype)
    full = logits.shape[0] // 4 * 4
    p[:full] = logits[:full].float().softmax(-1).to(logits.dtype)
    return p


@_benign()
def online_blocks(logits):
    """Takes maximum and sum in one pass over blocks of 64, in double precision: no order changes a bit."""
    largest, total = _online(logits.double())
    return ((logits.double() - largest).exp() / total).to(logits.dtype)


@_benign()
def through_the_log(logits):
    """Takes the logarithm of the sum to the exponent, in double precision, and rounds once."""
    wide = logits.double()
    return (wide - wide.logsumexp(-1, keepdim=True)).exp().to(logits.dtype)
