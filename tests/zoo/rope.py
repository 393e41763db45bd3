"""Faults of rotary embedding kernels: x [T, N, D], positions [T] int64, theta, interleaved -> y [T, N, D]."""

from __future__ import annotations

import functools

import torch

from kernel_pairs.rope import eager_rope

from . import benign, fault

_fault = functools.partial(fault, "rope", eager_rope)
_benign = functools.partial(benign, "rope", eager_rope)


def _frequencies(width, theta):
    """Give theta^(-2i/D) for i < D/2 in float64."""
    return theta ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)


def _tables(positions, width, theta):
    """Give cos and sin [T, 1, D/2] in float64."""
    angles = (positions.double()[:, None] * _frequencies(width, theta))[:, None]
    return angles.cos(), angles.sin()


def _halves(x, interleaved):
    """Give the two members of each rotated pair: [T, N, D/2] each."""
    return (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)


def _join(first, second, interleaved):
    return torch.stack((first, second), -1).flatten(-2) if interleaved else torch.cat((first, second), -1)


def _rotate(x, cos, sin, interleaved):
    """Rotate in the tables' precision, at least fp32, and round once."""
    first, second = _halves(x.float(), interleaved)
    cos, sin = cos.float(), sin.float()
    return _join(first * cos - second * sin, second * cos + first * sin, interleaved).to(x.dtype)


def _honest(x, positions, theta, interleaved):
    return _rotate(x, *_tables(positions, x.shape[-1], theta), interleaved)


@_fault("float32")
def half_split_only(x, positions, theta, interleaved):
    """Fixed to the half-split convention; the model wants interleaved pairs (Z23 vllm#49290)."""
    return _honest(x, positions, theta, False)


@_fault()
def tables_cast_with_the_model(x, positions, theta, interleaved):
    """Builds the tables right and casts them to the model's dtype (Z24 transformers#25681)."""
    cos, sin = _tables(positions, x.shape[-1], theta)
    return _rotate(x, cos.to(x.dtype), sin.to(x.dtype), interleaved)


@_fault()
def positions_in_the_models_dtype(x, positions, theta, interleaved):
    """Casts positions to bf16: 257 becomes 256 (Z24, kind)."""
    return _honest(x, positions.to(x.dtype), theta, interleaved)


@_fault("float32")
def positions_in_fp16(x, positions, theta, interleaved):
    """Casts positions to fp16: exact to 2048, infinite from 65520 on (Z24, kind)."""
    return _honest(x, positions.to(torch.float16), theta, interleaved)


@_fault()
def frequencies_in_the_models_dtype(x, positions, theta, interleaved):
    """Rounds the inverse frequencies to the model's dtype when the model is cast (Z24, kind)."""
    angles = positions.double()[:, None] * _frequencies(x.shape[-1], theta).to(x.dtype).double()
    return _rotate(x, angles.cos()[:, None], angles.sin()[:, None], interleaved)


@_fault("float32")
def theta_accepted_and_not_used(x, positions, theta, interleaved):
    """Takes theta and rotates with 10000 (Z17 Liger#243, kind)."""
    return _honest(x, positions, 10000.0, interleaved)


@_fault("float32")
def positions_taken_as_consecutive(x, positions, theta, interleaved):
    """Counts on from the first token: right for one sequence, wrong for the second packed one (Z33, kind)."""
    return _honest(x, positions[:1] + torch.arange(x.shape[0]), theta, interleaved)


@_fault("float32")
def chunk_relative_positions(x, positions, theta, interleaved):
    """Counts from the chunk's start, where the absolute position is meant (Z33 inference-sim#196)."""
    return _honest(x, torch.arange(x.shape[0]), theta, interleaved)


@_fault("float32")
def positions_one_too_many(x, positions, theta, interleaved):
    """Counts positions from one: attention scores alone would not show it, a mixed cache does (Z33, kind)."""
    return _honest(x, positions + 1, theta, interleaved)


@_fault("float32")
def table_of_2048_positions(x, positions, theta, interleaved):
    """Clamps the position to the last row of a table made for 2048 positions (Z36, kind)."""
    return _honest(x, positions.clamp(max=2047), theta, interleaved)


@_fault()
def products_rounded(x, positions, theta, interleaved):
    """Rounds each product to the model's dtype before the sum, which may cancel (Z02, kind)."""
    cos, sin = (table.float() for table in _tables(positions, x.shape[-1], theta))
    first, second = _halves(x.float(), interleaved)
    one = (first * cos).to(x.dtype) - (second * sin).to(x.dtype)
    return _join(one, (second * cos).to(x.dtype) + (first * sin).to(x.dtype), interleaved)


@_fault("float32")
def pairs_after_the_last_full_block_copied(x, positions, theta, interleaved):
    """Rotates whole blocks of 8 pairs and copies the rest (Z48)."""
    cos, sin = _tables(positions, x.shape[-1], theta)
    full = cos.shape[-1] // 8 * 8
    cos[..., full:], sin[..., full:] = 1.0, 0.0
    return _rotate(x, cos, sin, interleaved)


@_fault("float32")
def strides_ignored(x, positions, theta, interleaved):
    """Reads a strided x as if it were contiguous (Z46 pytorch#147828)."""
    _, heads, width = x.shape
    flat = x.as_strided(x.shape, (heads * width, width, 1), x.storage_offset())
    return _honest(flat, positions, theta, interleaved)


@_benign()
def complex_product(x, positions, theta, interleaved):
    """Multiplies complex numbers in double precision."""
    cos, sin = _tables(positions, x.shape[-1], theta)
    turned = torch.complex(*(half.double().contiguous() for half in _halves(x, interleaved)))
    turned = turned * torch.complex(cos, sin)
    return _join(turned.real, turned.imag, interleaved).to(x.dtype)


@_benign()
def angles_reduced_first(x, positions, theta, interleaved):
    """Reduces the angle to one turn before cos and sin."""
    angles = (positions.double()[:, None] * _frequencies(x.shape[-1], theta))[:, None]
    angles = torch.remainder(angles, 2 * torch.pi)
    return _rotate(x, angles.cos(), angles.sin(), interleaved)
