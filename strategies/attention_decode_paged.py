"""Inputs of attention_decode_paged.

Domain: kv_len, kv_heads (ranges), head_dim, group, page, window, softcap (values).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from hypothesis import strategies as st

from kernelpact.operators import Inputs, Operator, Recipe, Variant, register_operator
from strategies import batches, layouts, paging, sizes, tensors, variants
from strategies.attention_prefill import describe_heads, heads

DOMAIN = ("kv_len", "kv_heads", "head_dim", "group", "page", "window", "softcap")


def recipes(
    dtype: str, domain: sizes.Domain, edges: Mapping[str, Sequence[int]]
) -> st.SearchStrategy[Recipe]:
    """Draw recipes."""
    sizes.check_domain(domain, DOMAIN, "attention_decode_paged")
    around_pages = {"kv_len": (*edges.get("kv_len", ()), *(page for page in paging.PAGES if page > 1))}
    return st.fixed_dictionaries(
        {
            "sequences": batches.sequences("kv_len", domain, around_pages, cap=60),
            "page": sizes.choices("page", domain, paging.PAGES),
            **heads(domain, dtype),
            "pages": paging.page_recipes(),
            "layout": layouts.layouts(),
        }
    )


def build(recipe: Recipe, dtype: str, device: str) -> Inputs:
    """Build q[B, Hq, D], the caches [P, S, Hkv, D], block_table[B, M], seq_lens[B] and the rest."""
    to, kv, size = tensors.torch_dtype(dtype), recipe["kv_heads"], recipe["head_dim"]
    count = kv * recipe["group"]
    k_cache, v_cache, table = paging.paged(recipe["sequences"], recipe["page"], kv, size, recipe["pages"], to)
    q = torch.cat(
        [
            batches.queries(seed, 1, count, size, recipe["sharpness"], recipe["lift"])
            for _, seed in recipe["sequences"]
        ]
    )
    return {
        "q": layouts.lay_out(q.to(to).to(device), recipe["layout"]),
        "k_cache": layouts.lay_out(k_cache.to(device), recipe["layout"]),
        "v_cache": layouts.lay_out(v_cache.to(device), recipe["layout"]),
        "block_table": table.to(device),
        "seq_lens": torch.tensor(
            [length for length, _ in recipe["sequences"]], dtype=torch.int32, device=device
        ),
        "scale": recipe["scale"] * size**-0.5,
        "window": recipe["window"],
        "softcap": recipe["softcap"],
    }


def _padded(inputs: Inputs, recipe: Recipe) -> Variant:
    """An empty sequence after the others, and a wider block table."""
    table = torch.nn.functional.pad(inputs["block_table"], (0, 3, 0, 1), value=-1)
    more = {
        "q": layouts.lay_out(torch.cat([inputs["q"], inputs["q"][:1]]), recipe["layout"]),
        "block_table": table,
        "seq_lens": torch.cat([inputs["seq_lens"], torch.zeros_like(inputs["seq_lens"][:1])]),
    }
    return Variant(dict(inputs) | more, lambda outputs: {"o": outputs["o"][:-1]})


def _moved(inputs: Inputs, recipe: Recipe) -> Variant:
    """The same sequences in other pages, with other poison around them."""
    pages = recipe["pages"]
    other = pages | {
        "order": pages["order"] + 101,
        "shared": not pages["shared"],
        "poison": "large" if pages["poison"] == "nan" else "nan",
    }
    q = inputs["q"]
    kv, size = recipe["kv_heads"], recipe["head_dim"]
    k_cache, v_cache, table = paging.paged(recipe["sequences"], recipe["page"], kv, size, other, q.dtype)
    moved = {
        "k_cache": layouts.lay_out(k_cache.to(q.device), recipe["layout"]),
        "v_cache": layouts.lay_out(v_cache.to(q.device), recipe["layout"]),
        "block_table": table.to(q.device),
    }
    return Variant(dict(inputs) | moved, lambda outputs: outputs)


def describe(recipe: Recipe) -> str:
    """Write a recipe for people."""
    lengths = ", ".join(f"{length}#{seed}" for length, seed in recipe["sequences"])
    pages = recipe["pages"]
    kind = f"order#{pages['order']} {pages['poison']} spare={pages['spare']} {pages['unused']}"
    kind += " shared" if pages["shared"] else ""
    return (
        f"B={len(recipe['sequences'])} seq_lens=[{lengths}] page={recipe['page']} {describe_heads(recipe)} "
        f"pages({kind}) {recipe['layout']}"
    )


def _rowwise() -> Mapping[str, variants.Transformation]:
    of_rows = variants.of_rows("q", "block_table", "seq_lens")
    return {name: of_rows[name] for name in ("batch", "permutation", "repeat")}


register_operator(
    Operator(
        name="attention_decode_paged",
        outputs=("o",),
        strategy=recipes,
        build=build,
        shapes=lambda inputs: {"o": tuple(inputs["q"].shape)},
        dtypes=lambda inputs, dtype: {"o": inputs["q"].dtype},
        variants={**_rowwise(), "padding": _padded, "pages": _moved},
        describe=describe,
    )
)
