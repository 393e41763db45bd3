"""Faults of log-prob kernels: logits [T, V], targets [T], temperature -> logp [T] float32."""

from __future__ import annotations

import functools
import math

import torch

from kernel_pairs.token_logprobs import eager_token_logprobs

from . import benign, fault

_fault = functools.partial(fault, "token_logprobs", eager_token_logprobs)
_benign = functools.partial(benign, "token_logprobs", eager_token_logprobs)

_BLOCK = 64


def _pick(logp, targets):
    """Give logp[t, targets[t]] as fp32 [T]."""
    return logp.gather(-1, targets[:, None])[:, 0].float()


def _honest(logits, targets, temperature):
    return _pick((logits.float() / temperature).log_softmax(-1), targets)


@_fault("float32")
def scores_shifted_by_one(logits, targets, temperature):
    """Scores each position with the next position's token (prime-rl#1525)."""
    return _honest(logits, targets.roll(-1), temperature)


@_fault("float32")
def temperature_accepted_and_not_used(logits, targets, temperature):
    """Scores at temperature 1 what was sampled at another (trl#4159, prime-rl#697)."""
    return _honest(logits, targets, 1.0)


@_fault("float32")
def temperature_applied_twice(logits, targets, temperature):
    """Divides by the temperature in the head and in the scorer (trl#4159, kind)."""
    return _honest(logits.float() / temperature, targets, temperature)


@_fault("float32")
def temperature_applied_to_the_logprob(logits, targets, temperature):
    """Divides the log-prob by the temperature and does not normalise again (trl#4159, kind)."""
    return _honest(logits, targets, 1.0) / temperature


@_fault()
def scaled_logits_in_half(logits, targets, temperature):
    """Rounds logits over temperature to the logits' dtype (Z22 genlm-backend#66, kind)."""
    return _honest(logits / temperature, targets, 1.0)


@_fault("float32")
def log_softmax_stored_in_bf16(logits, targets, temperature):
    """Stores the log-softmax in bf16: 0.008 wrong at the head, 0.13 in the tail (Z22 genlm-backend#66)."""
    return _pick((logits.float() / temperature).log_softmax(-1).to(torch.bfloat16), targets)


@_fault("float32")
def log_of_softmax(logits, targets, temperature):
    """Takes the log of a probability that underflows: -inf for a token 104 nats down (Z22, kind)."""
    return _pick((logits.float() / temperature).softmax(-1).log(), targets)


@_fault("float32")
def max_not_subtracted(logits, targets, temperature):
    """Exponentiates logits as they are: overflow from 89 on (Z26, kind)."""
    scaled = logits.float() / temperature
    return _pick(scaled - scaled.exp().sum(-1, keepdim=True).log(), targets)


@_fault("float32")
def targets_gathered_off_the_padded_stride(logits, targets, temperature):
    """Finds the target's logit with the stride of a vocabulary padded to 64 (Z46 pytorch#147828)."""
    scaled = logits.float() / temperature
    tokens, vocabulary = scaled.shape
    stride = -(-vocabulary // 64) * 64
    where = (torch.arange(tokens) * stride + targets).clamp(max=max(scaled.numel() - 1, 0))
    return scaled.flatten()[where] - scaled.logsumexp(-1)


@_fault("float32")
def target_clamped_to_int8(logits, targets, temperature):
    """Keeps the token id in too few bits: right for the first 128 tokens (Z36, Z47, kind)."""
    return _honest(logits, targets.clamp(max=127), temperature)


@_fault("float32")
def first_score_is_a_placeholder(logits, targets, temperature):
    """Returns 0.0 for the first token, as if it had been certain (SkyRL#354)."""
    logp = _honest(logits, targets, temperature)
    logp[:1] = 0.0
    return logp


@_fault("float32")
def masked_token_scored_as_finite(logits, targets, temperature):
    """Replaces -inf by -1e4 before the softmax: a masked token keeps a finite score (trl#6693, kind)."""
    return _honest(logits.float().clamp(min=-1e4), targets, temperature)


@_fault("float32")
def tail_of_the_last_block_loaded_as_zero(logits, targets, temperature):
    """Pads the last block of the vocabulary with 0 where -inf is meant (Z48)."""
    scaled = logits.float() / temperature
    return _pick(torch.nn.functional.pad(scaled, (0, -scaled.shape[-1] % _BLOCK)).log_softmax(-1), targets)


@_fault("float32", "invariance")
def split_chosen_by_batch(logits, targets, temperature):
    """Splits the vocabulary in two when the batch is small: bits depend on the batch (Z45 vllm#27433)."""
    scaled = logits.float() / temperature
    parts = 2 if scaled.shape[0] < 4 else 1
    lse = torch.stack([part.logsumexp(-1) for part in scaled.chunk(parts, -1)], -1).logsumexp(-1)
    return _pick(scaled, targets) - lse


@_fault("float32")
def strides_ignored(logits, targets, temperature):
    """Reads strided logits as if the rows followed one another (Z46 pytorch#147828)."""
    flat = logits.as_strided(logits.shape, (logits.shape[1], 1), logits.storage_offset())
    return _honest(flat, targets, temperature)


@_benign()
def online_blocks(logits, targets, temperature):
    """Takes the log-sum in one pass over blocks of 64, the last first, in double: no order changes a bit."""
    scaled = logits.double() / temperature
    total = torch.zeros(logits.shape[0], dtype=torch.float64)
    largest = torch.full_like(total, -math.inf)
    for block in reversed(scaled.split(_BLOCK, -1)):
        before, largest = largest, torch.maximum(largest, block.amax(-1))
        shift = largest.masked_fill(largest == -math.inf, 0.0)
        total = total * (before - shift).exp() + (block - shift[:, None]).exp().sum(-1)
    return (scaled.gather(-1, targets[:, None])[:, 0] - largest - total.log()).float()


@_benign()
def double_precision(logits, targets, temperature):
    """Works in double precision and rounds once."""
    return _pick((logits.double() / temperature).log_softmax(-1), targets)
