"""Inputs of softmax. Domain: tokens, vocab (ranges)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from hypothesis import strategies as st

from kernelpact.operators import Inputs, Operator, Recipe, register_operator
from strategies import layouts, logits, sizes, tensors, variants

DOMAIN = ("tokens", "vocab")


def recipes(
    dtype: str, domain: sizes.Domain, edges: Mapping[str, Sequence[int]]
) -> st.SearchStrategy[Recipe]:
    """Draw recipes."""
    sizes.check_domain(domain, DOMAIN, "softmax")
    return logit_recipes(logits.logit_rows(targets=False), domain, edges)


def logit_recipes(
    row: st.SearchStrategy[list[int | str]],
    domain: sizes.Domain,
    edges: Mapping[str, Sequence[int]],
    **more: object,
) -> st.SearchStrategy[Recipe]:
    """Draw recipes of a [T, V] tensor of logits, from those of its rows, with whatever else an operator takes."""
    return st.fixed_dictionaries(
        {
            "vocab": sizes.sizes("vocab", domain, edges, cap=600),
            "rows": sizes.several(row, *sizes.counted("tokens", domain, least=0)),
            "layout": layouts.layouts(),
            **more,
        }
    )


def build_logits(recipe: Recipe, dtype: str) -> torch.Tensor:
    """Build logits[T, V] on the CPU."""
    to, size = tensors.torch_dtype(dtype), recipe["vocab"]
    rows = [logits.logit_row(kind, seed, size, to) for kind, seed, *_ in recipe["rows"]]
    return torch.stack(rows) if rows else torch.zeros(0, size, dtype=to)


def build(recipe: Recipe, dtype: str, device: str) -> Inputs:
    """Build logits[T, V]."""
    return {"logits": layouts.lay_out(build_logits(recipe, dtype).to(device), recipe["layout"])}


def describe(recipe: Recipe) -> str:
    """Write a recipe for people."""
    rows = ", ".join(f"{kind}#{seed}" for kind, seed in recipe["rows"])
    return f"T={len(recipe['rows'])} V={recipe['vocab']} rows=[{rows}] {recipe['layout']}"


register_operator(
    Operator(
        name="softmax",
        outputs=("p",),
        strategy=recipes,
        build=build,
        shapes=lambda inputs: {"p": tuple(inputs["logits"].shape)},
        dtypes=lambda inputs, dtype: {"p": inputs["logits"].dtype},
        variants=variants.of_rows("logits"),
        differentiable=("logits",),
        logits=lambda outputs, inputs: outputs["p"].float().log(),
        describe=describe,
    )
)
