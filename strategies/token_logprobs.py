"""Inputs of token_logprobs. Domain: tokens, vocab (ranges), temperature (values)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from hypothesis import strategies as st

from kernelpact.operators import Inputs, Operator, Recipe, register_operator
from strategies import layouts, logits, sizes, variants
from strategies.softmax import build_logits, logit_recipes

DOMAIN = ("tokens", "vocab", "temperature")
TEMPERATURES = (1.0, 0.7, 0.3, 1.5)


def recipes(
    dtype: str, domain: sizes.Domain, edges: Mapping[str, Sequence[int]]
) -> st.SearchStrategy[Recipe]:
    """Draw recipes."""
    sizes.check_domain(domain, DOMAIN, "token_logprobs")
    row = logits.logit_rows(targets=True)
    return logit_recipes(row, domain, edges, temperature=sizes.choices("temperature", domain, TEMPERATURES))


def build(recipe: Recipe, dtype: str, device: str) -> Inputs:
    """Build logits[T, V] and targets[T]; a target may be masked: its log-prob is −inf."""
    built = build_logits(recipe, dtype)
    chosen = [
        logits.target(kind, seed, row) for (_, seed, kind), row in zip(recipe["rows"], built, strict=True)
    ]
    return {
        "logits": layouts.lay_out(built.to(device), recipe["layout"]),
        "targets": torch.tensor(chosen, dtype=torch.int64, device=device),
        "temperature": recipe["temperature"],
    }


def describe(recipe: Recipe) -> str:
    """Write a recipe for people."""
    rows = ", ".join(f"{kind}#{seed}→{target}" for kind, seed, target in recipe["rows"])
    return (
        f"T={len(recipe['rows'])} V={recipe['vocab']} rows=[{rows}] temperature={recipe['temperature']:g} "
        f"{recipe['layout']}"
    )


register_operator(
    Operator(
        name="token_logprobs",
        outputs=("logp",),
        strategy=recipes,
        build=build,
        shapes=lambda inputs: {"logp": tuple(inputs["targets"].shape)},
        dtypes=lambda inputs, dtype: {"logp": torch.float32},
        variants=variants.of_rows("logits", "targets"),
        differentiable=("logits",),
        describe=describe,
    )
)
