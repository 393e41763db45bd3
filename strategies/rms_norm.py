"""Inputs of rms_norm. Domain: tokens, hidden (ranges), eps, offset (values)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from hypothesis import strategies as st

from kernelpact.operators import Inputs, Operator, Recipe, register_operator
from strategies import layouts, sizes, tensors, variants

DOMAIN = ("tokens", "hidden", "eps", "offset")


def recipes(
    dtype: str, domain: sizes.Domain, edges: Mapping[str, Sequence[int]]
) -> st.SearchStrategy[Recipe]:
    """Draw recipes."""
    sizes.check_domain(domain, DOMAIN, "rms_norm")
    return st.fixed_dictionaries(
        {
            "hidden": sizes.sizes("hidden", domain, edges, cap=300),
            "rows": sizes.several(tensors.rows(), *sizes.counted("tokens", domain, least=0)),
            "weight": st.tuples(st.sampled_from(tensors.WEIGHT_KINDS), sizes.seeds()).map(list),
            "eps": sizes.choices("eps", domain, (1e-6, 1e-5, 1e-3)),
            "offset": sizes.choices("offset", domain, (0, 1)),
            "layout": layouts.layouts(),
        }
    )


def build(recipe: Recipe, dtype: str, device: str) -> Inputs:
    """Build x[T, H] and weight[H]."""
    to, size = tensors.torch_dtype(dtype), recipe["hidden"]
    x = [tensors.row(kind, seed, size, to) for kind, seed in recipe["rows"]]
    stacked = torch.stack(x) if x else torch.zeros(0, size, dtype=to)
    return {
        "x": layouts.lay_out(stacked.to(device), recipe["layout"]),
        "weight": tensors.weight(*recipe["weight"], size, to).to(device),
        "eps": recipe["eps"],
        "offset": recipe["offset"],
    }


def describe(recipe: Recipe) -> str:
    """Write a recipe for people."""
    rows = ", ".join(f"{kind}#{seed}" for kind, seed in recipe["rows"])
    kind, seed = recipe["weight"]
    return (
        f"T={len(recipe['rows'])} H={recipe['hidden']} rows=[{rows}] weight={kind}#{seed} "
        f"eps={recipe['eps']:g} offset={recipe['offset']} {recipe['layout']}"
    )


register_operator(
    Operator(
        name="rms_norm",
        outputs=("y",),
        strategy=recipes,
        build=build,
        shapes=lambda inputs: {"y": tuple(inputs["x"].shape)},
        dtypes=lambda inputs, dtype: {"y": inputs["x"].dtype},
        variants=variants.of_rows("x"),
        differentiable=("x", "weight"),
        describe=describe,
    )
)
