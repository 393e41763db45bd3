"""The bounds are theorems: search never exceeds them, their extremal cases reach them, and mpmath agrees."""

import json
import math

import mpmath
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from kernelpact import bounds
from kernelpact.cli.bounds import command

DRIFTS = st.floats(1e-6, 6.0)
mpmath.mp.dps = 50


def softmax(z):
    """Give the distribution of logits, in float64."""
    w = np.exp(z - z.max())
    return w / w.sum()


def two_point(drift, share):
    """Give the extremal pair: π_inf with mass `share` on the token whose logit K_train raises by 2ε."""
    inf = np.array([1 - share, share])
    train = inf * np.array([1.0, math.exp(2 * drift)])
    return train / train.sum(), inf


def extremal_share(drift):
    """Give the share at which TV, ESS and Bhattacharyya are attained."""
    return 1 / (1 + math.exp(drift))


def figures(train, inf):
    """Measure everything that one token's bounds speak of."""
    w = train / inf
    return {
        "total_variation": np.abs(train - inf).sum() / 2,
        "kl": (inf * (w * np.log(w) - w + 1)).sum(),
        "chi2": (inf * (w - 1) ** 2).sum(),
        "importance_ratio": np.abs(np.log(w)).max(),
        "bhattacharyya_deficit": (inf * (np.sqrt(w) - 1) ** 2).sum() / 2,
    }


@given(DRIFTS, st.integers(0, 2**32 - 1), st.integers(2, 30), st.floats(0.1, 8.0))
def test_no_distribution_exceeds_a_bound(drift, seed, size, spread):
    """Whatever the distribution and the drift within ε, what is measured stays within each bound."""
    random = np.random.default_rng(seed)
    z = random.normal(size=size) * spread
    delta = random.choice([-drift, drift], size) if seed % 2 else random.uniform(-drift, drift, size)
    train, inf = softmax(z + delta), softmax(z)
    for name, value in figures(train, inf).items():
        assert value <= getattr(bounds, name)(drift) * (1 + 1e-9) + 1e-15, name
    assert figures(inf, train)["kl"] <= bounds.kl(drift) * (1 + 1e-9) + 1e-15
    assert 1 / (1 + figures(train, inf)["chi2"]) >= bounds.ess(drift) * (1 - 1e-9)


@given(DRIFTS, st.integers(0, 2**32 - 1), st.floats(1.0, 4.0), st.floats(0.1, 1.0))
def test_no_distribution_exceeds_a_weight_bound(drift, seed, cap, floor):
    """Truncation, clipping and masking drop or add no more than their bounds."""
    random = np.random.default_rng(seed)
    inf = softmax(random.normal(size=6) * 3)
    w = np.exp(random.choice([-drift, drift], 6))
    w /= (inf * w).sum()
    assert (inf * np.maximum(w - cap, 0)).sum() <= bounds.truncation_excess(drift, cap) + 1e-12
    assert (inf * np.maximum(floor - w, 0)).sum() <= bounds.clip_deficit(drift, floor) + 1e-12
    outside = (w > cap * (1 + 1e-12)) | (w < floor * (1 - 1e-12))
    assert (inf * w * outside).sum() <= bounds.mask_excess(drift, floor, cap) + 1e-9


@given(st.floats(1e-3, 3.0), st.integers(0, 1000))
def test_gradient_ascent_on_the_drift_does_not_pass_the_bound(drift, seed):
    """Climbing TV over δ and over π_inf ends at or below tanh(ε/2)."""
    random = np.random.default_rng(seed)
    z, delta = random.normal(size=5), random.uniform(-drift, drift, 5)
    for _ in range(40):
        train, inf = softmax(z + delta), softmax(z)
        sign = np.sign(train - inf)
        slope = train * (sign - (train * sign).sum()) / 2
        delta = np.clip(delta + 5 * drift * slope, -drift, drift)
        z = z + slope - inf * (sign - (inf * sign).sum()) / 2
    assert figures(softmax(z + delta), softmax(z))["total_variation"] <= bounds.total_variation(drift) + 1e-12


@pytest.mark.parametrize("drift", [1e-3, 0.1, 1.0, 5.0])
def test_each_bound_is_attained(drift):
    """The two-point pair reaches TV, χ², Bhattacharyya, KL and the clipping bounds to 1e-9."""
    train, inf = two_point(drift, extremal_share(drift))
    found = figures(train, inf)
    for name in ("total_variation", "bhattacharyya_deficit"):
        assert found[name] == pytest.approx(getattr(bounds, name)(drift), rel=1e-9)
    a = math.exp(2 * drift)
    best = figures(*two_point(drift, 1 / (a + 1)))  # s = 2a/(a + 1)
    assert best["chi2"] == pytest.approx(bounds.chi2(drift), rel=1e-9)
    c = 2 * drift / -math.expm1(-2 * drift)
    shares = np.concatenate([np.linspace(1e-6, 1 - 1e-6, 200_001), np.geomspace(1e-8, 0.5, 400_001)])
    s = 1 + shares * (a - 1)
    kl = shares * a / s * np.log(a / s) + (1 - shares) / s * np.log(1 / s)
    assert kl.max() == pytest.approx(c - 1 - math.log(c), rel=1e-7)
    for cap in (1.0, math.exp(drift / 2)):
        excess = shares * (a / s - cap)
        assert excess.max() == pytest.approx(bounds.truncation_excess(drift, cap), rel=1e-7)


@pytest.mark.parametrize("drift", [1e-12, 1e-9, 1e-5, 1e-2, 0.299, 0.301, 1.0, 30.0, 700.0])
def test_closed_forms_agree_with_fifty_digits(drift):
    """From 1e-12 to 700 every closed form is right to 1e-12."""
    e = mpmath.mpf(drift)
    a, c = mpmath.e ** (2 * e), 2 * e / (1 - mpmath.e ** (-2 * e))
    cap, floor = mpmath.mpf("1.5"), mpmath.mpf("0.75")
    exact = {
        "total_variation": mpmath.tanh(e / 2),
        "kl": c - 1 - mpmath.log(c),
        "chi2": mpmath.sinh(e) ** 2,
        "ess": mpmath.sech(e) ** 2,
        "bhattacharyya_deficit": 1 - mpmath.sech(e / 2),
    }
    for name, value in exact.items():
        assert getattr(bounds, name)(drift) == pytest.approx(float(value), rel=1e-12), name
    excess = (mpmath.sqrt(a) - mpmath.sqrt(cap)) ** 2 / (a - 1) if cap < a else 0
    deficit = (mpmath.sqrt(a * floor) - 1) ** 2 / (a - 1) if a * floor > 1 else 0
    assert bounds.truncation_excess(drift, 1.5) == pytest.approx(float(excess), rel=1e-12)
    assert bounds.clip_deficit(drift, 0.75) == pytest.approx(float(deficit), rel=1e-12)
    sequence = mpmath.sqrt(1 - mpmath.sech(e / 2) ** 2048)
    assert bounds.sequence_total_variation(drift, 1024) == pytest.approx(float(sequence), rel=1e-12)


@pytest.mark.parametrize("drift", [1e-3, 0.3, 2.0])
def test_closed_forms_are_instances_of_the_two_point_theorem(drift):
    """The generic maximum over two-point distributions gives the same numbers."""
    forms = {
        "total_variation": lambda w: np.abs(w - 1) / 2,
        "chi2": lambda w: (w - 1) ** 2,
        "kl": lambda w: np.where(
            np.abs(w - 1) < 1e-4, (w - 1) ** 2 / 2 - (w - 1) ** 3 / 6, w * np.log(w) - w + 1
        ),
        "bhattacharyya_deficit": lambda w: (np.sqrt(w) - 1) ** 2 / 2,
    }
    for name, f in forms.items():
        assert bounds.f_divergence(f, drift) == pytest.approx(getattr(bounds, name)(drift), rel=1e-8), name
    excess = bounds.f_divergence(lambda w: np.maximum(w - 1.2, 0), drift)
    assert excess == pytest.approx(bounds.truncation_excess(drift, 1.2), rel=1e-8)


@given(st.lists(st.floats(0, 50), min_size=2, max_size=2))
def test_bounds_grow_with_drift(pair):
    """More drift never makes a bound smaller (ESS never larger)."""
    low, high = sorted(pair)
    for name in ("total_variation", "kl", "chi2", "importance_ratio", "bhattacharyya_deficit"):
        assert getattr(bounds, name)(low) <= getattr(bounds, name)(high), name
    assert bounds.ess(low) >= bounds.ess(high)
    for name, options in {"truncation_excess": {"cap": 1.3}, "clip_deficit": {"floor": 0.7}}.items():
        assert getattr(bounds, name)(low, **options) <= getattr(bounds, name)(high, **options) * (
            1 + 1e-12
        ), name
    assert bounds.mask_excess(low, 0.7, 1.3) <= bounds.mask_excess(high, 0.7, 1.3) * (1 + 1e-12)


@given(
    st.sampled_from(
        ["total_variation", "kl", "chi2", "ess", "importance_ratio", "reward_drift", "sequence_ess"]
    ),
    st.floats(1e-9, 3.0),
    st.sampled_from([1, 7, 512]),
)
def test_an_inverse_undoes_its_bound(quantity, drift, horizon):
    """The largest drift within a bound's own value is the drift it came from, and stays within it."""
    options = {"horizon": horizon} if quantity in ("reward_drift", "sequence_ess") else {}
    budget = getattr(bounds, quantity)(drift, **options)
    if budget in (0.0, 1.0):
        return  # saturated in float64: nothing left to invert
    found = bounds.max_drift(quantity=quantity, budget=budget, horizon=horizon)
    value = getattr(bounds, quantity)(found, **options)
    assert value >= budget if "ess" in quantity else value <= budget
    if 1e-3 < abs(budget) < 0.999:
        assert found == pytest.approx(drift, rel=1e-6)


def test_a_budget_that_nothing_exceeds_allows_any_drift():
    """TV is at most 1, so a budget of 1 binds nothing."""
    assert bounds.max_drift(quantity="total_variation", budget=1.0) == math.inf
    assert bounds.max_drift(quantity="total_variation", budget=0.0) == 0.0


@given(st.lists(st.floats(0.0, 1.5), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_no_markov_chain_exceeds_the_sequence_bound(drifts, seed):
    """Enumerating every response of a random chain, TV and ESS stay within bounds for unequal drifts."""
    random = np.random.default_rng(seed)
    train, inf = np.ones(1), np.ones(1)
    for drift in drifts:
        z = random.normal(size=(len(inf), 3)) * 2
        delta = random.choice([-drift, drift], z.shape)
        rows = [(softmax(a + b), softmax(a)) for a, b in zip(z, delta, strict=True)]
        train = np.concatenate([p * row[0] for p, row in zip(train, rows, strict=True)])
        inf = np.concatenate([q * row[1] for q, row in zip(inf, rows, strict=True)])
    assert np.abs(train - inf).sum() / 2 <= bounds.sequence_total_variation(drifts) + 1e-12
    assert 1 / ((train**2 / inf).sum()) >= bounds.sequence_ess(drifts) - 1e-12


def test_one_token_is_exact_and_long_sequences_are_within_root_half_pi():
    """At T = 1 the sequence bound is tanh(ε/2); for small drifts it is √(π/2) of a Gaussian's TV as T grows."""
    assert bounds.sequence_total_variation(0.3, 1) == pytest.approx(math.tanh(0.15), rel=1e-12)
    drift, horizon = 1e-5, 10**6
    gaussian = math.erf(
        drift / 2 * math.sqrt(horizon) / math.sqrt(2)
    )  # two product laws, ε/2·√T apart each way
    assert bounds.sequence_total_variation(drift, horizon) / gaussian == pytest.approx(
        math.sqrt(math.pi / 2), rel=1e-4
    )


@given(st.floats(1e-3, 3.0), st.integers(0, 2**32 - 1))
def test_bennett_bounds_the_divergence_by_the_variance(drift, seed):
    """KL(inf ‖ train) is within ln(1 + σ²(e^b − 1 − b)/b²), and TV within what follows."""
    random = np.random.default_rng(seed)
    inf = softmax(random.normal(size=9) * 3)
    delta = random.uniform(-drift, drift, 9)
    delta -= (inf * delta).sum()
    train = inf * np.exp(delta)
    train /= train.sum()
    bound = bounds.kl_from_variance(math.sqrt((inf * delta**2).sum()), delta.max())
    assert (inf * np.log(inf / train)).sum() <= bound * (1 + 1e-9) + 1e-15
    assert np.abs(train - inf).sum() / 2 <= bounds.total_variation_from_kl(bound) + 1e-12


def test_the_tightest_bound_is_named():
    """Small variance under large drift makes the variance-aware bound the smaller one."""
    found = bounds.tightest_total_variation(0.25, sigma=0.01, largest=0.4)
    assert (found.name, found.vacuous) == ("logit_drift_rms", False)
    assert bounds.tightest_total_variation(0.01, sigma=0.5, largest=0.5).name == "logit_drift"
    assert bounds.tightest_total_variation(0.5, horizon=4096).vacuous


def test_clipping_to_one_is_the_uncorrected_estimator():
    """Clip(w, 1, 1) ≡ 1: a clip range of 0 does not remove the bias, it is all of it."""
    uncorrected = bounds.gradient_bias(0.4, advantage_max=3, score_norm_max=2)
    clipped = bounds.gradient_bias(
        0.4, estimator="clipped", cap=1.0, floor=1.0, advantage_max=3, score_norm_max=2
    )
    assert clipped == pytest.approx(uncorrected, rel=1e-12)
    assert uncorrected == pytest.approx(2 * 3 * 2 * math.tanh(0.2), rel=1e-12)
    assert bounds.gradient_bias(0.4, estimator="importance_weighted") == 0.0


@given(st.floats(0.01, 2.0), st.integers(0, 2**32 - 1), st.floats(1.0, 3.0), st.floats(0.2, 1.0))
def test_no_estimator_is_more_biased_than_its_bound(drift, seed, cap, floor):
    """The measured bias of each estimator, at the worst advantages, stays within its bound."""
    random = np.random.default_rng(seed)
    inf = softmax(random.normal(size=6) * 2)
    w = np.exp(random.choice([-drift, drift], 6))
    w /= (inf * w).sum()
    estimates = {
        "uncorrected": np.ones(6),
        "tis": np.minimum(w, cap),
        "clipped": np.clip(w, floor, cap),
        "masked": np.where((w >= floor) & (w <= cap), w, 0.0),
    }
    for estimator, used in estimates.items():
        bias = (inf * np.abs(used - w)).sum()
        allowed = bounds.gradient_bias(drift, estimator=estimator, cap=cap, floor=floor)
        assert bias <= allowed + 1e-9, estimator


def test_top_k_lists_bound_tv_from_both_sides():
    """The truth lies between the two, and equal lists without tails give 0."""
    random = np.random.default_rng(0)
    p, q = softmax(random.normal(size=50) * 2), softmax(random.normal(size=50) * 2)
    low, high = bounds.topk_total_variation(p[:10], q[:10])
    assert low <= np.abs(p - q).sum() / 2 <= high
    assert bounds.topk_total_variation([0.5, 0.5], [0.5, 0.5]) == (0.0, 0.0)


def test_sampled_tokens_estimate_the_truth():
    """With 200,000 sampled tokens each estimate is within five standard errors, and E[w] is 1."""
    random = np.random.default_rng(1)
    inf = softmax(random.normal(size=8))
    train = softmax(np.log(inf) + random.uniform(-0.3, 0.3, 8))
    ids = random.choice(8, 200_000, p=inf)
    found = bounds.sampled_token_estimates(np.log(train[ids]), np.log(inf[ids]))
    truth = figures(train, inf)
    assert found.tv == pytest.approx(truth["total_variation"], rel=0.02)
    assert found.chi2 == pytest.approx(truth["chi2"], rel=0.03)
    assert found.k3 == pytest.approx((inf * np.log(inf / train)).sum(), rel=0.03)
    assert abs(found.mean_ratio - 1) < 5 * found.mean_ratio_stderr


@pytest.mark.parametrize("drift", [-0.1, float("nan")])
def test_a_drift_that_is_none_is_refused(drift):
    """A negative or NaN drift is an error that names it, never a number."""
    with pytest.raises(ValueError, match=r"drift is .*allowed are numbers from 0"):
        bounds.total_variation(drift)


def test_bounds_are_vectorised():
    """Arrays give arrays of the same shape; scalars give floats."""
    drifts = np.array([[0.0, 1e-3], [1.0, 700.0]])
    for name in ("total_variation", "kl", "ess", "importance_ratio"):
        assert getattr(bounds, name)(drifts).shape == drifts.shape
        assert isinstance(getattr(bounds, name)(0.5), float)


def run(*arguments):
    """Run `kernelpact bounds`."""
    return CliRunner().invoke(command, arguments)


def test_the_command_gives_one_flat_object():
    """The JSON's keys are drift, horizon and the functions' names; the values are the functions'."""
    found = json.loads(run("--drift", "0.01", "--horizon", "1024", "--json").output)
    assert not [value for value in found.values() if isinstance(value, dict | list)]
    assert found["total_variation"] == bounds.total_variation(0.01)
    assert found["sequence_total_variation"] == bounds.sequence_total_variation(0.01, 1024)
    assert {
        "kl",
        "chi2",
        "importance_ratio",
        "ess",
        "truncation_excess",
        "clip_deficit",
        "sequence_ess",
    } <= set(found)
    assert {"reward_drift", "gradient_bias", "clip_budget"} <= set(found)


def test_the_command_inverts_a_budget():
    """`--reward-drift` gives the ε whose reward drift is the budget."""
    found = json.loads(run("--reward-drift", "0.05", "--horizon", "512", "--json").output)
    assert found["reward_drift"] == pytest.approx(0.05, rel=1e-9)
    assert found["drift"] == bounds.max_drift(quantity="reward_drift", budget=0.05, horizon=512)


def test_the_command_takes_assumptions():
    """Reward range, advantage and score norm scale what they should."""
    options = ("--reward", "-1", "1", "--advantage", "4", "--score-norm", "10", "--cap", "1.01", "--json")
    found = json.loads(run("--drift", "0.1", *options).output)
    assert found["reward_drift"] == pytest.approx(2 * bounds.reward_drift(0.1))
    assert found["gradient_bias"] == pytest.approx(40 * bounds.truncation_excess(0.1, 1.01))


def test_the_command_says_when_a_bound_is_vacuous():
    """A bound that says nothing is called vacuous at its horizon, not printed as 1."""
    assert "vacuous at T = 4096" in run("--drift", "1", "--horizon", "4096").output
    assert "vacuous" not in run("--drift", "0.001", "--horizon", "16").output


@pytest.mark.parametrize("arguments", [(), ("--drift", "1", "--tv", "0.1"), ("--drift", "-1")])
def test_the_command_refuses_what_it_cannot_answer(arguments):
    """No question, two questions, or a negative drift: exit 2 and a message."""
    done = run(*arguments)
    assert done.exit_code == 2
    assert "Error" in done.output
