"""The chain of bounds, from logit drift to total variation, importance weights, reward and policy gradient.

`drift` is ε = ½ (max δ − min δ)/τ, the centred logit drift of one token in nats, δ = z_train − z_inf; w =
π_train/π_inf. Each bound holds for every pair of distributions whose drift is at most ε, and is attained unless its
docstring says otherwise. All are float64, take arrays and broadcast, give a float for scalars, and are right from
1e-12 to 700 (inf where the value exceeds float64's range). Errors: ValueError for a drift that is negative or NaN.

Source: arXiv 2606.07581 for the chain; the two-point theorem and its instances in DESIGN section 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Bound",
    "Estimator",
    "SampledEstimates",
    "Slack",
    "bhattacharyya_deficit",
    "chi2",
    "clip_budget",
    "clip_deficit",
    "ess",
    "f_divergence",
    "gradient_bias",
    "head_total_variation",
    "importance_ratio",
    "kl",
    "kl_from_variance",
    "mask_excess",
    "max_drift",
    "reward_drift",
    "sampled_token_estimates",
    "sequence_ess",
    "sequence_total_variation",
    "slack",
    "tightest_total_variation",
    "topk_total_variation",
    "total_variation",
    "total_variation_from_kl",
    "truncation_excess",
]

Array = NDArray[np.float64]
Value = Any
"""A float for scalar arguments, a float64 array for arrays."""

Estimator = Literal["uncorrected", "importance_weighted", "tis", "clipped", "masked"]
Credit = Literal["token", "causal", "outcome"]


def _array(name: str, value: ArrayLike, low: float = 0.0, high: float = math.inf) -> Array:
    """Check an argument. Errors: ValueError naming it, what was found and what is allowed."""
    array = np.asarray(value, dtype=np.float64)
    if bad := [x for x in np.atleast_1d(array).ravel() if not low <= x <= high]:
        raise ValueError(f"{name} is {bad[0]:g}: allowed are numbers from {low:g} to {high:g}")
    return array


def _give(array: Array) -> Value:
    return float(array) if array.ndim == 0 else array


def _log_cosh(x: Array) -> Array:
    """ln cosh x for x ≥ 0, without cancellation near 0 or overflow far from it."""
    near = np.log1p(2 * np.sinh(np.minimum(x, 1.0) / 2) ** 2)
    far = x + np.log1p(np.exp(-2 * x)) - math.log(2)
    return np.where(x < 1.0, near, far)


# -- one token --


def importance_ratio(drift: ArrayLike) -> Value:
    """Bound |ln w|: 2ε. Units: nats; the ratio itself lies within e^±2ε."""
    return _give(2 * _array("drift", drift))


def total_variation(drift: ArrayLike) -> Value:
    """Bound TV(π_train, π_inf): tanh(ε/2)."""
    return _give(np.tanh(_array("drift", drift) / 2))


# ε coth ε − 1 + ln(sinh ε / ε) = Σ 4ⁿ B₂ₙ / (2n)! · (1 + 1/2n) ε²ⁿ, from the Bernoulli numbers B₂ₙ.
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
_KL_SERIES = [4**n * b / math.factorial(2 * n) * (1 + 1 / (2 * n)) for n, b in enumerate(_BERNOULLI, start=1)]


def kl(drift: ArrayLike) -> Value:
    """Bound KL in either direction: C − 1 − ln C with C = 2ε/(1 − e^−2ε); at most ε²/2. Units: nats."""
    e = _array("drift", drift)
    near = np.polynomial.polynomial.polyval(np.minimum(e, 0.3) ** 2, [0.0, *_KL_SERIES])
    x = np.maximum(e, 0.3)
    # C − 1 = ε coth ε + ε − 1 and ln C = ε − ln(sinh ε / ε): written so that both parts are positive.
    with np.errstate(invalid="ignore"):
        far = x / np.tanh(x) - 1 + x + np.log1p(-np.exp(-2 * x)) - np.log(2 * x)
    far = np.where(np.isinf(x), np.inf, far)
    return _give(np.where(e < 0.3, near, far))


def chi2(drift: ArrayLike) -> Value:
    """Bound χ² = Var_inf(w): sinh² ε."""
    e = _array("drift", drift)
    with np.errstate(over="ignore"):
        return _give(np.sinh(e) ** 2)


def ess(drift: ArrayLike) -> Value:
    """Bound the effective sample size per sample from below: sech² ε."""
    return _give(np.exp(-2 * _log_cosh(_array("drift", drift))))


def bhattacharyya_deficit(drift: ArrayLike) -> Value:
    """Bound 1 − Σ √(π_train π_inf), the squared Hellinger distance: 1 − sech(ε/2)."""
    return _give(-np.expm1(-_log_cosh(_array("drift", drift) / 2)))


def truncation_excess(drift: ArrayLike, cap: ArrayLike) -> Value:
    """Bound E_inf[(w − c)₊], what truncation at c ≥ 1 drops: (√a − √c)²/(a − 1), a = e^2ε; 0 for c ≥ a."""
    e, c = np.broadcast_arrays(_array("drift", drift), _array("cap", cap, low=1.0))
    half = np.log(c) / 2
    inside = half < e
    safe = np.where(inside, e, 1.0)
    with np.errstate(invalid="ignore"):
        value = np.expm1(np.where(inside, half, 0.0) - safe) ** 2 / -np.expm1(-2 * safe)
    return _give(np.where(inside, value, 0.0))


def clip_deficit(drift: ArrayLike, floor: ArrayLike) -> Value:
    """Bound E_inf[(l − w)₊], what clipping at l ≤ 1 adds: (√(a l) − 1)²/(a − 1), a = e^2ε; 0 for l ≤ 1/a."""
    e, low = np.broadcast_arrays(_array("drift", drift), _array("floor", floor, high=1.0))
    with np.errstate(divide="ignore"):
        half = np.log(low) / 2
    inside = -half < e
    safe = np.where(inside, e, 1.0)
    with np.errstate(invalid="ignore"):
        value = low * np.expm1(-safe - np.where(inside, half, 0.0)) ** 2 / -np.expm1(-2 * safe)
    return _give(np.where(inside, value, 0.0))


def mask_excess(drift: ArrayLike, floor: ArrayLike, cap: ArrayLike) -> Value:
    """Bound P_train(w ∉ [l, c]), what masking drops: min(1, (a − c)₊/(a − 1) + (a l − 1)₊/(a − 1)).

    Each term is attained in the limit, not at it.
    """
    e = _array("drift", drift)
    low, c = _array("floor", floor, high=1.0), _array("cap", cap, low=1.0)
    e, low, c = np.broadcast_arrays(e, low, c)
    safe = np.where(e > 0, e, 1.0)
    whole = -np.expm1(-2 * safe)  # (a − 1)/a
    with np.errstate(divide="ignore"):
        above = np.maximum(0.0, -np.expm1(np.log(c) - 2 * safe)) / whole
        below = low * np.maximum(0.0, -np.expm1(-2 * safe - np.where(low > 0, np.log(low), 0.0))) / whole
    return _give(np.where(e > 0, np.minimum(1.0, above + below), 0.0))


def f_divergence(f: Callable[[Array], Array], drift: float) -> float:
    """Bound E_inf[f(w)] for a convex f by the two-point theorem.

    max over s in [1, a] of ((a − s) f(1/s) + (s − 1) f(a/s))/(a − 1): the drift sits on its two ends.
    f: vectorised over positive float64 arrays; pass a form that does not cancel near 1, such as w ln w − w + 1.
    """
    e = float(_array("drift", drift))
    if e == 0:
        return float(f(np.ones(1))[0])

    def value(u: Array) -> Array:  # s = e^(2εu)
        high = np.exp(2 * e * (u - 1)) * np.expm1(-2 * e * u) / np.expm1(-2 * e)
        low = -np.expm1(2 * e * (u - 1)) / -np.expm1(-2 * e)
        return np.asarray(low * f(np.exp(-2 * e * u)) + high * f(np.exp(2 * e * (1 - u))))

    from scipy.optimize import minimize_scalar  # late: importing the bounds must stay cheap

    ends = np.geomspace(1e-9, 0.5, 200)
    grid = np.unique(np.concatenate([[0.0, 1.0], np.linspace(0, 1, 801), ends, 1 - ends]))
    values = value(grid)
    best = int(np.argmax(values))
    around = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    refined = minimize_scalar(
        lambda u: -float(value(np.array([u]))[0]), bounds=around, method="bounded", options={"xatol": 1e-14}
    )
    return max(float(values[best]), -float(refined.fun))


# -- the variance-aware chain --


def kl_from_variance(sigma: ArrayLike, largest: ArrayLike) -> Value:
    """Bound KL(π_inf ‖ π_train) by Bennett's inequality: ln(1 + σ² (e^b − 1 − b)/b²), about σ²/2.

    sigma: σ, standard deviation of δ under π_inf. largest: b = max over the vocabulary of δ − E_inf δ. Units: nats.
    Source: Bennett 1962. Not attained in general.
    """
    s, b = np.broadcast_arrays(_array("sigma", sigma), _array("largest", largest))
    near = np.minimum(b, 1.0)
    terms = [1 / math.factorial(n + 2) for n in range(18)]
    log_near = np.log(np.polynomial.polynomial.polyval(near, terms))
    far = np.maximum(b, 1.0)
    log_far = far + np.log1p(-(1 + far) * np.exp(-far)) - 2 * np.log(far)
    with np.errstate(divide="ignore"):
        exponent = 2 * np.log(s) + np.where(b < 1.0, log_near, log_far)
    return _give(np.logaddexp(0.0, exponent))


def total_variation_from_kl(divergence: ArrayLike) -> Value:
    """Bound TV by KL in nats: min(√(KL/2), √(1 − e^−KL)). Source: Pinsker; Bretagnolle and Huber 1979."""
    d = _array("divergence", divergence)
    return _give(np.minimum(np.sqrt(d / 2), np.sqrt(-np.expm1(-d))))


def head_total_variation(head_drift: ArrayLike, tail_train: ArrayLike, tail_inf: ArrayLike) -> Value:
    """Bound TV by the drift within a head set S and the mass outside: tanh(ε_S/2) + max(tail masses)."""
    tails = np.maximum(_array("tail_train", tail_train, high=1.0), _array("tail_inf", tail_inf, high=1.0))
    return _give(np.minimum(1.0, np.tanh(_array("head_drift", head_drift) / 2) + tails))


@dataclass(frozen=True)
class Bound:
    """A bound, and which one it is. vacuous: it says nothing that is not known without it."""

    value: float
    name: str
    vacuous: bool


def tightest_total_variation(
    drift: float,
    *,
    sigma: float | None = None,
    largest: float | None = None,
    head: tuple[float, float, float] | None = None,
    horizon: int = 1,
) -> Bound:
    """Give the smallest bound on TV over `horizon` tokens that the known figures allow, and its name.

    sigma, largest: as in `kl_from_variance`, both or neither. head: (drift, tail_train, tail_inf), one token only.
    """
    options = {"logit_drift": sequence_total_variation(drift, horizon)}
    if sigma is not None and largest is not None:
        options["logit_drift_rms"] = total_variation_from_kl(horizon * kl_from_variance(sigma, largest))
    if head is not None and horizon == 1:
        options["head_drift"] = head_total_variation(*head)
    name = min(options, key=options.__getitem__)
    return Bound(float(options[name]), name, bool(options[name] >= _VACUOUS))


_VACUOUS = 0.999


# -- sequences --


def _over_sequence(per_token: Array, horizon: int | None) -> Array:
    if horizon is not None:
        if int(horizon) != horizon or horizon < 1:
            raise ValueError(f"horizon is {horizon}: allowed are whole numbers from 1")
        return per_token * horizon
    return per_token.sum(-1) if per_token.ndim else per_token


def sequence_total_variation(drift: ArrayLike, horizon: int | None = None) -> Value:
    """Bound TV of whole responses: √(1 − Π sech²(ε_t/2)).

    drift: [..., T] drifts that may differ; or, with `horizon`, the drift of each of that many tokens. Exact at T = 1;
    within √(π/2) of the truth for small equal drifts as T grows.
    """
    logs = _over_sequence(_log_cosh(_array("drift", drift) / 2), horizon)
    return _give(np.sqrt(-np.expm1(-2 * logs)))


def sequence_ess(drift: ArrayLike, horizon: int | None = None) -> Value:
    """Bound ESS per response from below: Π sech² ε_t. Shapes: as sequence_total_variation."""
    return _give(np.exp(-2 * _over_sequence(_log_cosh(_array("drift", drift)), horizon)))


def reward_drift(
    drift: ArrayLike, horizon: int | None = 1, reward: tuple[float, float] = (0.0, 1.0)
) -> Value:
    """Bound |E_train R − E_inf R| for R in [low, high]: (high − low) TV_T. Units: of the reward."""
    low, high = reward
    if not low < high:
        raise ValueError(f"reward is {list(reward)}: allowed is [low, high] with low < high")
    return _give(np.asarray((high - low) * sequence_total_variation(drift, horizon)))


# -- the policy gradient --


def gradient_bias(
    drift: ArrayLike,
    *,
    estimator: Estimator = "uncorrected",
    cap: float | None = None,
    floor: float | None = None,
    advantage_max: float = 1.0,
    score_norm_max: float = 1.0,
    horizon: int = 1,
    credit: Credit = "token",
) -> Value:
    """Bound the norm of the bias of a policy-gradient estimator on rollouts from K_inf.

    Assumes common support, |A| ≤ advantage_max, ‖∇ log π‖ ≤ score_norm_max. Units: their product.
    estimator: uncorrected; importance_weighted (exact weights); tis (weights truncated at `cap`); clipped (to [floor,
    cap]); masked (0 outside [floor, cap]). Clipping to [1, 1] is the uncorrected estimator.
    credit: `token`, one token; over `horizon` tokens of equal drift, `causal` where the advantage of a token depends on
    tokens up to it, `outcome` where it depends on the whole response. Per-token weights leave the prefix (causal) and
    the rest of the response (outcome) uncorrected.
    Errors: ValueError for an estimator without the cap or floor that it needs.
    """
    e = _array("drift", drift)
    scale = float(_array("advantage_max", advantage_max)) * float(_array("score_norm_max", score_norm_max))
    token = _token_bias(e, estimator, cap, floor)
    if credit == "token":
        return _give(np.asarray(scale * token))
    if credit == "outcome":
        whole = 2 * np.asarray(sequence_total_variation(e, horizon))
        spread = 0.0 if estimator == "uncorrected" else 2 * np.tanh(e / 2) + token
        return _give(np.asarray(scale * horizon * (whole + spread)))
    if credit != "causal":
        raise ValueError(f"credit is {credit!r}: allowed are {', '.join(get_args(Credit))}")
    total = np.zeros_like(e)
    for t in range(1, horizon + 1):
        if estimator == "uncorrected":
            total = total + 2 * np.asarray(sequence_total_variation(e, t))
        else:
            prefix = 2 * np.asarray(sequence_total_variation(e, t - 1)) if t > 1 else np.zeros_like(e)
            weight = 1 + (np.asarray(clip_deficit(e, floor)) if estimator == "clipped" and floor else 0.0)
            total = total + prefix * weight + token
    return _give(np.asarray(scale * total))


def _token_bias(e: Array, estimator: str, cap: float | None, floor: float | None) -> Array:
    """Bound E_inf|ŵ − w| of one token."""
    if estimator not in get_args(Estimator):
        raise ValueError(f"estimator is {estimator!r}: allowed are {', '.join(get_args(Estimator))}")
    if estimator == "uncorrected":
        return np.asarray(2 * np.tanh(e / 2))
    if estimator == "importance_weighted":
        return np.zeros_like(e)
    if cap is None:
        raise ValueError(f"estimator {estimator!r} needs cap, the largest weight, at least 1")
    if estimator == "tis":
        return np.asarray(truncation_excess(e, cap))
    if estimator == "masked":
        return np.asarray(mask_excess(e, 0.0 if floor is None else floor, cap))
    deficit = clip_deficit(e, 0.0 if floor is None else floor)
    return np.asarray(truncation_excess(e, cap) + deficit)


def clip_budget(drift: ArrayLike, low: float = 0.2, high: float = 0.2) -> Value:
    """Give the share of a PPO range [1 − low, 1 + high] that the kernels alone consume: 2ε/min(ln(1+high), −ln(1−low)).

    At most 1: the range is never touched by the kernels alone. Units: 1.
    """
    if not (0 < low < 1 and high > 0):
        raise ValueError(f"clip range is [1 - {low:g}, 1 + {high:g}]: allowed are 0 < low < 1 and high > 0")
    return _give(2 * _array("drift", drift) / min(math.log1p(high), -math.log1p(-low)))


# -- inverses --

_INVERTIBLE: dict[str, Callable[..., Value]] = {}


def max_drift(*, quantity: str, budget: float, horizon: int = 1, **options: Any) -> float:
    """Give the largest ε whose bound on `quantity` is within `budget`; inf where nothing binds.

    quantity: the name of a bound in this module that takes a drift. options: what that bound takes beside the drift.
    ess and sequence_ess are floors: the budget is the least allowed.
    Errors: ValueError for an unknown quantity, or a budget that is negative or NaN.
    """
    if quantity not in _INVERTIBLE:
        raise ValueError(f"quantity is {quantity!r}: allowed are {', '.join(sorted(_INVERTIBLE))}")
    limit = float(_array("budget", budget))
    floor = quantity in ("ess", "sequence_ess")
    if floor and limit > 1:
        raise ValueError(f"budget is {limit:g}: no drift gives an effective sample size above 1")
    bound = _INVERTIBLE[quantity]
    if quantity in ("sequence_total_variation", "sequence_ess", "reward_drift", "gradient_bias"):
        options["horizon"] = horizon

    def excess(drift: float) -> float:
        value = float(bound(drift, **options))
        return limit - value if floor else value - limit

    return _largest(excess)


_FARTHEST = 1e4  # beyond it no bound changes in float64


def _largest(excess: Callable[[float], float]) -> float:
    """Give the largest drift with excess ≤ 0, of a function that does not fall."""
    if excess(_FARTHEST) <= 0:
        return math.inf
    high = _FARTHEST
    low = high / 2
    while excess(low) > 0:
        high, low = low, low / 2
        if low < 1e-300:
            return 0.0
    from scipy.optimize import brentq  # late: importing the bounds must stay cheap

    finite = {True: 1e300, False: -1e300}
    root = brentq(
        lambda d: value if math.isfinite(value := excess(d)) else finite[value > 0],
        low, high, xtol=1e-300, rtol=8.9e-16, maxiter=500,
    )  # fmt: skip
    drift = float(root)
    while excess(drift) > 0 and drift > low:  # on the allowed side of the last bit
        drift = math.nextafter(drift, 0.0)
    return drift


# -- from samples and top-k lists --


def topk_total_variation(train: ArrayLike, inf: ArrayLike) -> tuple[Value, Value]:
    """Bound TV from both sides by the probabilities [..., k] of the ids U that both sides report.

    ½(Σ_U|p−q| + |p̄−q̄|) ≤ TV ≤ ½(Σ_U|p−q| + p̄ + q̄), with p̄ and q̄ the mass outside U.
    """
    p, q = _array("train", train, high=1.0), _array("inf", inf, high=1.0)
    inside = np.abs(p - q).sum(-1)
    tail_p, tail_q = np.maximum(0.0, 1 - p.sum(-1)), np.maximum(0.0, 1 - q.sum(-1))
    return (
        _give(np.asarray((inside + np.abs(tail_p - tail_q)) / 2)),
        _give(np.asarray((inside + tail_p + tail_q) / 2)),
    )


@dataclass(frozen=True)
class SampledEstimates:
    """Estimates from tokens sampled by K_inf, equal support. Units: nats for k1 and k3, else 1.

    tv: ½ mean|w − 1|. k1, k3: KL(inf‖train) by −ln w and w − 1 − ln w. chi2: mean (w − 1)². mean_ratio: of w, which is
    1 up to its standard error where the support is equal.
    """

    tv: float
    k1: float
    k3: float
    chi2: float
    mean_ratio: float
    mean_ratio_stderr: float
    count: int


def sampled_token_estimates(logp_train: ArrayLike, logp_inf: ArrayLike) -> SampledEstimates:
    """Estimate divergences from the log-probs [N] of sampled tokens. Errors: ValueError for N = 0 or NaN."""
    train, inf = np.asarray(logp_train, np.float64), np.asarray(logp_inf, np.float64)
    if train.shape != inf.shape or not train.size:
        raise ValueError(
            f"log-probs of shapes {train.shape} and {inf.shape}: allowed are two equal, non-empty shapes"
        )
    log_w = train - inf
    if not np.isfinite(log_w).all():
        raise ValueError("a log-prob is not finite on one side: not the same support")
    excess = np.expm1(log_w)
    spread = float(excess.std(ddof=1)) / math.sqrt(excess.size) if excess.size > 1 else math.inf
    return SampledEstimates(
        float(np.abs(excess).mean() / 2), float(-log_w.mean()), float((excess - log_w).mean()),
        float((excess**2).mean()), float(1 + excess.mean()), spread, int(excess.size),
    )  # fmt: skip


@dataclass(frozen=True)
class Slack:
    """How much of a bound and of a limit is used. Ratios; None where there is nothing to divide by."""

    observed: float
    bound: float
    allowed: float | None
    of_bound: float | None
    of_allowed: float | None


def slack(observed: float, bound: float, allowed: float | None = None) -> Slack:
    """Set an observation beside its bound and its limit."""
    share = observed / bound if bound else None
    return Slack(observed, bound, allowed, share, observed / allowed if allowed else None)


_INVERTIBLE.update(
    total_variation=total_variation, kl=kl, chi2=chi2, ess=ess, importance_ratio=importance_ratio,
    bhattacharyya_deficit=bhattacharyya_deficit, truncation_excess=truncation_excess, clip_deficit=clip_deficit,
    mask_excess=mask_excess, sequence_total_variation=sequence_total_variation, sequence_ess=sequence_ess,
    reward_drift=reward_drift, gradient_bias=gradient_bias, clip_budget=clip_budget,
)  # fmt: skip
