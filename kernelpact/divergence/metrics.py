"""The metrics of each row from its sums, and whether the sums were precise enough.

`blocked` and `fused` compute sums in different ways; what a mask forces and what a void row is, they
share here.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

Columns = dict[str, Tensor]

# The smooth route: largest |l|, and there h as a polynomial in l (1, l, l², …; Chebyshev nodes). Relative
# errors stay below 1.4e-6 in float32 and 4e-12 in float64; tests/test_divergence.py computes them again.
#   reverse_kl   1/l − 1/expm1(l)
#   js           (1 − coth(l/2)·ln cosh(l/2)/(l/2))/4
#   hellinger²   tanh(l/4)/(2l)
#   E_q l²       l/expm1(l)
#   chi2         expm1(l)/l, where it pays: elsewhere χ² is summed by itself
POLYNOMIALS: dict[torch.dtype, dict[float, tuple[tuple[float, ...], ...]]] = {
    torch.float32: {
        0.1875: (
            (0.5, -0.083333328228850601, 0.0, 0.0013877272078739661),
            (0.12499995984250225, 0.0, -0.0051991931207117701, 0.0),
            (0.12499998995065476, 0.0, -0.0026018796281033791, 0.0),
            (1.000000214397247, -0.5, 0.083284540944198782, 0.0),
            (0.99999871146153903, 0.4999997852885236, 0.16695985008321848, 0.04171552162273947),
        ),
        0.75: (
            (0.5, -0.083330120263065165, 0.0, 0.0013659600767108592, 0.0),
            (0.125, 0.0, -0.0052070088026754688, 0.0, 0.0002509204122638105),
            (0.125, 0.0, -0.0026040066774765677, 0.0, 6.3962413754385968e-5),
            (1.0, -0.5, 0.083330120263065165, 0.0, -0.0013659600767108592),
        ),
        2.5: (
            (
                *(0.5, -0.083333297460731929, 0.0, 0.0013887731881285402, 0.0, -3.2962999141786551e-5),
                *(0.0, 7.8642554727055916e-7, 0.0, -1.3837916434549166e-8, 0.0),
            ),
            (
                *(0.125, 0.0, -0.0052082040362681568, 0.0, 0.00025999381000366202, 0.0),
                *(-1.3550354676465505e-5, 0.0, 6.5419811611438523e-7, 0.0, -1.9290209976752447e-8),
            ),
            (
                *(0.125, 0.0, -0.0026041648499452925, 0.0, 6.5098307140191759e-5, 0.0),
                *(-1.6416230797220459e-6, 0.0, 3.9672065984746518e-8, 0.0, -7.0009390174786199e-10),
            ),
            (
                *(1.0, -0.5, 0.083333297460731929, 0.0, -0.0013887731881285402, 0.0),
                *(3.2962999141786551e-5, 0.0, -7.8642554727055916e-7, 0.0, 1.3837916434549166e-8),
            ),
        ),
    },
    torch.float64: {
        0.0625: (
            (0.5, -0.083333333175668335, 0.0, 0.0013887274359885273, 0.0),
            (0.125, 0.0, -0.0052083332668293356, 0.0, 0.00026034856267313123),
            (0.125, 0.0, -0.0026041666588142232, 0.0, 6.5096125565682916e-5),
            (1.0, -0.5, 0.083333333175668335, 0.0, -0.0013887274359885273),
        ),
    },
}


def at_tokens(logits: Tensor, tokens: Tensor) -> Tensor:
    """The logit of one token of each row, [T] in float64. Indexes, since gather knows no float8."""
    return logits[torch.arange(len(tokens), device=tokens.device), tokens].double()


def metrics(table: Columns, dtype: torch.dtype, temperature: float) -> Columns:
    """The metrics of each row from its sums, float64 [T]; with `settled` where the sums are float32."""
    cols = {name: column.double() for name, column in table.items() if not name.startswith(("top", "head"))}
    direct = torch.isinf(cols["limit"])
    smooth, exact = _smooth_metrics(cols, dtype), _direct_metrics(cols, dtype)
    out = {name: torch.where(direct, exact[name], smooth[name]) for name in smooth}
    out["center"] = cols["center"]
    out["entropy_inf"] = torch.log1p(cols["rest"]) - cols["sum_a"] / (1 + cols["rest"])
    out["top1_agreement"] = (table["top"] == table["head"]).double()
    hi, lo = ((cols[name] - cols["center"]) / temperature - out["shift"] for name in ("hi", "lo"))
    out["max_dlogp"] = torch.maximum(hi, -lo)
    out["drift"] = (cols["hi"] - cols["lo"]) / (2 * temperature)
    out["drift_max"] = hi + out["reverse_kl"]  # E_q l = −KL(q‖p)
    if dtype is torch.float32:
        cols["head_exact"] = table["head_exact"].double()
        out["settled"] = _settled32(cols, out, temperature)
    return limits(out, cols)


def _smooth_metrics(cols: Columns, dtype: torch.dtype) -> Columns:
    partition = 1 + cols["rest"]
    growth = 1 - 2 * cols["gamma"]
    scale = 1 / (partition * growth)
    moments = torch.stack([cols[f"m{power}"] * cols["unit"] ** (power + 1) for power in range(11)])
    sums = moments.new_full((5, moments.shape[1]), math.nan)
    for limit, rows in POLYNOMIALS[dtype].items():
        weights = torch.tensor(rows, dtype=torch.float64, device=moments.device)
        fits = (weights @ moments[: len(rows[0])]) * (-2 * scale)
        if len(rows) == 4:
            fits = torch.cat([fits, (4 * cols["chi2"] * scale / growth)[None]])
        sums = torch.where(cols["limit"] == limit, fits, sums)
    reverse_kl, js, hellinger2, second, chi2 = sums
    kl = -2 * scale * moments[0] - reverse_kl
    cross = torch.log1p(cols["rest"]) - (cols["sum_a"] / partition - 2 * scale * cols["sum_au"])
    return {
        "shift": torch.log1p(-2 * cols["gamma"]),
        "tv": cols["tv"] * scale,
        "chi2": chi2,
        "kl": kl,
        "reverse_kl": reverse_kl,
        "js": js,
        "hellinger": hellinger2.sqrt(),
        "drift_rms": (second - reverse_kl**2).sqrt(),
        "entropy_train": cross - kl,
    }


def _direct_metrics(cols: Columns, dtype: torch.dtype) -> Columns:
    partition, train = 1 + cols["rest"], 1 + cols["rest_train"]
    variance = cols["variance"] / partition - (cols["residual"] / partition) ** 2
    variance = torch.where(torch.isinf(cols["variance"]), math.inf, variance)
    hellinger2, js, reverse_kl = cols["hellinger2"] / 2, cols["js"] / 2, cols["reverse_kl"]
    if dtype is torch.float32:
        reverse_kl = -cols["forward"]  # Σ q·l
        hellinger2, js = 1 - cols["overlap"], math.log(2) - (cols["js"] + cols["js_lesser"]) / 2
    return {
        "shift": cols["shift"],
        "tv": cols["tv"] / 2,
        "chi2": cols["chi2"],
        "kl": cols["kl"],
        "reverse_kl": reverse_kl,
        "js": js,
        "hellinger": hellinger2.clamp(min=0).sqrt(),
        "drift_rms": variance.clamp(min=0).sqrt(),
        "entropy_train": torch.log1p(cols["rest_train"]) - cols["sum_b"] / train,
    }


def _settled32(cols: Columns, out: Columns, temperature: float) -> Tensor:
    """Whether float32 gave the row to a relative error of 1e-5, bool [T]; what fails runs again in float64.

    Rounding of a difference δ is 2⁻²⁴|δ|, which must be small beside the centred differences: beside
    their range, and on the tokens with mass beside their mean. `rest` and `tv` near 0 mean that tokens of
    mass below e⁻²⁰ decide; float32 drops what lies below e⁻⁷⁰, and rounds exponents to 4e-6.
    """
    drift, tv = out["drift"], out["tv"]
    offset = torch.maximum(cols["hi"].abs(), cols["lo"].abs()) / temperature
    mass = torch.where(cols["head_exact"] > 0, cols["rest"] / (1 + cols["rest"]), 1.0)
    fine = (offset <= 16 * drift) & (mass * cols["center"].abs() / temperature <= 30 * tv)
    fine &= (drift >= 1e-10) & (tv >= 1e-9 * drift)
    smooth = (fine | (offset == 0)) & (out["max_dlogp"] <= cols["limit"])
    # Sums of that route carry 1e-7 of themselves, or of 1: kept where the row is plainly apart.
    apart = fine & (tv >= 0.05) & (out["js"] >= 0.02) & (out["hellinger"] >= 0.15)
    apart &= (drift <= 20) & (out["max_dlogp"] <= 40) & (cols["rest_train"] >= 1e-13)
    finite = torch.stack([torch.isfinite(value) for value in out.values()]).all(0)
    void = ~(torch.isfinite(cols["xmax"]) & torch.isfinite(cols["ymax"]))
    return torch.where(torch.isinf(cols["limit"]), apart, smooth) & finite & (cols["rest"] >= 1e-13) | void


def limits(out: Columns, cols: Columns) -> Columns:
    """The values that a masked token forces, and NaN with its flag where a side is no distribution."""
    inf, nan = float("inf"), float("nan")
    lost_inf, lost_train = cols["lost_inf"] > 0, cols["lost_train"] > 0
    empty = torch.isneginf(cols["xmax"]) ^ torch.isneginf(cols["ymax"])
    void = ~(torch.isfinite(cols["xmax"]) & torch.isfinite(cols["ymax"]))
    out["ess"] = 1 / (1 + out["chi2"])
    forced = {
        "kl": lost_inf, "chi2": lost_inf, "reverse_kl": lost_train, "drift_rms": lost_train,
        "drift": lost_inf | lost_train, "max_dlogp": lost_inf | lost_train,
        "drift_max": lost_inf | lost_train,
    }  # fmt: skip
    for name, where in forced.items():
        out[name] = out[name].masked_fill(where, inf)
    out["ess"] = out["ess"].masked_fill(lost_inf, 0.0)
    for name in out.keys() - {"settled"}:
        out[name] = out[name].masked_fill(void, nan)
    one_sided = empty & ~(
        torch.isnan(cols["xmax"] + cols["ymax"]) | torch.isposinf(cols["xmax"] + cols["ymax"])
    )
    for name in ("drift", "max_dlogp", "drift_max"):
        out[name] = out[name].masked_fill(one_sided, inf)
    out["support_violation"] = (lost_inf | lost_train) & ~void | one_sided
    out["nonfinite"] = void
    return out
