"""The float64 oracles: against values worked out by hand, plain Python loops, and their own finite differences."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest
import torch

from kernelpact.operators import oracles
from kernelpact.pairs import load_pairs

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "kernel_pairs" / "oracles"

load_pairs(FOLDER)


def wide(values):
    """A float64 tensor."""
    return torch.tensor(values, dtype=torch.float64)


def noise(*shape, seed=0):
    """Normal values from a generator of their own."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(found, expected):
    """Whether two tensors agree to 1e-13, element by element."""
    torch.testing.assert_close(found, wide(expected), rtol=1e-13, atol=1e-13)
    return True


def rows_of(tensor):
    """Nested lists of Python floats."""
    return tensor.double().tolist()


def test_rms_norm_of_three_and_four():
    """The mean square of (3, 4) is 12.5; with eps 12.5 the root is 5, and an offset of 1 is added to the weight."""
    inputs = {"x": wide([[3.0, 4.0]]), "weight": wide([1.0, 2.0]), "eps": 12.5}
    assert close(oracles["rms_norm"](**inputs, offset=0)["y"], [[0.6, 1.6]])
    assert close(oracles["rms_norm"](**inputs, offset=1)["y"], [[1.2, 2.4]])


def test_rms_norm_keeps_what_float32_would_lose():
    """Squares near 1e300 are summed in float64."""
    found = oracles["rms_norm"](x=wide([[1e150, -1e150]]), weight=wide([1.0, 1.0]), eps=1e-6, offset=0)
    assert close(found["y"], [[1.0, -1.0]])


@pytest.mark.parametrize(
    ("interleaved", "expected"), [(True, [-2.0, 1.0, 3.0, 4.0]), (False, [-3.0, 2.0, 1.0, 4.0])]
)
def test_rope_turns_the_pairs_of_its_convention(interleaved, expected):
    """A quarter turn of the first pair takes (a, b) to (-b, a); theta = 1e300 leaves the second pair as it is."""
    found = oracles["rope"](
        x=wide([[[1.0, 2.0, 3.0, 4.0]]]), positions=wide([math.pi / 2]), theta=1e300, interleaved=interleaved
    )
    assert close(found["y"][0, 0], expected)


def test_rope_angles_far_out_are_those_of_float64():
    """At position 131071 the second pair of theta = 10000 turns by 131071 / 100 radians."""
    found = oracles["rope"](
        x=wide([[[0.0, 1.0, 0.0, 0.0]]]), positions=torch.tensor([131071]), theta=1e4, interleaved=False
    )
    angle = 131071 / 100
    assert found["y"][0, 0, 1].item() == pytest.approx(math.cos(angle), abs=1e-12)
    assert found["y"][0, 0, 3].item() == pytest.approx(math.sin(angle), abs=1e-12)


def test_the_scale_of_rope_does_not_cancel():
    """Where a cos and b sin cancel, y is 0 and the scale is the sum of both magnitudes."""
    found = oracles["rope"](
        x=wide([[[1.0, 1.0]]]), positions=wide([math.pi / 4]), theta=1e4, interleaved=True
    )
    root = math.sqrt(0.5)
    assert close(found["y"][0, 0], [0.0, 2 * root])
    assert close(found["y_scale"][0, 0], [2 * root, 2 * root])


def test_softmax_of_logs_gives_their_shares():
    """Logits ln 1, ln 2, ln 5 give 1/8, 2/8, 5/8, under any offset; a masked logit gives 0."""
    logits = wide([[0.0, math.log(2), math.log(5), -math.inf]])
    for offset in (0.0, 500.0, -900.0):
        found = oracles["softmax"](logits=logits + offset)["p"]
        torch.testing.assert_close(found, wide([[0.125, 0.25, 0.625, 0.0]]), rtol=1e-12, atol=0.0)


def test_token_logprobs_divide_by_the_temperature_first():
    """At temperature 0.5, logits ln 1 and ln 2 are as 1 to 4."""
    found = oracles["token_logprobs"](
        logits=wide([[0.0, math.log(2)]] * 2), targets=torch.tensor([0, 1]), temperature=0.5
    )
    assert close(found["logp"], [math.log(0.2), math.log(0.8)])


def test_masked_logits_in_token_logprobs():
    """A masked target has -inf, one beside a mask a finite log-prob and scale, and a row of masks NaN."""
    low = -math.inf
    found = oracles["token_logprobs"](
        logits=wide([[0.0, low], [0.0, low], [low, low]]), targets=torch.tensor([1, 0, 0]), temperature=1.0
    )
    assert found["logp"][:2].tolist() == [low, 0.0]
    assert found["logp"][2].isnan()
    assert found["logp_scale"][:2].isfinite().all()


def test_the_scale_of_a_log_prob_has_the_largest_logit():
    """A large common offset rounds every logit: the scale grows with it, though the log-prob does not."""
    inputs = {"targets": torch.tensor([0]), "temperature": 0.5}
    found = oracles["token_logprobs"](logits=wide([[1000.0, 999.0]]), **inputs)
    assert found["logp_scale"].item() == pytest.approx(2000 + 0.0 + math.log1p(math.exp(-2)), rel=1e-12)


def test_lm_head_logits_are_before_the_temperature():
    """Two tokens, three words: logits by hand, log-probs of logits over temperature, scales of magnitudes."""
    hidden, weight = wide([[1.0, -2.0], [0.5, 4.0]]), wide([[1.0, 1.0], [3.0, 0.0], [-1.0, 2.0]])
    found = oracles["lm_head_logprobs"](
        hidden=hidden, weight=weight, targets=torch.tensor([1, 2]), temperature=2.0
    )
    assert close(found["logits"], [[-1.0, 3.0, -5.0], [4.5, 1.5, 7.5]])
    assert close(found["logits_scale"], [[3.0, 3.0, 5.0], [4.5, 1.5, 8.5]])
    rows = ([-0.5, 1.5, -2.5], [2.25, 0.75, 3.75])
    expected = [row[at] - math.log(sum(map(math.exp, row))) for row, at in zip(rows, (1, 2), strict=True)]
    assert close(found["logp"], expected)


def plain_attention(q, keys, values, scale, softcap, sink):
    """One query and one head in plain Python: o[D] and Σ p|v|."""
    if not keys:
        return [0.0] * len(q), [0.0] * len(q)
    scores = [scale * sum(a * b for a, b in zip(q, key, strict=True)) for key in keys]
    if softcap is not None:
        scores = [softcap * math.tanh(score / softcap) for score in scores]
    total = sum(map(math.exp, scores)) + (0.0 if sink is None else math.exp(sink))
    p = [math.exp(score) / total for score in scores]
    columns = list(zip(*values, strict=True))
    return (
        [sum(a * b for a, b in zip(p, column, strict=True)) for column in columns],
        [sum(a * abs(b) for a, b in zip(p, column, strict=True)) for column in columns],
    )


def seen(i, j, causal, window):
    """The rule of the mask, as the docstring says it."""
    if causal and j > i:
        return False
    return window is None or abs(i - j) < window


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 0, 1, 2, 4])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_attention_prefill_is_a_plain_loop(causal, window, softcap, with_sinks):
    """Packed sequences of 3, 0, 1 and 5 tokens, four query heads on two: every output and scale by Python's floats."""
    lengths, heads, kv, size = [3, 0, 1, 5], 4, 2, 3
    tokens = sum(lengths)
    q, k, v = 2 * noise(tokens, heads, size), noise(tokens, kv, size, seed=1), noise(tokens, kv, size, seed=2)
    sinks = noise(heads, seed=3) if with_sinks else None
    found = oracles["attention_prefill"](
        q=q, k=k, v=v, cu_seqlens=torch.tensor([0, *lengths]).cumsum(0).to(torch.int32), scale=0.7,
        causal=causal, window=window, softcap=softcap, sinks=sinks,
    )  # fmt: skip
    ql, kl, vl = rows_of(q), rows_of(k), rows_of(v)
    start = 0
    for length in lengths:
        for i in range(length):
            for h in range(heads):
                at = [start + j for j in range(length) if seen(i, j, causal, window)]
                o, scale = plain_attention(
                    ql[start + i][h], [kl[t][h // 2] for t in at], [vl[t][h // 2] for t in at], 0.7, softcap,
                    None if sinks is None else sinks[h].item(),
                )  # fmt: skip
                assert close(found["o"][start + i, h], o)
                assert close(found["o_scale"][start + i, h], scale)
        start += length


@pytest.mark.parametrize("window", [None, 0, 1, 3, 100])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_attention_decode_paged_is_a_plain_loop(window, softcap):
    """Lengths 0, 1, 2 and 5 in scattered pages of 2, poison around them: the last query sees the last `window` keys."""
    lengths, heads, kv, size, page = [0, 1, 2, 5], 2, 1, 3, 2
    table = torch.tensor([[-1, -1, -1], [4, -1, -1], [0, 2**30, -1], [3, 1, 5]], dtype=torch.int32)
    caches = torch.full((2, 7, page, kv, size), math.nan, dtype=torch.float64)
    places = [[(int(table[b, j // page]), j % page) for j in range(n)] for b, n in enumerate(lengths)]
    for b, row in enumerate(places):
        for j, (p, slot) in enumerate(row):
            caches[:, p, slot] = noise(2, kv, size, seed=10 * b + j)
    q = 2 * noise(len(lengths), heads, size, seed=99)
    found = oracles["attention_decode_paged"](
        q=q, k_cache=caches[0], v_cache=caches[1], block_table=table,
        seq_lens=torch.tensor(lengths, dtype=torch.int32), scale=0.7, window=window, softcap=softcap,
    )  # fmt: skip
    for b, row in enumerate(places):
        kept = row if window is None else row[max(0, len(row) - window) :]
        keys, values = ([rows_of(cache[p, slot, 0]) for p, slot in kept] for cache in caches)
        for h in range(heads):
            o, scale = plain_attention(rows_of(q[b, h]), keys, values, 0.7, softcap, None)
            assert close(found["o"][b, h], o)
            assert close(found["o_scale"][b, h], scale)


def packed(**changes):
    """Small inputs of attention_prefill."""
    return {
        "q": noise(3, 2, 2), "k": noise(3, 1, 2, seed=1), "v": noise(3, 1, 2, seed=2), "scale": 0.7,
        "cu_seqlens": torch.tensor([0, 2, 3], dtype=torch.int32), "causal": True, "window": None,
        "softcap": None, "sinks": None,
    } | changes  # fmt: skip


SMALL = {
    "rms_norm": ({"x": noise(2, 3), "weight": noise(3, seed=1), "eps": 0.1, "offset": 1}, ("x", "weight")),
    "rope": (
        {"x": noise(2, 1, 4), "positions": torch.tensor([1, 70]), "theta": 1e4, "interleaved": True},
        ("x",),
    ),
    "softmax": ({"logits": noise(2, 4)}, ("logits",)),
    "token_logprobs": (
        {"logits": noise(2, 4), "targets": torch.tensor([0, 3]), "temperature": 0.7},
        ("logits",),
    ),
    "lm_head_logprobs": (
        {"hidden": noise(2, 3), "weight": noise(4, 3, seed=1), "targets": torch.tensor([0, 3]), "temperature": 0.7},
        ("hidden", "weight"),
    ),
    "attention_prefill": (packed(softcap=2.0, sinks=wide([0.5, -1.0]), window=2), ("q", "k", "v")),
    "attention_decode_paged": (
        {
            "q": noise(2, 2, 2), "k_cache": noise(2, 2, 1, 2, seed=1), "v_cache": noise(2, 2, 1, 2, seed=2),
            "block_table": torch.tensor([[1, 0], [0, -1]], dtype=torch.int32),
            "seq_lens": torch.tensor([3, 1], dtype=torch.int32), "scale": 0.7, "window": None, "softcap": 2.0,
        },
        ("q", "k_cache", "v_cache"),
    ),
}  # fmt: skip


def test_there_is_an_oracle_for_each_operator_of_these_tests():
    """Seven files, seven oracles."""
    assert {path.stem for path in FOLDER.glob("*.py")} - {"__init__"} == set(SMALL)
    assert set(SMALL) <= set(oracles)


@pytest.mark.parametrize("op", sorted(SMALL))
def test_gradients_through_an_oracle_are_its_finite_differences(op):
    """What the gradient relation holds K_train against is the derivative of the oracle's values."""
    inputs, names = SMALL[op]

    def values(*leaves):
        outputs = oracles[op](**(inputs | dict(zip(names, leaves, strict=True))))
        return tuple(value for key, value in sorted(outputs.items()) if not key.endswith("_scale"))

    leaves = [inputs[name].clone().requires_grad_() for name in names]
    assert torch.autograd.gradcheck(values, leaves, eps=1e-6, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("op", sorted(SMALL))
def test_an_oracle_widens_its_inputs_before_it_computes(op, dtype):
    """Narrow inputs give, bit for bit, what the same values give as float64; every figure is float64."""
    inputs, _ = SMALL[op]
    narrow = {
        key: value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for key, value in inputs.items()
    }
    same = {
        key: value.double() if getattr(value, "dtype", None) == dtype else value
        for key, value in narrow.items()
    }
    found, expected = oracles[op](**narrow), oracles[op](**same)
    assert found.keys() == expected.keys()
    for key in found:
        assert found[key].dtype == torch.float64
        assert torch.equal(found[key], expected[key])


@pytest.mark.parametrize("op", sorted(SMALL))
def test_a_scale_is_at_least_the_value_it_belongs_to(op):
    """The magnitude that enters an output is never less than the output, and carries no gradient."""
    inputs, names = SMALL[op]
    leaves = {name: inputs[name].clone().requires_grad_() for name in names}
    found = oracles[op](**(inputs | leaves))
    scales = {key: value for key, value in found.items() if key.endswith("_scale")}
    assert {key.removesuffix("_scale") for key in scales} <= found.keys()
    for key, scale in scales.items():
        assert (scale >= found[key.removesuffix("_scale")].abs() * (1 - 1e-12)).all()
        assert not scale.requires_grad
    assert bool(scales) is (op not in ("rms_norm", "softmax"))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_an_oracle_shares_no_code_with_a_kernel(path):
    """It imports torch and the engine's decorator alone, and calls none of torch's fused operators."""
    tree = ast.parse(path.read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert modules <= {"__future__", "itertools", "torch", "kernelpact.operators"}
    fused = {"softmax", "log_softmax", "logsumexp", "rsqrt", "rms_norm", "functional", "gather", "nn"}
    assert not fused & {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
