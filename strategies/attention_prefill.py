"""Inputs of attention_prefill.

Domain: length, kv_heads (ranges), head_dim, group, window, softcap, causal, sinks (values).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from hypothesis import strategies as st

from kernelpact.operators import Inputs, Operator, Recipe, Variant, register_operator
from strategies import batches, layouts, sizes, tensors, variants

DOMAIN = ("length", "kv_heads", "head_dim", "group", "window", "softcap", "causal", "sinks")


def heads(domain: sizes.Domain, dtype: str) -> dict[str, Any]:
    """Draw head counts and sizes, window, softcap and sharpness, as both attention operators have them."""
    return {
        "kv_heads": sizes.sizes("kv_heads", domain, {}, cap=2),
        "group": sizes.choices("group", domain, (1, 2, 4)),
        "head_dim": sizes.choices("head_dim", domain, (8, 16, 20, 32, 64)),
        "window": sizes.choices("window", domain, (None, 1, 2, 5, 16, 64)),
        "softcap": sizes.choices("softcap", domain, (None, 5.0, 30.0, None)),
        "sharpness": st.sampled_from((1.0, 0.1, 6.0)),
        "scale": st.sampled_from((1.0, 0.7)),
        # Scores far from 0 cost float32 more than its limit, and show a forgotten maximum in bfloat16 as well.
        "lift": st.sampled_from((0.0, -160.0, 160.0, -160.0)) if dtype == "bfloat16" else st.just(0.0),
    }


def recipes(
    dtype: str, domain: sizes.Domain, edges: Mapping[str, Sequence[int]]
) -> st.SearchStrategy[Recipe]:
    """Draw recipes."""
    sizes.check_domain(domain, DOMAIN, "attention_prefill")
    return st.fixed_dictionaries(
        {
            "sequences": batches.sequences("length", domain, edges, most=3, cap=40),
            **heads(domain, dtype),
            "causal": sizes.choices("causal", domain, (True, False)),
            "sinks": sizes.choices("sinks", domain, (False, True)),
            "layout": layouts.layouts(),
        }
    )


def build(recipe: Recipe, dtype: str, device: str) -> Inputs:
    """Build packed q[T, Hq, D], k and v[T, Hkv, D], cu_seqlens[B+1] and the rest."""
    to, kv, size = tensors.torch_dtype(dtype), recipe["kv_heads"], recipe["head_dim"]
    count = kv * recipe["group"]
    q, k, v = [], [], []
    for length, seed in recipe["sequences"]:
        keys, values = batches.keys_and_values(seed, length, kv, size)
        q.append(batches.queries(seed, length, count, size, recipe["sharpness"], recipe["lift"]))
        k.append(keys)
        v.append(values)
    ends = torch.tensor([0, *(length for length, _ in recipe["sequences"])]).cumsum(0)
    sinks = (
        (torch.linspace(-1.0, 3.0, count, dtype=torch.float64) + recipe["lift"]).to(to).to(device)
        if recipe["sinks"]
        else None
    )
    packed = {"q": torch.cat(q), "k": torch.cat(k), "v": torch.cat(v)}
    return {
        **{n: layouts.lay_out(x.to(to).to(device), recipe["layout"]) for n, x in packed.items()},
        "cu_seqlens": ends.to(torch.int32).to(device),
        "scale": recipe["scale"] * size**-0.5,
        "causal": recipe["causal"],
        "window": recipe["window"],
        "softcap": recipe["softcap"],
        "sinks": sinks,
    }


def _chosen(inputs: Inputs, order: Sequence[int], layout: str) -> tuple[Inputs, list[int]]:
    """Give the inputs of the sequences in `order`, and the tokens that they are."""
    ends = inputs["cu_seqlens"].tolist()
    tokens = [t for b in order for t in range(ends[b], ends[b + 1])]
    at = torch.tensor(tokens, dtype=torch.long, device=inputs["q"].device)
    lengths = torch.tensor([0, *(ends[b + 1] - ends[b] for b in order)])
    chosen = {name: layouts.lay_out(inputs[name].index_select(0, at), layout) for name in ("q", "k", "v")}
    cu_seqlens = lengths.cumsum(0).to(torch.int32).to(inputs["q"].device)
    return dict(inputs) | chosen | {"cu_seqlens": cu_seqlens}, tokens


def _reordered(inputs: Inputs, recipe: Recipe, order: Sequence[int]) -> Variant:
    chosen, tokens = _chosen(inputs, order, recipe["layout"])
    return Variant(chosen, lambda outputs: outputs, lambda outputs: {"o": outputs["o"][tokens]})


def _alone(inputs: Inputs, recipe: Recipe) -> Variant | None:
    """The last sequence that is not empty, alone."""
    filled = [b for b, (length, _) in enumerate(recipe["sequences"]) if length]
    return _reordered(inputs, recipe, filled[-1:]) if filled and len(recipe["sequences"]) > 1 else None


def _reversed(inputs: Inputs, recipe: Recipe) -> Variant | None:
    count = len(recipe["sequences"])
    return _reordered(inputs, recipe, range(count)[::-1]) if count > 1 else None


def _padded(inputs: Inputs, recipe: Recipe) -> Variant:
    """An empty sequence and a copy of the first one after the others."""
    count, tokens = len(recipe["sequences"]), len(inputs["q"])
    padded, _ = _chosen(inputs, [*range(count), 0], recipe["layout"])
    ends = padded["cu_seqlens"]
    padded["cu_seqlens"] = torch.cat([ends[: count + 1], ends[count : count + 1], ends[count + 1 :]])
    return Variant(padded, lambda outputs: {"o": outputs["o"][:tokens]})


def describe(recipe: Recipe) -> str:
    """Write a recipe for people."""
    form = "causal" if recipe["causal"] else "full"
    lengths = ", ".join(f"{length}#{seed}" for length, seed in recipe["sequences"])
    return (
        f"B={len(recipe['sequences'])} lengths=[{lengths}] {describe_heads(recipe)} {form} "
        f"sinks={'yes' if recipe['sinks'] else 'no'} {recipe['layout']}"
    )


def describe_heads(recipe: Recipe) -> str:
    """Write what both attention operators have."""
    kv = recipe["kv_heads"]
    return (
        f"Hq/Hkv={kv * recipe['group']}/{kv} D={recipe['head_dim']} window={recipe['window']} "
        f"softcap={recipe['softcap']} sharpness={recipe['sharpness']:g} "
        f"scale={recipe['scale']:g}/√D lift={recipe['lift']:g}"
    )


register_operator(
    Operator(
        name="attention_prefill",
        outputs=("o",),
        strategy=recipes,
        build=build,
        shapes=lambda inputs: {"o": tuple(inputs["q"].shape)},
        dtypes=lambda inputs, dtype: {"o": inputs["q"].dtype},
        variants={"batch": _alone, "permutation": _reversed, "padding": _padded, "repeat": variants.repeated},
        differentiable=("q", "k", "v"),
        describe=describe,
    )
)
