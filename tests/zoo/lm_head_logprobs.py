"""Faults of fused LM heads: hidden [T, H], weight [V, H], targets [T], temperature -> logits [T, V], logp [T]."""

from __future__ import annotations

import functools

import torch

from kernel_pairs.lm_head_logprobs import eager_lm_head_logprobs

from . import benign, fault

_fault = functools.partial(fault, "lm_head_logprobs", eager_lm_head_logprobs)
_benign = functools.partial(benign, "lm_head_logprobs", eager_lm_head_logprobs)

_BLOCK = 16


def _product(hidden, weight):
    """Give the logits [T, V] in fp32."""
    return hidden.float() @ weight.float().T


def _pick(logp, targets):
    """Give logp[t, targets[t]] as fp32 [T]."""
    return logp.gather(-1, targets[:, None])[:, 0].float()


def _score(logits, targets, temperature):
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return _pick((wide / temperature).log_softmax(-1), targets)


def _outputs(logits, targets, temperature, dtype):
    return {"logits": logits.to(dtype), "logp": _score(logits, targets, temperature)}


@_fault()
def accumulator_in_half(hidden, weight, targets, temperature):
    """Rounds the accumulator to the inputs' dtype after each block of 16 (Z03 mlir-air#1679, kind)."""
    logits = torch.zeros(hidden.shape[0], weight.shape[0], dtype=hidden.dtype)
    for x, w in zip(hidden.split(_BLOCK, -1), weight.split(_BLOCK, -1), strict=True):
        logits = (logits.float() + _product(x, w)).to(hidden.dtype)
    return _outputs(logits, targets, temperature, hidden.dtype)


@_fault("float32")
def returned_logits_are_scaled(hidden, weight, targets, temperature):
    """Returns logits after the temperature where those before it are meant (trl#4159, kind)."""
    logits = _product(hidden, weight)
    return {"logits": (logits / temperature).to(hidden.dtype), "logp": _score(logits, targets, temperature)}


@_fault("float32")
def temperature_accepted_and_not_used(hidden, weight, targets, temperature):
    """Scores at temperature 1 what was sampled at another (trl#4159, prime-rl#697)."""
    return _outputs(_product(hidden, weight), targets, 1.0, hidden.dtype)


@_fault("float32")
def temperature_applied_twice(hidden, weight, targets, temperature):
    """Divides by the temperature in the epilogue and in the scorer (trl#4159, kind)."""
    return _outputs(_product(hidden, weight), targets, temperature**2, hidden.dtype)


@_fault("float32")
def padded_vocabulary_not_masked(hidden, weight, targets, temperature):
    """Counts the zero rows that pad the vocabulary to a block into the normaliser (Z48)."""
    logits = _product(hidden, weight)
    padded = torch.nn.functional.pad(logits, (0, -logits.shape[-1] % _BLOCK))
    return {"logits": logits.to(hidden.dtype), "logp": _score(padded, targets, temperature)}


@_fault("float32")
def hidden_after_the_last_full_block_dropped(hidden, weight, targets, temperature):
    """Runs over whole blocks of 16 of the hidden size only (Z48)."""
    full = hidden.shape[-1] // _BLOCK * _BLOCK
    return _outputs(_product(hidden[:, :full], weight[:, :full]), targets, temperature, hidden.dtype)


@_fault("float32")
def scores_shifted_by_one(hidden, weight, targets, temperature):
    """Scores each position with the next position's token (prime-rl#1525)."""
    return _outputs(_product(hidden, weight), targets.roll(-1), temperature, hidden.dtype)


@_fault("float32")
def log_softmax_stored_in_bf16(hidden, weight, targets, temperature):
    """Stores the log-prob in bf16 on its way out (Z22 genlm-backend#66)."""
    outputs = _outputs(_product(hidden, weight), targets, temperature, hidden.dtype)
    return {**outputs, "logp": outputs["logp"].to(torch.bfloat16).float()}


@_fault("float32")
def log_of_softmax(hidden, weight, targets, temperature):
    """Takes the log of a probability that underflows (Z22, kind)."""
    logits = _product(hidden, weight)
    logp = _pick((logits / temperature).softmax(-1).log(), targets)
    return {"logits": logits.to(hidden.dtype), "logp": logp}


@_fault("float32")
def max_not_subtracted(hidden, weight, targets, temperature):
    """Exponentiates logits as they are: overflow from 89 on (Z26, kind)."""
    logits = _product(hidden, weight)
    scaled = logits / temperature
    logp = _pick(scaled - scaled.exp().sum(-1, keepdim=True).log(), targets)
    return {"logits": logits.to(hidden.dtype), "logp": logp}


@_fault("float32")
def shard_relative_target(hidden, weight, targets, temperature):
    """Looks a target of the second vocabulary shard up by its index in the shard (Z33 inference-sim#196, kind)."""
    half = -(-weight.shape[0] // 2)
    return _outputs(_product(hidden, weight), targets % half, temperature, hidden.dtype)


@_fault("float32")
def shards_merged_without_the_smaller(hidden, weight, targets, temperature):
    """Normalises by the larger of two shards' log-sums instead of their sum (Z25 flashinfer#4051, kind)."""
    logits = _product(hidden, weight)
    scaled = logits / temperature
    lse = torch.stack([shard.logsumexp(-1) for shard in scaled.chunk(2, -1)], -1).amax(-1)
    return {"logits": logits.to(hidden.dtype), "logp": _pick(scaled, targets) - lse}


@_fault("float32")
def strides_ignored(hidden, weight, targets, temperature):
    """Reads a strided hidden as if the rows followed one another (Z46 pytorch#147828)."""
    flat = hidden.as_strided(hidden.shape, (hidden.shape[1], 1), hidden.storage_offset())
    return _outputs(_product(flat, weight), targets, temperature, hidden.dtype)


@_fault("float32", "invariance")
def split_k_chosen_by_batch(hidden, weight, targets, temperature):
    """Splits the hidden size in two when the batch is small (Z45 vllm#27433)."""
    parts = 2 if hidden.shape[0] < 4 else 1
    logits = sum(
        torch.stack(
            [_product(row[None], w)[0] for row in x]
        )  # row by row: only the split depends on the batch
        for x, w in zip(hidden.chunk(parts, -1), weight.chunk(parts, -1), strict=True)
    )
    return _outputs(logits, targets, temperature, hidden.dtype)


@_benign()
def hidden_in_reversed_order(hidden, weight, targets, temperature):
    """Adds products up one element of the hidden size after another, the last first: one order for every row."""
    logits = torch.zeros(hidden.shape[0], weight.shape[0])
    for h in reversed(range(hidden.shape[1])):
        logits = logits + hidden[:, h, None].float() * weight[None, :, h].float()
    return {"logits": logits.to(hidden.dtype), "logp": _score(logits.double(), targets, temperature)}


@_benign()
def double_precision(hidden, weight, targets, temperature):
    """Works in double precision, sums in one order for every row, and rounds once."""
    logits = (hidden.double()[:, None] * weight.double()[None]).sum(-1)
    logp = _pick((logits / temperature).log_softmax(-1), targets)
    return {"logits": logits.to(hidden.dtype), "logp": logp}
