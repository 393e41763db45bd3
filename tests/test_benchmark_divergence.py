"""How fast `divergence.compare` is on the CPU, as a ratio to the naive form in the same run.

`pytest tests/test_benchmark_divergence.py --benchmark-enable --benchmark-only --benchmark-verbose` shows the
ratio under extra_info. Where benchmarks are off, each case runs once on a few rows, and only its result is checked.
"""

from __future__ import annotations

import statistics
import time

import pytest
import torch

from kernelpact.divergence import compare

VOCABULARY = 151_936
REQUIRED_RATIO = 4.0


def naive(train: torch.Tensor, inf: torch.Tensor) -> dict[str, torch.Tensor]:
    """The form that everybody writes first: two float32 log_softmax and the sums, at the logits' own size."""
    x, y = train.float(), inf.float()
    log_p, log_q = x.log_softmax(-1), y.log_softmax(-1)
    p, q, log_w = log_p.exp(), log_q.exp(), log_p - log_q
    log_mean = ((p + q) / 2).log()
    return {
        "drift": ((x - y).amax(-1) - (x - y).amin(-1)) / 2,
        "tv": (p - q).abs().sum(-1) / 2,
        "kl": (p * log_w).sum(-1),
        "reverse_kl": -(q * log_w).sum(-1),
        "js": ((p * (log_p - log_mean)).sum(-1) + (q * (log_q - log_mean)).sum(-1)) / 2,
        "hellinger": (1 - (p * q).sqrt().sum(-1)).clamp(min=0).sqrt(),
        "chi2": (q * (log_w.exp() - 1) ** 2).sum(-1),
        "entropy_train": -(p * log_p).sum(-1),
        "entropy_inf": -(q * log_q).sum(-1),
    }


def seconds(function: object, *arguments: torch.Tensor) -> float:
    """Wall time of one call."""
    begin = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - begin


@pytest.fixture
def two_threads():
    """Two threads, as the figure of the design was measured."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.benchmark_only
@pytest.mark.parametrize("noise", [0.03, 0.3, 1.0])
@pytest.mark.usefixtures("two_threads")
def test_compare_outruns_the_naive_form(benchmark, noise):
    """At [256, 151936] in bfloat16 it is at least four times as fast, and agrees where the naive form can."""
    rows = 4 if benchmark.disabled else 256
    draw = torch.Generator().manual_seed(0)
    y = torch.randn(rows, VOCABULARY, generator=draw).mul_(3)
    x = torch.randn(rows, VOCABULARY, generator=draw).mul_(noise).add_(y).bfloat16()
    y = y.bfloat16()
    result = benchmark.pedantic(compare, (x, y), rounds=5, warmup_rounds=1)
    expected = naive(x, y)
    for name in ("drift", "tv", "entropy_train", "entropy_inf"):  # of a small drift the rest is noise
        torch.testing.assert_close(result[name], expected[name].double(), rtol=1e-3, atol=0)
    if benchmark.disabled:
        return
    # Each beside the other, so that what else the machine does weighs on both.
    pairs = [(seconds(naive, x, y), seconds(compare, x, y)) for _ in range(5)]
    ratio = statistics.median(slow / fast for slow, fast in pairs)
    benchmark.extra_info["naive_over_compare"] = round(ratio, 2)
    benchmark.extra_info["naive_ms"] = round(1e3 * min(slow for slow, _ in pairs))
    assert ratio >= REQUIRED_RATIO
