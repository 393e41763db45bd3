"""Inputs of rope. Domain: tokens, heads, head_dim (ranges; head_dim even), position (range), theta, interleaved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from hypothesis import strategies as st

from kernelpact.operators import Inputs, Operator, Recipe, register_operator
from strategies import layouts, sizes, tensors, variants

DOMAIN = ("tokens", "heads", "head_dim", "position", "theta", "interleaved")
HEAD_DIMS = (2, 4, 6, 8, 16, 30, 32, 64, 80, 96, 128, 192, 256)
KINDS = ("normal", "outlier", "constant", "tiny", "zeros", "large", "alternating", "spike", "ties")


def recipes(
    dtype: str, domain: sizes.Domain, edges: Mapping[str, Sequence[int]]
) -> st.SearchStrategy[Recipe]:
    """Draw recipes. Positions: small ones, sequences that restart at 0, and far ones."""
    sizes.check_domain(domain, DOMAIN, "rope")
    low, high = domain.get("position", (0, 131072))
    far = [p for p in (low, 1, 2, 3, 100, 257, 4095, 4097, 32769, 65537, 131071, high) if low <= p <= high]
    token = st.tuples(tensors.rows(KINDS), st.one_of(st.sampled_from(far), st.integers(low, high)))
    low_size, high_size = domain.get("head_dim", (2, 64))
    head_dims = [d for d in HEAD_DIMS if low_size <= d <= high_size]
    if not head_dims:
        raise ValueError(f"rope: domain head_dim [{low_size}, {high_size}] holds none of {HEAD_DIMS}")
    return st.fixed_dictionaries(
        {
            "heads": sizes.sizes("heads", domain, edges, cap=4),
            "head_dim": st.sampled_from(head_dims),
            "tokens": sizes.several(
                token.map(lambda t: [*t[0], t[1]]), *sizes.counted("tokens", domain, most=5)
            ),
            "theta": sizes.choices("theta", domain, (10000.0, 500000.0)),
            "interleaved": sizes.choices("interleaved", domain, (False, True)),
            "layout": layouts.layouts(),
        }
    )


def build(recipe: Recipe, dtype: str, device: str) -> Inputs:
    """Build x[T, N, D] and positions[T]."""
    to, heads, size = tensors.torch_dtype(dtype), recipe["heads"], recipe["head_dim"]
    x = [tensors.row(kind, seed, heads * size, to).reshape(heads, size) for kind, seed, _ in recipe["tokens"]]
    return {
        "x": layouts.lay_out(torch.stack(x).to(device), recipe["layout"]),
        "positions": torch.tensor([position for *_, position in recipe["tokens"]], device=device),
        "theta": recipe["theta"],
        "interleaved": recipe["interleaved"],
    }


def describe(recipe: Recipe) -> str:
    """Write a recipe for people."""
    tokens = ", ".join(f"{kind}#{seed}@{position}" for kind, seed, position in recipe["tokens"])
    form = "interleaved" if recipe["interleaved"] else "half-split"
    return (
        f"N={recipe['heads']} D={recipe['head_dim']} tokens=[{tokens}] theta={recipe['theta']:g} {form} "
        f"{recipe['layout']}"
    )


register_operator(
    Operator(
        name="rope",
        outputs=("y",),
        strategy=recipes,
        build=build,
        shapes=lambda inputs: {"y": tuple(inputs["x"].shape)},
        dtypes=lambda inputs, dtype: {"y": inputs["x"].dtype},
        variants=variants.of_rows("x", "positions"),
        differentiable=("x",),
        describe=describe,
    )
)
