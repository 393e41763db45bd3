"""`kernelpact bounds`: the chain of bounds from the shell, in either direction."""

from __future__ import annotations

import json
import math
from typing import Any, get_args

import click

from kernelpact import bounds

__all__ = ["command"]

_BUDGETS = {
    "tv": "total_variation",
    "kl": "kl",
    "chi2": "chi2",
    "ess": "ess",
    "sequence_tv": "sequence_total_variation",
    "sequence_ess": "sequence_ess",
    "reward_drift": "reward_drift",
    "gradient_bias": "gradient_bias",
    "clip_share": "clip_budget",
}
_WHOLE_RANGE = {"total_variation": 1.0, "sequence_total_variation": 1.0}
_UNITS = {
    "drift": "nats, centred, at the temperature",
    "importance_ratio": "|ln w|, nats",
    "kl": "nats, either direction",
    "ess": "per sample, at least",
    "sequence_ess": "per response, at least",
    "truncation_excess": "E (w − cap)₊",
    "clip_deficit": "E (floor − w)₊",
    "clip_budget": "share of the clip range",
}


def _budget_options(command: Any) -> Any:
    for name in reversed(_BUDGETS):
        text = f"Give the largest drift within this {_BUDGETS[name].replace('_', ' ')}."
        command = click.option(f"--{name.replace('_', '-')}", name, type=float, help=text)(command)
    return command


@click.command("bounds")
@click.option("--drift", type=float, help="Logit drift ε, nats: ½ (max δ − min δ).")
@_budget_options
@click.option(
    "--horizon", type=click.IntRange(min=1), default=1, show_default=True, help="Tokens in a response."
)
@click.option("--temperature", type=float, default=1.0, show_default=True)
@click.option(
    "--reward", type=float, nargs=2, default=(0.0, 1.0), show_default=True, help="Range of the reward."
)
@click.option("--advantage", type=float, default=1.0, show_default=True, help="Largest |A|.")
@click.option("--score-norm", type=float, default=1.0, show_default=True, help="Largest ‖∇ log π‖.")
@click.option("--cap", type=float, help="Largest importance weight; the estimator is then tis unless given.")
@click.option("--floor", type=float, help="Smallest importance weight.")
@click.option("--estimator", type=click.Choice(get_args(bounds.Estimator)), help="[default: uncorrected]")
@click.option(
    "--clip-range", type=float, nargs=2, default=(0.2, 0.2), show_default=True, help="PPO: 1 − low, 1 + high."
)
@click.option("--drift-rms", type=float, help="σ: standard deviation of δ under π_inf, nats.")
@click.option("--drift-max", type=float, help="b: largest δ above its mean, nats [default: 2ε].")
@click.option("--json", "as_json", is_flag=True, help="Print one flat JSON object.")
def command(drift: float | None, as_json: bool, **options: Any) -> None:
    """Say what a logit drift implies, or the largest drift that a budget allows.

    Give exactly one of --drift and the budgets.
    """
    given = {name: options.pop(name) for name in _BUDGETS}
    budgets = {name: value for name, value in given.items() if value is not None}
    if (drift is not None) + len(budgets) != 1:
        raise click.UsageError(
            f"give exactly one of --drift, --{', --'.join(n.replace('_', '-') for n in _BUDGETS)}"
        )
    try:
        found = drift if drift is not None else _invert(*budgets.popitem(), options)
        figures = _figures(found, options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    click.echo(json.dumps(_finite(figures)) if as_json else _table(figures))


def _estimator(options: dict[str, Any]) -> dict[str, Any]:
    estimator = options["estimator"] or ("uncorrected" if options["cap"] is None else "tis")
    return {
        "estimator": estimator,
        "cap": 2.0 if options["cap"] is None else options["cap"],
        "floor": options["floor"],
        "advantage_max": options["advantage"],
        "score_norm_max": options["score_norm"],
    }


def _invert(name: str, budget: float, options: dict[str, Any]) -> float:
    quantity = _BUDGETS[name]
    extra: dict[str, Any] = {}
    if quantity == "reward_drift":
        extra = {"reward": options["reward"]}
    elif quantity == "gradient_bias":
        extra = _estimator(options)
    elif quantity == "clip_budget":
        extra = {"low": options["clip_range"][0], "high": options["clip_range"][1]}
    horizon = 1 if quantity == "gradient_bias" else options["horizon"]
    at_temperature: float = bounds.max_drift(quantity=quantity, budget=budget, horizon=horizon, **extra)
    return at_temperature * float(options["temperature"])


def _figures(drift: float, options: dict[str, Any]) -> dict[str, Any]:
    temperature, horizon = options["temperature"], options["horizon"]
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature:g}: allowed are numbers above 0")
    e = drift / temperature
    low, high = options["clip_range"]
    figures = {
        "drift": drift,
        "horizon": horizon,
        "importance_ratio": bounds.importance_ratio(e),
        "total_variation": bounds.total_variation(e),
        "kl": bounds.kl(e),
        "chi2": bounds.chi2(e),
        "ess": bounds.ess(e),
        "truncation_excess": bounds.truncation_excess(e, 2.0 if options["cap"] is None else options["cap"]),
        "clip_deficit": bounds.clip_deficit(e, 0.5 if options["floor"] is None else options["floor"]),
        "sequence_total_variation": bounds.sequence_total_variation(e, horizon),
        "sequence_ess": bounds.sequence_ess(e, horizon),
        "reward_drift": bounds.reward_drift(e, horizon, options["reward"]),
        "gradient_bias": bounds.gradient_bias(e, **_estimator(options)),
        "clip_budget": bounds.clip_budget(e, low, high),
    }
    if (sigma := options["drift_rms"]) is not None:
        largest = 2 * e if options["drift_max"] is None else options["drift_max"] / temperature
        figures["kl_from_variance"] = bounds.kl_from_variance(sigma / temperature, largest)
        tightest = bounds.tightest_total_variation(e, sigma=sigma / temperature, largest=largest)
        figures |= {"tightest_total_variation": tightest.value, "tightest_bound": tightest.name}
    width = options["reward"][1] - options["reward"][0]
    vacuous = [
        n for n, whole in (*_WHOLE_RANGE.items(), ("reward_drift", width)) if figures[n] >= 0.999 * whole
    ]
    return figures | {"vacuous": vacuous}


def _finite(figures: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: such a figure is null."""
    flat = {name: value for name, value in figures.items() if name != "vacuous"}
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in flat.items()}


def _table(figures: dict[str, Any]) -> str:
    vacuous = figures.pop("vacuous")
    lines = []
    for name, value in figures.items():
        text = f"{value:.6g}" if isinstance(value, int | float) else str(value)
        text = f"vacuous at T = {figures['horizon']}" if name in vacuous else text
        lines.append(f"{name:26}{text:<24}{_UNITS.get(name, '')}".rstrip())
    return "\n".join(lines)
