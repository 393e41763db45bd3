"""Recipes and the tensors built from them: what they reach, what they respect, and how they shrink."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from kernelpact.operators import operators
from strategies import batches, layouts, load_operators, logits, paging, sizes, tensors, variants

load_operators()

ROOT = Path(__file__).resolve().parent.parent
OPS = (
    "attention_decode_paged", "attention_prefill", "lm_head_logprobs", "rms_norm", "rope", "softmax", "token_logprobs",
)  # fmt: skip
DTYPES = ("float32", "bfloat16", "float16")
ATTENTION = ("attention_decode_paged", "attention_prefill")
EDGES = {
    "hidden": (64,), "vocab": (64,), "tokens": (16,), "kv_len": (32,), "length": (16, 32),
}  # fmt: skip
ITEMS = {"rope": "tokens", "attention_decode_paged": "sequences", "attention_prefill": "sequences"}
SHORTEST = 1e-12  # where two float64 sums in different order may still differ


@functools.cache
def drawn(op, count=200, dtype="bfloat16", domain="{}", start=0):
    """Draw the recipes that a search with this many examples would look at; domain is JSON, to be hashable."""
    found = []

    @seed(start)
    @settings(
        max_examples=count, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck), derandomize=False,
    )  # fmt: skip
    @given(operators[op].strategy(dtype, json.loads(domain), EDGES))
    def look(recipe):
        found.append(recipe)

    look()
    return found


def items(op, recipe):
    """Give a recipe's rows or sequences."""
    return recipe[ITEMS.get(op, "rows")]


def smallest(op, holds, dtype="float32"):
    """Shrink to the smallest recipe whose inputs satisfy `holds`."""
    edges = {} if op == "lm_head_logprobs" else EDGES  # its tile of 16 tokens makes for many rows to shrink
    return hypothesis.find(
        operators[op].strategy(dtype, {}, edges),
        lambda recipe: holds(operators[op].build(recipe, dtype, "cpu")),
        settings=settings(
            max_examples=2000, database=None, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def bits(value):
    """Hash what a tensor holds, its dtype, shape and strides; plain values as they are."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    packed = (
        torch.empty(value.shape, dtype=value.dtype).copy_(value).flatten()
    )  # a stride of its own, size 1 too
    digest = hashlib.sha256(packed.view(torch.uint8).numpy().tobytes()).hexdigest()
    return f"{value.dtype}{tuple(value.shape)}{value.stride()}{digest}"


def fingerprint(op, recipe, dtype):
    """Name the bits of all inputs built from a recipe."""
    return {name: bits(value) for name, value in operators[op].build(recipe, dtype, "cpu").items()}


# --- references in float64, the plainest that can be written


def attend(q, k, v, inputs, at, sinks=None, causal=True):
    """Attend from q[n, Hq, D], at the positions `at`, to k and v[L, Hkv, D], key by key."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1).double() for x in (k, v))
    scores = torch.einsum("nhd,lhd->nhl", q.double(), k) * inputs["scale"]
    if inputs["softcap"]:
        scores = inputs["softcap"] * torch.tanh(scores / inputs["softcap"])
    back = at[:, None] - torch.arange(k.shape[0])
    seen = (back >= 0) if causal else torch.ones_like(back, dtype=torch.bool)
    if inputs["window"] is not None:
        seen &= back < inputs["window"]
    scores = scores.masked_fill(~seen[:, None], float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[None, :, None].expand(len(q), -1, 1)], -1)
    return torch.einsum("nhl,lhd->nhd", scores.softmax(-1)[..., : k.shape[0]].nan_to_num(), v)


def prefill(inputs):
    """Attend within each packed sequence."""
    ends = inputs["cu_seqlens"].tolist()
    out = [torch.zeros_like(inputs["q"][:0]).double()]
    for low, high in itertools.pairwise(ends):
        q, k, v = (inputs[name][low:high] for name in ("q", "k", "v"))
        if high > low:
            at = torch.arange(high - low)
            out.append(attend(q, k, v, inputs, at, inputs["sinks"], inputs["causal"]))
    return {"o": torch.cat(out)}


def decode(inputs):
    """Gather each sequence's slots one by one, and attend from its last position."""
    out = torch.zeros_like(inputs["q"]).double()
    page = inputs["k_cache"].shape[1]
    for b, length in enumerate(inputs["seq_lens"].tolist()):
        slots = [(int(inputs["block_table"][b, i // page]), i % page) for i in range(length)]
        if slots:
            k, v = (torch.stack([inputs[n][p, s] for p, s in slots]) for n in ("k_cache", "v_cache"))
            out[b] = attend(inputs["q"][b : b + 1], k, v, inputs, torch.tensor([length - 1]))[0]
    return {"o": out}


def rotate(inputs):
    """Turn pairs of columns as complex numbers."""
    x, size = inputs["x"].double(), inputs["x"].shape[-1]
    rates = inputs["theta"] ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angle = (inputs["positions"].double()[:, None] * rates)[:, None]
    turn = torch.complex(angle.cos(), angle.sin())
    if inputs["interleaved"]:
        y = torch.view_as_real(torch.complex(x[..., ::2], x[..., 1::2]) * turn).flatten(-2)
    else:
        z = torch.complex(*x.split(size // 2, -1)) * turn
        y = torch.cat([z.real, z.imag], -1)
    return {"y": y}


def normed(inputs):
    """Divide each row by its root mean square."""
    x = inputs["x"].double()
    scale = (x.square().mean(-1, keepdim=True) + inputs["eps"]).rsqrt()
    return {"y": x * scale * (inputs["weight"].double() + inputs["offset"])}


def scored(inputs):
    """Give the log-prob of each row's target."""
    logp = (inputs["logits"].double() / inputs["temperature"]).log_softmax(-1)
    return {"logp": logp.gather(-1, inputs["targets"][:, None])[:, 0]}


def headed(inputs):
    """Multiply by the LM head, then score; row by row, so that no row's rounding knows of another."""
    weight = inputs["weight"].double()
    rows = torch.stack([(weight * row).sum(-1) for row in inputs["hidden"].double()])
    return {"logits": rows} | scored(inputs | {"logits": rows})


REFERENCES = {
    "rms_norm": normed, "rope": rotate, "softmax": lambda inputs: {"p": inputs["logits"].double().softmax(-1)},
    "token_logprobs": scored, "lm_head_logprobs": headed, "attention_prefill": prefill,
    "attention_decode_paged": decode,
}  # fmt: skip


# --- recipes


def test_the_folder_registers_its_operators():
    """Scanning the folder registers an operator for each file that describes one, with no list to edit."""
    assert set(OPS) <= set(operators)
    files = {path.stem for path in (ROOT / "strategies").glob("*.py")}
    assert files >= {op for op in operators if operators[op].strategy.__module__.startswith("strategies.")}


@pytest.mark.parametrize("op", OPS)
def test_a_recipe_is_json(op):
    """A recipe written as JSON and read back is the same recipe, and builds the same bits."""
    for recipe in drawn(op)[:20]:
        again = json.loads(json.dumps(recipe))
        assert again == recipe
        assert fingerprint(op, again, "bfloat16") == fingerprint(op, recipe, "bfloat16")


def test_a_recipe_builds_the_same_bits_in_another_process():
    """Nothing but the recipe decides the bits: not the process, its hash seed, or torch's global generator."""
    chosen = {op: drawn(op)[40:44] for op in OPS}
    program = (
        "import json, sys, torch; torch.manual_seed(99); torch.rand(7); sys.path[:0] = ['tests', '.'];"
        "import test_strategies as t; chosen = json.load(sys.stdin);"
        "print(json.dumps({op: [t.fingerprint(op, r, 'float16') for r in rs] for op, rs in chosen.items()}))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(chosen), cwd=ROOT, text=True, check=True,
        capture_output=True, timeout=120,
    )  # fmt: skip
    here = {op: [fingerprint(op, r, "float16") for r in recipes] for op, recipes in chosen.items()}
    assert json.loads(run.stdout) == here


@pytest.mark.parametrize("op", OPS)
def test_building_leaves_the_global_generator_alone(op):
    """Torch's global generator is in the same state before and after."""
    before = torch.get_rng_state()
    for recipe in drawn(op)[:10]:
        operators[op].build(recipe, "float32", "cpu")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("op", OPS)
def test_inputs_are_named_as_the_operators_keyword_arguments(op):
    """The inputs carry the names that kernels take."""
    names = {
        "rms_norm": "x weight eps offset",
        "rope": "x positions theta interleaved",
        "softmax": "logits",
        "token_logprobs": "logits targets temperature",
        "lm_head_logprobs": "hidden weight targets temperature",
        "attention_prefill": "q k v cu_seqlens scale causal window softcap sinks",
        "attention_decode_paged": "q k_cache v_cache block_table seq_lens scale window softcap",
    }
    built = operators[op].build(drawn(op)[0], "float32", "cpu")
    assert set(built) == set(names[op].split())
    assert set(operators[op].differentiable) <= set(built)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_have_the_dtype_asked_for(op, dtype):
    """Floating inputs have the dtype asked for; positions and targets are int64, lengths and tables int32."""
    integers = {
        "positions": torch.int64, "targets": torch.int64, "cu_seqlens": torch.int32, "block_table": torch.int32,
        "seq_lens": torch.int32,
    }  # fmt: skip
    for recipe in drawn(op)[:10]:
        built = operators[op].build(recipe, dtype, "cpu")
        for name, value in built.items():
            if isinstance(value, torch.Tensor):
                assert value.dtype == integers.get(name, getattr(torch, dtype)), name


@pytest.mark.parametrize("op", OPS)
def test_shapes_are_those_that_the_reference_returns(op):
    """`shapes` and `dtypes` name every output, and the shapes are those of the plain reference."""
    for recipe in drawn(op)[:15]:
        inputs = operators[op].build(recipe, "bfloat16", "cpu")
        want = {name: tuple(value.shape) for name, value in REFERENCES[op](inputs).items()}
        assert dict(operators[op].shapes(inputs)) == want
        assert set(operators[op].dtypes(inputs, "bfloat16")) == set(operators[op].outputs)


def test_log_probs_are_float32_whatever_the_dtype_of_the_logits():
    """Both operators that score targets promise float32 log-probs; the LM head's logits keep their dtype."""
    for op in ("token_logprobs", "lm_head_logprobs"):
        inputs = operators[op].build(drawn(op)[0], "bfloat16", "cpu")
        promised = operators[op].dtypes(inputs, "bfloat16")
        assert promised["logp"] is torch.float32
        assert promised.get("logits", torch.bfloat16) is torch.bfloat16


@pytest.mark.parametrize("op", OPS)
def test_inputs_are_small_enough_for_an_interpreter(op):
    """No tensor of an example has more than 60 thousand elements."""
    for recipe in drawn(op)[:60]:
        built = operators[op].build(recipe, "float32", "cpu").values()
        assert max(x.numel() for x in built if isinstance(x, torch.Tensor)) <= 60_000


@pytest.mark.parametrize("op", OPS)
def test_a_description_is_one_line_and_tells_recipes_apart(op):
    """Recipes that differ have descriptions that differ, each one line."""
    recipes = {json.dumps(recipe, sort_keys=True): recipe for recipe in drawn(op)}.values()
    texts = {operators[op].describe(recipe) for recipe in recipes}
    assert len(texts) == len(recipes)
    assert not any("\n" in text for text in texts)
    assert all(len(text) < 1000 for text in texts)


# --- what is reached


@pytest.mark.parametrize("op", OPS)
def test_few_examples_have_a_single_row(op):
    """Of 25 examples at least half, of 200 at least four in five, have several rows, so invariance is seen."""
    several = [len(items(op, recipe)) > 1 for recipe in drawn(op)]
    assert sum(several[:25]) >= 12
    assert sum(several) >= 160


@pytest.mark.parametrize("op", OPS)
def test_every_layout_is_reached(op):
    """200 examples hold every memory layout."""
    assert {recipe["layout"] for recipe in drawn(op)} == set(layouts.LAYOUTS)


@pytest.mark.parametrize(
    ("op", "kinds"),
    [
        ("rms_norm", tensors.ROW_KINDS), ("softmax", logits.LOGIT_KINDS), ("token_logprobs", logits.LOGIT_KINDS),
    ],
)  # fmt: skip
def test_every_kind_of_row_is_reached(op, kinds):
    """200 examples hold every kind of row, and most of them mix kinds."""
    found = [{row[0] for row in recipe["rows"]} for recipe in drawn(op)]
    assert set().union(*found) == set(kinds)
    assert sum(len(mixed) > 1 for mixed in found) >= 120


@pytest.mark.parametrize("op", ["token_logprobs", "lm_head_logprobs"])
def test_every_kind_of_target_and_temperature_is_reached(op):
    """200 examples look at the first, last, most and least likely and any token, at every temperature."""
    assert {row[2] for recipe in drawn(op) for row in recipe["rows"]} == set(logits.TARGET_KINDS)
    assert {recipe["temperature"] for recipe in drawn(op)} == {1.0, 0.7, 0.3, 1.5}


def test_a_masked_target_is_reached():
    """Some target is masked, so its log-prob is −inf; no row is masked altogether."""
    found = 0
    for recipe in drawn("token_logprobs"):
        inputs = operators["token_logprobs"].build(recipe, "bfloat16", "cpu")
        assert bool(inputs["logits"].isfinite().any(-1).all())
        chosen = inputs["logits"].gather(-1, inputs["targets"][:, None])
        found += int(bool(chosen.isneginf().any()))
    assert found >= 2


def test_every_kind_of_weight_and_eps_is_reached():
    """200 examples of rms_norm hold every kind of weight, every eps and both offsets."""
    recipes = drawn("rms_norm")
    assert {recipe["weight"][0] for recipe in recipes} == set(tensors.WEIGHT_KINDS)
    assert {recipe["eps"] for recipe in recipes} == {1e-6, 1e-5, 1e-3}
    assert {recipe["offset"] for recipe in recipes} == {0, 1}


def test_rope_goes_far_and_both_ways():
    """200 examples hold both conventions, position 0, positions past 65536 and sequences out of order."""
    recipes = drawn("rope")
    positions = [[token[2] for token in recipe["tokens"]] for recipe in recipes]
    assert {recipe["interleaved"] for recipe in recipes} == {False, True}
    assert sum(any(p > 65536 for p in row) for row in positions) >= 20
    assert sum(0 in row for row in positions) >= 20
    assert sum(row != sorted(row) for row in positions) >= 20


@pytest.mark.parametrize(("op", "name", "block"), [("rms_norm", "hidden", 64), ("softmax", "vocab", 64)])
def test_sizes_lie_around_the_declared_edges(op, name, block):
    """200 examples have sizes one below, at and one above an edge, at twice the edge, and 1."""
    found = {recipe[name] for recipe in drawn(op)}
    assert {block - 1, block, block + 1, 1} <= found
    assert found & {2 * block - 1, 2 * block, 2 * block + 1}


def test_edges_beyond_the_usual_sizes_are_reached():
    """An edge above the cap is drawn around as long as it is within twice the cap, and not beyond."""
    found = set()

    @settings(max_examples=200, database=None, deadline=None, derandomize=True)
    @given(sizes.sizes("hidden", {}, {"hidden": (150,)}, cap=100))
    def look(size):
        found.add(size)

    look()
    assert found & {149, 150, 151}
    assert max(found) <= 200


@pytest.mark.parametrize("op", ATTENTION)
def test_batches_hold_empty_short_long_and_repeated_sequences(op):
    """200 examples hold empty and length-1 sequences, one long with short ones, tails, and equal prefixes."""
    found = [recipe["sequences"] for recipe in drawn(op)]
    lengths = [[length for length, _ in sequences] for sequences in found]
    assert sum(0 in row for row in lengths) >= 5
    assert sum(1 in row for row in lengths) >= 5
    assert sum(max(row) >= 16 and min(row) <= 2 for row in lengths) >= 10
    assert any(33 in row for row in lengths)
    assert any(31 in row or 32 in row for row in lengths)
    filled = [[identity for length, identity in sequences if length] for sequences in found]
    assert sum(len(set(row)) < len(row) for row in filled) >= 10


@pytest.mark.parametrize("op", ATTENTION)
def test_heads_windows_caps_and_sharpness_are_reached(op):
    """200 examples hold every group size, window and softcap, and windows both inside and beyond a sequence."""
    recipes = drawn(op)
    assert {recipe["group"] for recipe in recipes} == {1, 2, 4}
    assert {recipe["softcap"] for recipe in recipes} == {None, 5.0, 30.0}
    assert {None, 1, 2} <= {recipe["window"] for recipe in recipes}
    assert len({recipe["sharpness"] for recipe in recipes}) == 3
    windowed = [recipe for recipe in recipes if recipe["window"]]
    longest = [max(length for length, _ in recipe["sequences"]) for recipe in windowed]
    inside = [recipe["window"] < length for recipe, length in zip(windowed, longest, strict=True)]
    assert sum(inside) >= 20
    assert inside.count(False) >= 20


def test_prefill_reaches_sinks_and_full_attention():
    """200 examples hold attention with and without sinks, causal and not."""
    assert {(r["sinks"], r["causal"]) for r in drawn("attention_prefill")} == {
        (a, b) for a in (False, True) for b in (False, True)
    }


def test_pages_are_shuffled_shared_and_partly_filled():
    """200 examples hold every page size and poison, tables out of order, shared pages and partial last pages."""
    recipes = drawn("attention_decode_paged")
    assert {recipe["page"] for recipe in recipes} == set(paging.PAGES)
    assert {recipe["pages"]["poison"] for recipe in recipes} == set(paging.POISONS)
    assert {recipe["pages"]["unused"] for recipe in recipes} == set(paging.UNUSED)
    shuffled = shared = partial = 0
    for recipe in recipes:
        table = operators["attention_decode_paged"].build(recipe, "bfloat16", "cpu")["block_table"]
        owned = [
            table[b, : -(-length // recipe["page"])].tolist()
            for b, (length, _) in enumerate(recipe["sequences"])
        ]
        shuffled += any(row != sorted(row) for row in owned)
        flat = [page for row in owned for page in row]
        shared += len(set(flat)) < len(flat)
        partial += any(length % recipe["page"] for length, _ in recipe["sequences"])
    assert shuffled >= 20
    assert shared >= 5
    assert partial >= 20


# --- what is respected


@pytest.mark.parametrize(
    ("op", "domain", "of"),
    [
        ("rms_norm", {"hidden": [5, 9]}, lambda r: [r["hidden"]]),
        ("rms_norm", {"tokens": [2, 3]}, lambda r: [len(r["rows"])]),
        ("softmax", {"tokens": [3, 3]}, lambda r: [len(r["rows"])]),
        ("softmax", {"vocab": [300, 310]}, lambda r: [r["vocab"]]),
        ("token_logprobs", {"tokens": [10, 20]}, lambda r: [len(r["rows"])]),
        ("lm_head_logprobs", {"tokens": [2, 4]}, lambda r: [len(r["rows"])]),
        ("rope", {"tokens": [2, 3]}, lambda r: [len(r["tokens"])]),
        ("rope", {"position": [7, 90]}, lambda r: [token[2] for token in r["tokens"]]),
        ("rope", {"head_dim": [64, 128]}, lambda r: [r["head_dim"]]),
        ("attention_prefill", {"length": [0, 4]}, lambda r: [n for n, _ in r["sequences"]]),
        ("attention_prefill", {"kv_heads": [2, 2]}, lambda r: [r["kv_heads"]]),
        ("attention_decode_paged", {"kv_len": [0, 4]}, lambda r: [n for n, _ in r["sequences"]]),
        ("attention_decode_paged", {"kv_len": [20, 300]}, lambda r: [n for n, _ in r["sequences"]]),
    ],
)
def test_ranges_are_respected(op, domain, of):
    """Every size drawn lies within its range, both ends included, and more than one where there are several."""
    ((low, high),) = domain.values()
    found = {value for recipe in drawn(op, domain=json.dumps(domain)) for value in of(recipe)}
    assert low <= min(found) <= max(found) <= high
    assert (
        len(found) > 1 or low == high or op == "token_logprobs"
    )  # 10 rows are the fewest, and above the cap


@pytest.mark.parametrize(
    ("op", "key", "values"),
    [
        ("rms_norm", "eps", [1e-4, 1e-5]), ("rms_norm", "offset", [1]), ("rope", "theta", [2.0]),
        ("attention_decode_paged", "page", [16, 64]), ("attention_decode_paged", "softcap", [None]),
        ("attention_decode_paged", "head_dim", [64, 128]), ("attention_prefill", "window", [3, None]),
        ("attention_prefill", "sinks", [True]), ("token_logprobs", "temperature", [0.7]),
    ],
)  # fmt: skip
def test_listed_values_are_all_drawn_and_no_others(op, key, values):
    """What a domain lists is drawn, all of it, known to the strategy or not; nothing else is."""
    found = {recipe[key] for recipe in drawn(op, domain=json.dumps({key: values}))}
    assert found == set(values)


@pytest.mark.parametrize("op", OPS)
def test_an_unknown_name_in_a_domain_is_refused(op):
    """A domain that names what the operator does not have is an error that lists what it has."""
    with pytest.raises(ValueError, match=f"{op}: domain names flavour; allowed: "):
        operators[op].strategy("float32", {"flavour": [1, 2]}, {})


@pytest.mark.parametrize(
    ("op", "domain", "message"),
    [
        ("rope", {"head_dim": [10, 14]}, "head_dim"),
        ("rope", {"tokens": [0, 0]}, "tokens"),
        ("rms_norm", {"eps": []}, "eps is empty"),
    ],
)
def test_a_domain_without_inputs_is_refused(op, domain, message):
    """A domain that leaves nothing to draw is an error that names the key."""
    with pytest.raises(ValueError, match=message):
        operators[op].strategy("float32", domain, {})


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 4), (1, 7), (4,), (0, 5)])
def test_a_layout_changes_no_value(layout, shape):
    """Whatever the layout, the values are the same, and the storage is that of the layout."""
    values = torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape)
    laid = layouts.lay_out(values, layout)
    assert torch.equal(laid, values)
    assert laid.shape == values.shape
    if len(shape) > 1 and min(shape) > 1:
        assert laid.is_contiguous() == (layout in ("contiguous", "offset"))
        assert (laid.storage_offset() > 0) == (layout == "offset")
        assert (laid.stride(-1) == 1) == (layout in ("contiguous", "offset", "padded"))


@pytest.mark.parametrize("layout", ["padded", "offset", "strided"])
def test_the_gaps_of_a_layout_are_poisoned(layout):
    """Whoever reads between the rows reads NaN."""
    laid = layouts.lay_out(torch.ones(3, 5), layout)
    storage = torch.empty(0).set_(laid.untyped_storage())
    assert bool(storage.isnan().any())
    assert int((~storage.isnan()).sum()) == 15


def test_an_unknown_layout_is_refused():
    """A layout that does not exist is an error that lists those that do."""
    with pytest.raises(ValueError, match="layout 'diagonal': allowed are contiguous, padded"):
        layouts.lay_out(torch.ones(2, 2), "diagonal")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", tensors.ROW_KINDS)
def test_rows_are_finite_with_a_finite_mean_square(kind, dtype):
    """Every kind of row is finite in its dtype, and its float32 sum of squares too."""
    for size in (1, 7, 300):
        row = tensors.row(kind, 11, size, getattr(torch, dtype))
        assert bool(row.isfinite().all())
        assert bool(row.float().square().sum().isfinite())


def test_kinds_of_rows_are_what_they_are_called():
    """Signed zeros, subnormals, a mean far above the spread, a square beyond fp16, one spike, ties of bf16."""

    def row(kind, dtype=torch.float16):
        return tensors.row(kind, 3, 40, dtype)

    zeros = row("zeros")
    assert not zeros.any()
    assert set(zeros.signbit().tolist()) == {True, False}
    subnormal = row("subnormal").abs()
    assert bool(((subnormal > 0) & (subnormal < torch.finfo(torch.float16).tiny)).any())
    offset = row("offset", torch.float64)
    assert offset.mean() > 50 * offset.std()
    assert bool(row("large").square().isinf().any())
    assert int((row("spike") != 0).sum()) == 1
    ties = row("ties", torch.float64) * 128 % 1
    assert bool((ties == 0.5).all())
    assert row("outlier", torch.float64).abs().max() >= 100


def test_a_weight_near_16_rounds_when_one_is_added_in_bfloat16():
    """15.8125 + 1 is no bfloat16: the kind that tells 1 + w in fp32 from the same in bf16."""
    weight = tensors.weight("near_16", 5, 50, torch.bfloat16)
    assert 15.8125 in weight.float().tolist()
    assert not torch.equal((weight + 1).double(), weight.double() + 1)


@pytest.mark.parametrize("kind", logits.LOGIT_KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_logit_rows_are_distributions(kind, dtype):
    """No kind holds NaN or +inf, every row has a finite maximum, only masked kinds have −inf."""
    for size in (1, 2, 65, 600):
        row = logits.logit_row(kind, 4, size, getattr(torch, dtype))
        assert not bool(row.isnan().any() | row.isposinf().any())
        assert bool(row.max().isfinite())
        assert kind.startswith("masked") or bool(row.isfinite().all())
    assert bool(row.isneginf().any()) == kind.startswith("masked")


def test_kinds_of_logits_are_what_they_are_called():
    """Dominant rows have no entropy, ascending rows rise, the last token leads, offsets are far, ties are near."""

    def row(kind, seed=3):
        return logits.logit_row(kind, seed, 200, torch.float64)

    assert row("dominant").softmax(-1).max() > 1 - 1e-6
    assert bool((row("ascending").diff() > 0).all())
    assert int(row("last").argmax()) == 199
    assert row("offset", 3).mean() > 9000
    assert row("offset", 4).mean() < -9000
    assert row("negative").max() < -150
    assert len(row("two_point").unique()) == 2
    assert row("near_ties").unique().diff().min() == 2**-7


def test_values_tell_positions_apart():
    """Neighbouring values differ by far more than a limit, on average over a head, so that a wrong key shows."""
    _, values = batches.keys_and_values(3, 100, 1, 16)
    means = values.mean((1, 2))
    assert (means[1:] - means[:-1]).abs().median() > 0.5
    assert (means[16:] - means[:-16]).abs().median() > 0.3


# --- rows are independent


@pytest.mark.parametrize("op", OPS)
def test_dropping_rows_leaves_the_others(op):
    """A recipe without its first row builds the same bits for the rest, so that shrinking changes nothing else."""
    rows = {
        "rms_norm": ("x",), "rope": ("x", "positions"), "softmax": ("logits",), "token_logprobs": ("logits", "targets"),
        "lm_head_logprobs": ("hidden", "targets"), "attention_decode_paged": ("q", "seq_lens"),
        "attention_prefill": ("q", "k", "v"),
    }[op]  # fmt: skip
    name = ITEMS.get(op, "rows")
    seen = 0
    for recipe in drawn(op)[:60]:
        if len(recipe[name]) < 2:
            continue
        seen += 1
        whole = operators[op].build(recipe, "float16", "cpu")
        rest = operators[op].build(recipe | {name: recipe[name][1:]}, "float16", "cpu")
        skip = recipe[name][0][0] if op == "attention_prefill" else 1
        for tensor in rows:
            assert bits(whole[tensor][skip:].contiguous()) == bits(rest[tensor].contiguous()), tensor
    assert seen >= 20


@pytest.mark.parametrize("lengths", [(1, 199), (40, 200), (199, 201), (200, 450)])
def test_a_sequence_begins_with_its_own_prefix(lengths):
    """Keys, values and queries of a seed are the same bits however long the sequence is, at any length."""
    short, long = (batches.keys_and_values(7, length, 2, 8) for length in lengths)
    for less, more in zip(short, long, strict=True):
        assert less.shape[0] == lengths[0]
        assert more.shape[0] == lengths[1]
        assert torch.equal(less, more[: lengths[0]])
    q = [batches.queries(7, length, 4, 8, 1.0) for length in lengths]
    assert torch.equal(q[0], q[1][: lengths[0]])


def test_pages_hold_what_sequences_own_and_poison_elsewhere():
    """Each slot that a sequence owns holds its key; every other slot, and every page of no sequence, is poison."""
    for recipe in drawn("attention_decode_paged")[:60]:
        inputs = operators["attention_decode_paged"].build(recipe, "float32", "cpu")
        k_cache, table, page = inputs["k_cache"], inputs["block_table"].tolist(), recipe["page"]
        owned = set()
        for b, (length, identity) in enumerate(recipe["sequences"]):
            keys, _ = batches.keys_and_values(identity, length, recipe["kv_heads"], recipe["head_dim"])
            slots = [(table[b][i // page], i % page) for i in range(length)]
            assert all(torch.equal(k_cache[s], key) for s, key in zip(slots, keys.float(), strict=True))
            owned |= set(slots)
        poisoned = k_cache.isnan() if recipe["pages"]["poison"] == "nan" else k_cache == 1e4
        free = {(p, s) for p in range(k_cache.shape[0]) for s in range(page)} - owned
        assert len(free) >= page
        assert all(bool(poisoned[slot].all()) for slot in free)
        assert not any(bool(poisoned[slot].any()) for slot in owned)


def test_unused_table_entries_are_minus_one_or_a_page_of_poison():
    """Behind its last page a sequence has entries, −1 or the number of a page that no sequence owns."""
    for recipe in drawn("attention_decode_paged")[:60]:
        inputs = operators["attention_decode_paged"].build(recipe, "float32", "cpu")
        for b, (length, _) in enumerate(recipe["sequences"]):
            unused = inputs["block_table"][b, -(-length // recipe["page"]) :]
            assert len(unused) >= 2
            if recipe["pages"]["unused"] == "minus_one":
                assert bool((unused == -1).all())
            else:
                assert not bool((inputs["k_cache"][unused.long()].abs() < 1e3).any())


# --- variants


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", ["batch", "permutation", "padding", "chunking", "pages", "repeat"])
def test_variants_agree_on_the_reference(op, name):
    """What a variant restores equals what it expects of the original, on a float64 reference."""
    if name not in operators[op].variants:
        assert name in ("chunking", "pages")  # the others are every operator's
        return
    seen = 0
    for recipe in drawn(op)[:24]:
        inputs = operators[op].build(recipe, "float32", "cpu")
        variant = operators[op].variants[name](inputs, recipe)
        if variant is None:
            continue
        seen += 1
        restored = variant.restore(REFERENCES[op](variant.inputs))
        expected = variant.expect(REFERENCES[op](inputs))
        assert set(restored) == set(expected) == set(operators[op].outputs)
        for output, value in restored.items():
            torch.testing.assert_close(value, expected[output], rtol=SHORTEST, atol=SHORTEST, equal_nan=True)
    assert seen >= 10


@pytest.mark.parametrize("op", OPS)
def test_variants_present_the_rows_differently(op):
    """Apart from `repeat`, a variant's inputs are not the original ones, in at least half of its examples."""
    for name, transform in operators[op].variants.items():
        if name == "repeat":
            continue
        changed = []
        for recipe in drawn(op)[:20]:
            inputs = operators[op].build(recipe, "float32", "cpu")
            if variant := transform(inputs, recipe):
                changed.append(any(bits(inputs[n]) != bits(variant.inputs[n]) for n in inputs))
        assert sum(changed) * 2 > len(changed) > 0, name


@pytest.mark.parametrize("op", OPS)
def test_variants_leave_the_original_inputs_alone(op):
    """Making a variant changes no bit of the inputs that it is made from."""
    for recipe in drawn(op)[:10]:
        inputs = operators[op].build(recipe, "float32", "cpu")
        before = {name: bits(value) for name, value in inputs.items()}
        for transform in operators[op].variants.values():
            transform(inputs, recipe)
        assert {name: bits(value) for name, value in inputs.items()} == before


@pytest.mark.parametrize("op", OPS)
def test_a_single_row_admits_no_batch_and_no_permutation(op):
    """One row has no batch to leave and no order to change: the variant is None, not an empty comparison."""
    name = ITEMS.get(op, "rows")
    recipe = next(r for r in drawn(op) if op not in ATTENTION or r["sequences"][0][0])
    alone = recipe | {name: recipe[name][:1]}
    inputs = operators[op].build(alone, "float32", "cpu")
    assert operators[op].variants["batch"](inputs, alone) is None
    assert operators[op].variants["permutation"](inputs, alone) is None


def test_rows_restored_in_the_wrong_order_do_not_agree():
    """A reversal that is not undone is seen: the comparison of variants can fail."""
    recipe = {"layout": "contiguous"}
    inputs = {"x": torch.arange(6.0).reshape(3, 2)}
    variant = variants.of_rows("x")["permutation"](inputs, recipe)
    assert torch.equal(variant.inputs["x"], variant.expect({"y": inputs["x"]})["y"])
    assert not torch.equal(variant.inputs["x"], inputs["x"])


def test_softmax_yields_its_log_probs_as_logits():
    """The bounds' logits of softmax are the logs of its probabilities; of the LM head they are its logits."""
    p = torch.tensor([[0.25, 0.75]])
    assert torch.allclose(operators["softmax"].logits({"p": p}, {}), p.log())
    assert operators["lm_head_logprobs"].logits({"logits": p}, {}) is p


# --- shrinking


@pytest.mark.parametrize(
    ("op", "holds", "most"),
    [
        ("rms_norm", lambda i: i["x"].abs().max() > 50, 2),
        ("rope", lambda i: bool((i["positions"] > 65536).any()), 2),
        ("softmax", lambda i: bool(i["logits"].isneginf().any()), 4),
        ("softmax", lambda i: i["logits"].shape[-1] % 64 == 1 and i["logits"].shape[-1] > 1, 65),
        ("lm_head_logprobs", lambda i: len(i["hidden"]) > 2, 3),
        ("attention_prefill", lambda i: i["window"] == 2 and i["cu_seqlens"][-1] > 2, 24),
        ("attention_decode_paged", lambda i: bool((i["seq_lens"] == 0).any()) and len(i["q"]) > 1, 32),
    ],
)  # fmt: skip
def test_a_planted_fault_shrinks_to_an_input_that_a_person_can_read(op, holds, most):
    """The smallest input on which a planted predicate holds has few elements in every tensor."""
    recipe = smallest(op, holds)
    inputs = operators[op].build(recipe, "float32", "cpu")
    assert holds(inputs)
    sizes_of = {name: x.numel() for name, x in inputs.items() if isinstance(x, torch.Tensor)}
    assert max(sizes_of.values()) <= max(most, 64), operators[op].describe(recipe)
    first = next(iter(sizes_of))
    assert sizes_of[first] <= most, operators[op].describe(recipe)


@pytest.mark.parametrize("op", OPS)
def test_the_simplest_recipe_is_plain(op):
    """With nothing to find, what is left is one plain row or sequence, contiguous."""
    recipe = smallest(op, lambda inputs: True)
    assert recipe["layout"] == "contiguous"
    assert len(items(op, recipe)) == 1
    assert items(op, recipe)[0] in ([0, 0], ["normal", 0], ["normal", 0, "first"], ["normal", 0, 0])
