"""Inputs of lm_head_logprobs. Domain: tokens, vocab, hidden (ranges), temperature, logit_scale (values).

`logit_scale` is the standard deviation of the logits: 1 to 3 is what language models have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from hypothesis import strategies as st

from kernelpact.operators import Inputs, Operator, Recipe, register_operator
from strategies import layouts, logits, sizes, tensors, variants
from strategies.token_logprobs import TEMPERATURES

DOMAIN = ("tokens", "vocab", "hidden", "temperature", "logit_scale")
KINDS = ("normal", "outlier", "constant", "zeros", "alternating", "spike", "ties")


def recipes(
    dtype: str, domain: sizes.Domain, edges: Mapping[str, Sequence[int]]
) -> st.SearchStrategy[Recipe]:
    """Draw recipes."""
    sizes.check_domain(domain, DOMAIN, "lm_head_logprobs")
    row = st.tuples(tensors.rows(KINDS), st.sampled_from(logits.TARGET_KINDS)).map(
        lambda pair: [*pair[0], pair[1]]
    )
    return st.fixed_dictionaries(
        {
            "vocab": sizes.sizes("vocab", domain, edges, cap=140),
            "hidden": sizes.sizes("hidden", domain, edges, cap=140),
            "rows": sizes.several(row, *sizes.counted("tokens", domain, most=_most_rows(edges))),
            "weight": sizes.seeds(),
            "logit_scale": sizes.choices("logit_scale", domain, (1.0, 3.0)),
            "temperature": sizes.choices("temperature", domain, TEMPERATURES),
            "layout": layouts.layouts(),
        }
    )


def _most_rows(edges: Mapping[str, Sequence[int]]) -> int:
    """Enough rows to pass a tile of up to 16 tokens by two; a kernel that declares none gets 6."""
    return max([6, *(edge + 2 for edge in edges.get("tokens", ()) if edge <= 16)])


def build(recipe: Recipe, dtype: str, device: str) -> Inputs:
    """Build hidden[T, H], each row of unit rms where it is not 0, weight[V, H] and targets[T]."""
    to, size, vocab = tensors.torch_dtype(dtype), recipe["hidden"], recipe["vocab"]
    hidden = torch.stack(
        [_unit(tensors.row(kind, seed, size, torch.float64)) for kind, seed, _ in recipe["rows"]]
    )
    noise = torch.randn(vocab, size, generator=tensors.generator(recipe["weight"]), dtype=torch.float64)
    weight = (noise * recipe["logit_scale"] / size**0.5).to(to)
    hidden = hidden.to(to)
    rows = hidden.double() @ weight.double().T
    chosen = [
        logits.target(kind, seed, row) for (_, seed, kind), row in zip(recipe["rows"], rows, strict=True)
    ]
    return {
        "hidden": layouts.lay_out(hidden.to(device), recipe["layout"]),
        "weight": layouts.lay_out(weight.to(device), recipe["layout"]),
        "targets": torch.tensor(chosen, dtype=torch.int64, device=device),
        "temperature": recipe["temperature"],
    }


def _unit(row: torch.Tensor) -> torch.Tensor:
    return row / row.square().mean().sqrt().clamp_min(1e-30)


def describe(recipe: Recipe) -> str:
    """Write a recipe for people."""
    rows = ", ".join(f"{kind}#{seed}→{target}" for kind, seed, target in recipe["rows"])
    return (
        f"T={len(recipe['rows'])} V={recipe['vocab']} H={recipe['hidden']} rows=[{rows}] "
        f"weight#{recipe['weight']} logit_scale={recipe['logit_scale']:g} temperature={recipe['temperature']:g} "
        f"{recipe['layout']}"
    )


register_operator(
    Operator(
        name="lm_head_logprobs",
        outputs=("logits", "logp"),
        strategy=recipes,
        build=build,
        shapes=lambda inputs: {
            "logits": (len(inputs["hidden"]), len(inputs["weight"])),
            "logp": tuple(inputs["targets"].shape),
        },
        dtypes=lambda inputs, dtype: {"logits": inputs["hidden"].dtype, "logp": torch.float32},
        variants=variants.of_rows("hidden", "targets"),
        differentiable=("hidden", "weight"),
        logits=lambda outputs, inputs: outputs["logits"],
        describe=describe,
    )
)
