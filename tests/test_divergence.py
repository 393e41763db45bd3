"""`kernelpact.divergence.compare` on the CPU: precision, masks, invariances, bounds, memory, errors."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelpact import bounds, divergence
from kernelpact.divergence import blocked, compare
from kernelpact.divergence.metrics import POLYNOMIALS

INF, NAN = float("inf"), float("nan")
METRICS = tuple(
    field.name
    for field in dataclasses.fields(divergence.Divergence)
    if field.name not in ("support_violation", "nonfinite", "dlogp", "ratio")
)
BIG = 151_936


def reference(x: torch.Tensor, y: torch.Tensor, tau: float = 1.0) -> dict[str, np.ndarray]:
    """Every metric of one row of finite logits in extended precision, and log w of every token."""
    wide = np.longdouble
    x, y = (t.double().numpy().astype(wide) / wide(tau) for t in (x, y))

    def distribution(z):
        e = np.exp(z - z.max())
        rest = e.sum() - 1 if z.size == 1 else np.delete(e, z.argmax()).sum()
        return e / (1 + rest), np.log1p(rest) - (e * (z - z.max())).sum() / (1 + rest)

    (p, entropy_train), (q, entropy_inf) = distribution(x), distribution(y)
    delta = x - y
    center = delta[y.argmax()] + (q * (delta - delta[y.argmax()])).sum()
    d = delta - center
    log_w = d - np.log1p((q * np.expm1(d)).sum())
    u, half = np.expm1(log_w), log_w / 2
    small = np.abs(log_w) < 1e-2
    l2 = log_w**2
    phi = np.where(
        small, l2 * (0.5 + log_w * (1 / wide(6) + log_w * (1 / wide(24) + log_w / 120))), u - log_w
    )
    psi = np.where(small, l2 * (0.5 - log_w * (1 / wide(6) - log_w * (1 / wide(24) - log_w / 120))), 0)
    psi = np.where(small, psi, np.expm1(-log_w) + log_w)  # e^-l - 1 + l, summed under p
    js = np.where(small, np.exp(half) * l2 / 8, ((1 + u) * log_w - (2 + u) * np.log1p(u / 2)) / 2)
    chi2 = (q * u * u).sum()
    return {
        "drift": (delta.max() - delta.min()) / 2,
        "drift_rms": np.sqrt((q * d * d).sum() - (q * d).sum() ** 2),
        "drift_max": d.max() - (q * d).sum(),
        "tv": (q * np.abs(u)).sum() / 2,
        "kl": (p * psi).sum(),
        "reverse_kl": (q * phi).sum(),
        "js": (q * js).sum(),
        "hellinger": np.sqrt((q * np.expm1(half) ** 2).sum() / 2),
        "chi2": chi2,
        "ess": 1 / (1 + chi2),
        "max_dlogp": np.abs(log_w).max(),
        "entropy_train": entropy_train,
        "entropy_inf": entropy_inf,
        "top1_agreement": wide(x.argmax() == y.argmax()),
        "log_w": log_w,
    }


def relative(got: float, want: float) -> float:
    """|got/want − 1|, 0 where both are the same number, 0 and inf included."""
    return 0.0 if got == want else float(abs(np.longdouble(got) - want) / abs(want))


def worst_error(x: torch.Tensor, y: torch.Tensor, tau: float = 1.0) -> tuple[float, str]:
    """The largest relative error of any metric in any row, and which metric it is."""
    targets = torch.arange(x.shape[0]) * 7 % x.shape[1]
    result = compare(x, y, targets, tau)
    errors = []
    for row in range(x.shape[0]):
        want = reference(x[row], y[row], tau)
        errors += [(relative(float(result[name][row]), want[name]), name) for name in METRICS]
        # log w of one token may be 0 by accident: it is judged beside the row's divergence.
        log_w = want["log_w"][targets[row]]
        scale = max(abs(log_w), want["tv"])
        error = abs(np.longdouble(float(result.dlogp[row])) - log_w)
        errors.append((float(error / scale) if error else 0.0, "dlogp"))
    return max(errors)


def logits(
    rows: int, width: int, scale: float, noise: float, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal logits of the given scale, and the same with normal noise: train, inf [rows, width]."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randn(rows, width, generator=draw) * scale
    return y + torch.randn(rows, width, generator=draw) * noise, y


# Precision


@pytest.mark.parametrize("noise", [1e-6, 1e-3, 0.03, 0.3, 1.0, 3.0, 30.0])
@pytest.mark.parametrize("width", [1, 2, 7, 1000, 5003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_every_metric_is_within_1e5_of_the_reference(dtype, width, noise):
    """Whatever the dtype, the width and the drift, no metric is off by more than 1e-5 of itself."""
    for scale in (0.3, 3.0):
        x, y = logits(3, width, scale, noise)
        error, name = worst_error(x.to(dtype), y.to(dtype))
        assert error <= 1e-5, name


@pytest.mark.parametrize(
    ("noise", "dtype"), [(1e-6, torch.float32), (0.05, torch.bfloat16), (1.0, torch.bfloat16)]
)
def test_a_whole_vocabulary_is_within_1e5_of_the_reference(noise, dtype):
    """Sums over 151936 tokens lose nothing either."""
    x, y = logits(2, BIG, 3.0, noise)
    assert worst_error(x.to(dtype), y.to(dtype))[0] <= 1e-5


def adversarial() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Logits at which one formula or another is known to lose its digits."""
    x, y = logits(4, 3000, 3.0, 1e-3)
    cases = {}
    for gap in (5, 15, 25, 40, 100, 400):
        dominant = y.clone()
        dominant[:, 7] += gap
        cases[f"one token {gap} above the rest"] = (x - y + dominant, dominant)
        cases[f"one token {gap} above, far apart"] = ((x - y) * 1000 + dominant, dominant)
    cases["offset of 1e4 on both sides"] = (x * 10 + 1e4, y * 10 + 1e4)
    cases["offset of 1e4 on one side"] = (x + 1e4, y)
    cases["flat, one token off"] = (
        torch.zeros(4, 3000).index_fill(1, torch.tensor([5]), 1e-3),
        torch.zeros(4, 3000),
    )
    cases["near tie at the top"] = (
        y.index_fill(1, torch.tensor([3]), 15.0),
        y.index_fill(1, torch.tensor([9]), 15.0),
    )
    for low in (-25.0, -60.0, -90.0):
        at = torch.tensor([11])
        cases[f"only a tail token at {low} moves"] = (y.index_fill(1, at, low), y.index_fill(1, at, low - 1))
    cases["soft mask"] = tuple(z.masked_fill(y < 1, -1e4) for z in (x, y))
    cases["soft masks that differ"] = (x.masked_fill(y < 1, -1e4), y.masked_fill(y < 1, -9e3))
    cases["bulk equal, tail far apart"] = (torch.where(y < -4, y + 3, y), y)
    cases["constant difference"] = (y + 0.5, y)
    return cases


@pytest.mark.parametrize("case", sorted(adversarial()))
def test_adversarial_logits_are_within_1e5_of_the_reference(case):
    """Dominant tokens, offsets, flat rows, tails and soft masks keep every metric's digits."""
    error, name = worst_error(*adversarial()[case])
    assert error <= 1e-5, name


@pytest.mark.parametrize("tau", [1e-2, 0.7, 1.3, 100.0])
def test_temperature_keeps_the_precision(tau):
    """Dividing by a temperature that no float holds exactly costs no digits that count."""
    assert worst_error(*logits(4, 3000, 3.0, 0.01), tau)[0] <= 1e-5


@pytest.mark.parametrize("noise", [1e-6, 0.1, 2.0])
def test_the_reference_agrees_with_mpmath(noise):
    """At 50 digits, straight from the definitions, the metrics are what `compare` says."""
    x, y = logits(3, 12, 2.0, noise)
    result = compare(x, y)
    with mpmath.workdps(50):
        for row in range(3):
            for name, want in from_definitions(x[row].tolist(), y[row].tolist()).items():
                assert abs(mpmath.mpf(float(result[name][row])) / want - 1) <= 1e-5, name


def from_definitions(x: list[float], y: list[float]) -> dict[str, mpmath.mpf]:
    """The metrics of one row as the textbooks write them."""
    x, y = [mpmath.mpf(v) for v in x], [mpmath.mpf(v) for v in y]
    p = [mpmath.exp(v) / mpmath.fsum(map(mpmath.exp, x)) for v in x]
    q = [mpmath.exp(v) / mpmath.fsum(map(mpmath.exp, y)) for v in y]
    delta = [a - b for a, b in zip(x, y, strict=True)]
    mean = mpmath.fsum(b * d for b, d in zip(q, delta, strict=True))
    pairs = list(zip(p, q, strict=True))
    chi2 = mpmath.fsum((a - b) ** 2 / b for a, b in pairs)
    return {
        "drift": (max(delta) - min(delta)) / 2,
        "drift_rms": mpmath.sqrt(mpmath.fsum(b * (d - mean) ** 2 for b, d in zip(q, delta, strict=True))),
        "drift_max": max(delta) - mean,
        "tv": mpmath.fsum(abs(a - b) for a, b in pairs) / 2,
        "kl": mpmath.fsum(a * mpmath.log(a / b) for a, b in pairs),
        "reverse_kl": mpmath.fsum(b * mpmath.log(b / a) for a, b in pairs),
        "js": mpmath.fsum(a * mpmath.log(2 * a / (a + b)) + b * mpmath.log(2 * b / (a + b)) for a, b in pairs)
        / 2,
        "hellinger": mpmath.sqrt(1 - mpmath.fsum(mpmath.sqrt(a * b) for a, b in pairs)),
        "chi2": chi2,
        "ess": 1 / (1 + chi2),
        "max_dlogp": max(abs(mpmath.log(a / b)) for a, b in pairs),
        "entropy_train": -mpmath.fsum(a * mpmath.log(a) for a in p),
        "entropy_inf": -mpmath.fsum(b * mpmath.log(b) for b in q),
    }


def test_the_naive_form_fails_the_same_check():
    """Two float32 log_softmax lose the digits of a small drift, so the tolerance above can be missed."""
    x, y = logits(1, 5003, 3.0, 1e-4)
    log_p, log_q = x.log_softmax(1), y.log_softmax(1)
    naive = float((log_p.exp() * (log_p - log_q)).sum())
    assert relative(naive, reference(x[0], y[0])["kl"]) > 1e-5


@pytest.mark.parametrize("limit", [(dtype, limit) for dtype, fits in POLYNOMIALS.items() for limit in fits])
def test_the_polynomials_fit_their_functions(limit):
    """Each polynomial is its function to 1.4e-6 (float32) or 1e-11 (float64) on its whole interval, not beyond."""
    dtype, reach = limit
    allowed = 1.4e-6 if dtype is torch.float32 else 1e-11
    exact = (
        lambda v: 1 / v - 1 / mpmath.expm1(v),
        lambda v: (1 - mpmath.coth(v / 2) * mpmath.log(mpmath.cosh(v / 2)) / (v / 2)) / 4,
        lambda v: mpmath.tanh(v / 4) / (2 * v),
        lambda v: v / mpmath.expm1(v),
        lambda v: mpmath.expm1(v) / v,
    )
    with mpmath.workdps(30):
        points = [mpmath.mpf(reach) * k / 40 for k in range(-40, 41) if k]
        for coefficients, function in zip(POLYNOMIALS[dtype][reach], exact, strict=False):
            errors = [
                abs(mpmath.fsum(c * v**k for k, c in enumerate(coefficients)) / function(v) - 1)
                for v in (*points, mpmath.mpf(4 * reach))
            ]
            assert max(errors[:-1]) <= allowed
            assert errors[-1] > allowed


@pytest.mark.parametrize(
    ("noise", "limit", "settled"),
    [(0.01, 0.1875, True), (0.1, 0.75, True), (0.4, 2.5, True), (1.0, INF, True), (1e-6, 0.1875, True)],
)
def test_each_route_is_taken(noise, limit, settled):
    """The drift of a row decides how it is summed, and float32 suffices for ordinary rows of every size."""
    x, y = logits(3, 4000, 3.0, noise)
    table = blocked._run(x, y, None, torch.float32, 1.0)
    assert set(table["limit"].tolist()) == {limit}
    assert blocked.metrics(table, torch.float32, 1.0)["settled"].tolist() == [settled] * 3


def test_rows_that_float32_cannot_give_run_again_in_float64():
    """A dominant token 100 above the rest is beyond float32, and is noticed."""
    x, y = adversarial()["one token 100 above the rest"]
    table = blocked._run(x, y, None, torch.float32, 1.0)
    assert not blocked.metrics(table, torch.float32, 1.0)["settled"].any()


def test_rows_of_one_block_take_their_own_routes():
    """Small, large, masked and broken rows side by side are each what they are alone."""
    x, y = logits(6, 300, 3.0, 0.01)
    x[1], x[2, 5], x[3, 6], y[3, 6], x[4, 7] = x[1] + 5 * torch.randn(300), -INF, -INF, -INF, NAN
    together = compare(x, y)
    for row in range(6):
        alone = compare(x[row : row + 1], y[row : row + 1])
        for name in METRICS:
            assert relative(float(together[name][row]), float(alone[name][0])) <= 1e-6 or row == 4, name
        assert bool(together.nonfinite[row]) == (row == 4)
        assert bool(together.support_violation[row]) == (row == 2)


# Dtypes and layouts


def test_dtypes_mix():
    """Each side is taken at its own dtype: bfloat16 against float32, float16 against float64."""
    x, y = logits(3, 700, 3.0, 0.1)
    for left, right in ((torch.bfloat16, torch.float32), (torch.float16, torch.float64)):
        assert worst_error(x.to(left), y.to(right))[0] <= 1e-5


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_is_a_float_dtype(dtype):
    """Float8 logits give what the same values give in float32."""
    x, y = (t.to(dtype) for t in logits(3, 700, 3.0, 0.3))
    targets = torch.tensor([0, 1, 2])
    eight, wide = compare(x, y, targets), compare(x.float(), y.float(), targets)
    assert all(torch.equal(eight[name], wide[name]) for name in wide)


def test_strides_do_not_matter():
    """Transposed, stepped, offset and expanded logits give the bits of their contiguous copies."""
    base = torch.randn(3, 4000, generator=torch.Generator().manual_seed(1))
    views = {
        "transposed": torch.randn(1333, 5).t(),
        "stepped": base[:, ::3],
        "offset": base.flatten()[17 : 17 + 2 * 1333].view(2, 1333),
        "reversed rows": base[:, :1333].flip(0)[::2],
        "expanded": base[:1, :1333].expand(4, 1333),
    }
    for name, y in views.items():
        x = y + 0.01 * torch.randn(y.shape)
        strided = x.t().contiguous().t()
        got, want = compare(strided, y), compare(x.contiguous(), y.contiguous())
        assert all(torch.equal(got[metric], want[metric]) for metric in METRICS), name


def test_the_inputs_are_left_alone():
    """Neither values nor gradients are touched, and results carry no graph."""
    x, y = logits(3, 900, 3.0, 0.1)
    before = x.clone(), y.clone()
    result = compare(x.requires_grad_(), y)
    assert torch.equal(x.detach(), before[0])
    assert torch.equal(y, before[1])
    assert not any(value.requires_grad or value.is_inference() for value in result.values())


def test_vocabularies_of_every_size_find_their_top_token():
    """The likeliest token is found in any piece of the row, the first of several when tied."""
    for width in (1, 511, 2048, 2049, 3000, 5119):
        y = torch.zeros(1, width)
        for at in {0, width // 2, width - 1}:
            x = y.clone()
            x[0, at] = 1.0
            assert compare(x, x).top1_agreement.item() == 1.0
            other = y.clone()
            other[0, (at + 1) % width] = 1.0
            assert compare(x, other).top1_agreement.item() == float(width == 1)
        tied, first = y.clone(), y.clone()
        tied[0, width // 3 :] = 1.0
        first[0, width // 3] = 1.0
        assert compare(tied, first).top1_agreement.item() == 1.0


# Masks and broken logits


def test_tokens_masked_on_both_sides_are_left_out():
    """−inf on both sides gives what the row without those tokens gives."""
    for noise in (0.01, 0.3, 3.0):
        x, y = logits(4, 3000, 3.0, noise)
        keep = torch.randperm(3000, generator=torch.Generator().manual_seed(2))[:700].sort().values
        gone = torch.ones(3000, dtype=torch.bool).index_fill(0, keep, False)
        got = compare(x.masked_fill(gone, -INF), y.masked_fill(gone, -INF))
        want = compare(x[:, keep], y[:, keep])
        assert not got.support_violation.any()
        for name in METRICS:
            torch.testing.assert_close(got[name], want[name], rtol=2e-6, atol=0)


@pytest.mark.parametrize("side", ["train", "inf"])
def test_a_token_masked_on_one_side_is_a_support_violation(side):
    """It is flagged with infinite drift, and each metric is the limit of the logit going to −∞."""
    masked, other = logits(2, 400, 2.0, 0.2)
    masked = masked.clone()
    masked[0, 5] = -INF
    low = masked.clone()
    low[0, 5] = -600.0
    pair = (masked, other) if side == "train" else (other, masked)
    near = (low, other) if side == "train" else (other, low)
    got, limit = compare(*pair), compare(*near)
    infinite = {"drift", "max_dlogp", "drift_max"}
    infinite |= {"reverse_kl", "drift_rms"} if side == "train" else {"kl", "chi2"}
    assert got.support_violation.tolist() == [True, False]
    assert not got.nonfinite.any()
    for name in METRICS:
        if name in infinite:
            assert got[name][0] == INF, name
        elif name == "ess" and side == "inf":
            assert got[name][0] == 0
        else:
            assert relative(float(got[name][0]), float(limit[name][0])) <= 1e-12, name
        assert relative(float(got[name][1]), float(limit[name][1])) <= 1e-6, name


def test_disjoint_supports_are_as_far_apart_as_can_be():
    """With no token in common the bounded metrics reach their bounds and the others are infinite."""
    x, y = torch.full((1, 9), -INF), torch.full((1, 9), -INF)
    x[0, :3], y[0, 3:] = torch.tensor([0.0, 1.0, 2.0]), 1.0
    got = compare(x, y)
    assert got.support_violation.all()
    want = {
        "tv": 1,
        "js": math.log(2),
        "hellinger": 1,
        "ess": 0,
        "top1_agreement": 0,
        "entropy_inf": math.log(6),
    }
    for name in METRICS:
        if name != "entropy_train":
            assert got[name].item() == pytest.approx(want.get(name, INF), rel=1e-12), name


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_broken_logit_voids_its_row_and_no_other(value, side, dtype):
    """NaN and +inf flag the row and make its metrics NaN; its neighbours keep theirs."""
    pair = [t.to(dtype) for t in logits(3, 5000, 3.0, 0.1)]
    clean = compare(*pair)
    pair[side][1, 4321] = value
    got = compare(*pair)
    assert got.nonfinite.tolist() == [False, True, False]
    assert not got.support_violation.any()
    for name in METRICS:
        assert math.isnan(got[name][1]), name
        torch.testing.assert_close(got[name][::2], clean[name][::2], rtol=2e-6, atol=0)


def test_a_row_masked_throughout_is_void():
    """No token is no distribution: flagged, never dropped; masked on one side only, its drift is infinite."""
    x, y = logits(4, 50, 1.0, 0.1)
    x[1] = y[1] = x[2] = y[3] = -INF
    got = compare(x, y)
    assert got.nonfinite.tolist() == [False, True, True, True]
    assert got.support_violation.tolist() == [False, False, True, True]
    assert torch.isnan(got.tv[1:]).all()
    assert torch.isnan(got.drift[1])
    assert (got.drift[2:] == INF).all()
    assert (got.max_dlogp[2:] == INF).all()


@pytest.mark.parametrize(("huge", "apart"), [(3e38, 5.9e38), (1e308, 9e299)])
def test_logits_whose_difference_overflows_are_as_far_apart_as_floats_go(huge, apart):
    """Finite logits at the end of their range are no NaN and no support violation."""
    dtype = torch.float32 if huge < 1e39 else torch.float64
    x, y = torch.tensor([[huge, -huge, 0.0]], dtype=dtype), torch.tensor([[-huge, huge, 0.0]], dtype=dtype)
    got = compare(x, y)
    assert not got.nonfinite.any()
    assert not got.support_violation.any()
    assert (got.tv.item(), got.js.item()) == pytest.approx((1, math.log(2)), rel=1e-12)
    assert got.kl.item() >= apart
    assert not any(torch.isnan(got[name]).any() for name in METRICS)


# Targets


def test_targets_give_the_log_ratio_of_the_sampled_token():
    """dlogp is log π_train − log π_inf of the target, and ratio its exponential."""
    x, y = logits(5, 800, 2.0, 0.5)
    targets = torch.tensor([0, 799, 3, 400, 77], dtype=torch.int32)
    got = compare(x, y, targets, temperature=0.8)
    rows = torch.arange(5)
    want = ((x.double() / 0.8).log_softmax(1) - (y.double() / 0.8).log_softmax(1))[rows, targets.long()]
    torch.testing.assert_close(got.dlogp, want, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(got["ratio"], want.exp(), rtol=1e-6, atol=0)


def test_masked_targets_have_the_limits_of_their_ratio():
    """A target that train masks has ratio 0, one that inf masks inf, one that both mask NaN."""
    x, y = logits(3, 40, 1.0, 0.1)
    x[0, 1] = y[1, 1] = x[2, 1] = y[2, 1] = -INF
    got = compare(x, y, torch.tensor([1, 1, 1]))
    assert got.dlogp[:2].tolist() == [-INF, INF]
    assert got.ratio[:2].tolist() == [0, INF]
    assert math.isnan(got.ratio[2])


# Results and errors


def test_results_read_by_attribute_and_as_a_mapping():
    """Every field is both; without targets, `dlogp` and `ratio` are None and no keys."""
    x, y = logits(4, 30, 1.0, 0.1)
    result = compare(x, y)
    assert set(result) == {*METRICS, "support_violation", "nonfinite"}
    assert all(result[name] is getattr(result, name) and result[name].shape == (4,) for name in result)
    assert all(result[name].dtype is torch.float64 for name in METRICS)
    assert result.nonfinite.dtype is result.support_violation.dtype is torch.bool
    assert result.dlogp is None
    with pytest.raises(KeyError, match=r"dlogp.*have drift"):
        result["dlogp"]
    with pytest.raises(KeyError, match="tvv"):
        result["tvv"]
    with pytest.raises(dataclasses.FrozenInstanceError, match="tv"):
        result.tv = result.kl
    assert set(compare(x, y, torch.zeros(4, dtype=torch.long))) - set(result) == {"dlogp", "ratio"}
    assert result == result
    assert result != compare(x, y)


def test_one_token_vocabularies_and_empty_batches():
    """With one token nothing can differ; with no rows there is nothing."""
    one = compare(torch.tensor([[3.0], [-5.0]]), torch.tensor([[9.0], [-5.0]]), torch.tensor([0, 0]))
    ones = {"ess", "top1_agreement", "ratio"}
    for name in (*METRICS, "dlogp", "ratio"):
        assert one[name].tolist() == [float(name in ones)] * 2, name
    empty = compare(torch.empty(0, 7), torch.empty(0, 7), torch.empty(0, dtype=torch.long))
    assert all(value.shape == (0,) for value in empty.values())


@pytest.mark.parametrize(
    ("train", "inf", "message"),
    [
        (torch.ones(3, 4), torch.ones(3, 5), r"train \(3, 4\) and inf \(3, 5\)"),
        (torch.ones(3), torch.ones(3), r"\[T, V\].*train \(3,\) and inf \(3,\)"),
        (torch.ones(2, 3, 4), torch.ones(2, 3, 4), r"\(2, 3, 4\)"),
        (torch.ones(3, 0), torch.ones(3, 0), r"V >= 1.*\(3, 0\)"),
        (torch.ones(3, 4), torch.ones(3, 4, device="meta"), "device.*cpu.*meta"),
    ],
)
def test_shapes_that_do_not_fit_are_named(train, inf, message):
    """What was given and what is allowed stand in the error."""
    with pytest.raises(ValueError, match=message):
        compare(train, inf)


@pytest.mark.parametrize(
    ("bad", "message"),
    [(torch.ones(3, 4).long(), "torch.int64"), ([[1.0]], "list"), (np.ones((3, 4)), "ndarray")],
)
def test_what_is_no_float_tensor_is_a_type_error(bad, message):
    """Integers, lists and arrays are named by their type, on either side."""
    with pytest.raises(TypeError, match=f"train.*{message}"):
        compare(bad, torch.ones(3, 4))
    with pytest.raises(TypeError, match=f"inf.*{message}"):
        compare(torch.ones(3, 4), bad)


@pytest.mark.parametrize("temperature", [0.0, -1.0, NAN, INF])
def test_temperatures_must_be_positive_and_finite(temperature):
    """Zero, negative, NaN and infinite temperatures are refused by value."""
    with pytest.raises(ValueError, match=f"temperature.*{temperature}"):
        compare(torch.ones(2, 3), torch.ones(2, 3), temperature=temperature)


@pytest.mark.parametrize(
    ("targets", "error", "message"),
    [
        (torch.tensor([0, 3]), ValueError, r"\[0, 3\), got 3 at index 1"),
        (torch.tensor([-1, 0]), ValueError, "got -1 at index 0"),
        (torch.tensor([0, 1, 2]), ValueError, r"\[T\] = \[2\], got \(3,\)"),
        (torch.tensor([[0], [1]]), ValueError, r"got \(2, 1\)"),
        (torch.tensor([0.0, 1.0]), TypeError, "torch.float32"),
        (torch.tensor([True, False]), TypeError, "torch.bool"),
        ([0, 1], TypeError, "list"),
    ],
)
def test_targets_outside_the_vocabulary_are_named(targets, error, message):
    """The first target that is out of range is named with its place; shapes and dtypes likewise."""
    with pytest.raises(error, match=message):
        compare(torch.ones(2, 3), torch.ones(2, 3), targets)


def test_the_last_token_is_a_target():
    """V − 1 is within range; it is the first value beyond that is not."""
    assert compare(torch.ones(2, 3), torch.ones(2, 3), torch.tensor([2, 0])).ratio.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("device", "triton", "route"),
    [("cuda", True, "compare_fused"), ("cuda", False, "compare_blocked"), ("cpu", True, "compare_blocked")],
)
def test_cuda_tensors_go_to_the_fused_kernel_where_triton_is(monkeypatch, device, triton, route):
    """The device and triton's presence decide the path, nothing else."""
    monkeypatch.setattr(divergence.importlib.util, "find_spec", lambda name: object() if triton else None)
    assert divergence._route(SimpleNamespace(device=torch.device(device))).__name__ == route


def test_comparing_on_the_cpu_does_not_import_the_fused_kernel():
    """Its module, and with it triton, is loaded for CUDA tensors only."""
    code = (
        "import sys, torch; from kernelpact.divergence import compare; before = 'triton' in sys.modules;"
        "compare(torch.ones(2, 3), torch.ones(2, 3));"
        "assert 'kernelpact.divergence.fused' not in sys.modules;"
        "assert before or 'triton' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Invariances

ROWS = st.tuples(
    st.integers(1, 40), st.sampled_from([1e-6, 1e-3, 0.1, 1.0, 20.0]), st.integers(0, 2**31), st.booleans()
)


def drawn(recipe: tuple[int, float, int, bool]) -> tuple[torch.Tensor, torch.Tensor]:
    """Two rows of float64 logits from a recipe: width, drift, seed, whether some tokens are masked on both sides."""
    width, noise, seed, masked = recipe
    draw = torch.Generator().manual_seed(seed)
    y = torch.randn(2, width, generator=draw, dtype=torch.float64) * 4
    x = y + torch.randn(2, width, generator=draw, dtype=torch.float64) * noise
    if masked:
        gone = torch.rand(2, width, generator=draw) < 0.3
        gone[:, 0] = False
        x, y = x.masked_fill(gone, -INF), y.masked_fill(gone, -INF)
    return x, y


def assert_same(got: divergence.Divergence, want: divergence.Divergence, rtol: float) -> None:
    """Every metric agrees, but for the agreement of top tokens, which rounding may tie."""
    for name in set(METRICS) - {"top1_agreement"}:
        torch.testing.assert_close(
            got[name], want[name], rtol=rtol, atol=1e-300, msg=lambda text, n=name: f"{n}: {text}"
        )


@given(ROWS, st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
def test_logits_compared_with_themselves_differ_by_exactly_nothing(recipe, dtype):
    """compare(x, x) is 0 in every divergence, 1 in ess and agreement, to the bit."""
    x = drawn(recipe)[0].to(dtype)
    result = compare(x, x, torch.zeros(2, dtype=torch.long))
    ones = {"ess", "top1_agreement", "ratio"}
    for name in set(METRICS) - {"entropy_train", "entropy_inf"} | {"ratio", "dlogp"}:
        assert result[name].tolist() == [float(name in ones)] * 2, name
    assert torch.equal(result.entropy_train, result.entropy_inf)


@given(ROWS, st.sampled_from([-64.0, 3.0, 1024.0]), st.sampled_from([-8.0, 0.5]))
def test_a_constant_added_to_a_row_changes_nothing(recipe, left, right):
    """Softmax ignores a constant on either side, and so does every metric."""
    x, y = (t.float().double() for t in drawn(recipe))  # so that the sums below are exact
    assert_same(compare(x + left, y + right), compare(x, y), 1e-9)


@given(ROWS)
def test_swapping_the_sides_swaps_the_two_kl(recipe):
    """KL changes direction, the symmetric metrics stay."""
    x, y = drawn(recipe)
    ahead, back = compare(x, y), compare(y, x)
    for one, other in (("kl", "reverse_kl"), ("reverse_kl", "kl"), ("entropy_train", "entropy_inf")):
        torch.testing.assert_close(ahead[one], back[other], rtol=1e-9, atol=1e-300)
    for name in ("drift", "tv", "js", "hellinger", "max_dlogp"):
        torch.testing.assert_close(ahead[name], back[name], rtol=1e-9, atol=1e-300)


@given(ROWS, st.integers(0, 2**31))
def test_the_order_of_the_vocabulary_does_not_matter(recipe, seed):
    """One permutation of both sides leaves every metric as it is."""
    x, y = drawn(recipe)
    order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(seed))
    assert_same(compare(x[:, order], y[:, order]), compare(x, y), 1e-9)


@given(ROWS, st.sampled_from([0.25, 0.7, 3.0]))
def test_a_temperature_is_a_division_of_the_logits(recipe, tau):
    """compare at τ is compare of logits divided by τ."""
    x, y = drawn(recipe)
    assert_same(compare(x, y, temperature=tau), compare(x / tau, y / tau), 1e-6)


@given(ROWS, st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
def test_measured_divergences_stay_within_the_bounds_of_their_drift(recipe, dtype):
    """No metric exceeds what section 4 of the design derives from the measured drift."""
    x, y = (t.to(dtype) for t in drawn(recipe))
    got = compare(x, y)
    drift = got.drift.numpy()
    slack = 1 + 1e-5
    assert (got.tv.numpy() <= bounds.total_variation(drift) * slack).all()
    assert (got.kl.numpy() <= bounds.kl(drift) * slack).all()
    assert (got.reverse_kl.numpy() <= bounds.kl(drift) * slack).all()
    assert (got.chi2.numpy() <= bounds.chi2(drift) * slack).all()
    assert (got.ess.numpy() * slack >= bounds.ess(drift)).all()
    assert (got.max_dlogp.numpy() <= 2 * drift * slack).all()
    assert (got.hellinger.numpy() ** 2 <= bounds.bhattacharyya_deficit(drift) * slack).all()
    assert (
        got.reverse_kl.numpy()
        <= bounds.kl_from_variance(got.drift_rms.numpy(), got.drift_max.numpy()) * slack
    ).all()
    assert (got.drift_rms.numpy() <= drift * slack).all()
    assert (got.drift_max.numpy() <= 2 * drift * slack).all()


@pytest.mark.parametrize("drift", [1e-6, 1e-3, 0.3, 3.0])
def test_two_points_attain_the_bound_of_their_drift(drift):
    """Half the mass at each end of the drift has exactly the total variation that its drift allows."""
    mass = torch.tensor([[-drift / 2, drift / 2]], dtype=torch.float64)
    got = compare(-mass, mass)
    assert got.drift.item() == pytest.approx(drift, rel=1e-12)
    assert got.tv.item() == pytest.approx(float(bounds.total_variation(drift)), rel=1e-9)
    assert got.tv.item() > 0.999 * float(bounds.total_variation(0.9999 * drift))


# Memory

MEASURE = """
import pathlib, re, sys, torch
from kernelpact.divergence import compare
torch.set_num_threads(2)
y = torch.randn(96, 151936, dtype=torch.bfloat16)
x = y.clone()
for row in range(96):  # row by row, so that making the inputs is no peak of its own
    x[row] += 0.02 * torch.randn(151936, dtype=torch.bfloat16)
x[0] *= 3; x[1, 5] = float("-inf")  # a row apart, and a row for float64
def naive(x, y):
    log_p, log_q = x.float().log_softmax(1), y.float().log_softmax(1)
    return (log_p.exp() * (log_p - log_q)).sum(1)
def blocked(x, y):
    return compare(x, y, torch.zeros(len(x), dtype=torch.long)).kl
def peak():  # of this process alone: ru_maxrss would start from the peak of the parent that ran it
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])
function = {"naive": naive, "blocked": blocked}[sys.argv[1]]
function(x[:1, :64], y[:1, :64])  # what loads on first use is not memory of the comparison
before = peak()
function(x, y)
print(peak() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(("form", "below"), [("blocked", True), ("naive", False)])
def test_a_comparison_takes_less_than_32_mb(form, below):
    """The peak resident set of a process grows by under 32 MB at V = 151936, and by more in the naive form."""
    run = subprocess.run([sys.executable, "-c", MEASURE, form], check=True, capture_output=True, text=True)
    megabytes = int(run.stdout) / 1024
    assert (megabytes < 32) is below, megabytes
