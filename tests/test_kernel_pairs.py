"""Every registered pair against its operator's oracle, on inputs that kernels get wrong; its code compiled for CUDA.

Run as a script without TRITON_INTERPRET, it compiles each Triton kernel for the given compute capability.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from kernelpact.operators import oracles  # noqa: E402 - a script finds them by the line above
from kernelpact.pairs import load_pairs, registry  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

ROUNDINGS = {
    "rms_norm": 8,  # sum of squares, mean, root, three products
    "rope": 4,  # cos and sin rounded to float32, two products, one sum
    "softmax": 80,  # e^(z − max) with z − max down to −60 rounds its argument by up to 60 · 2^−24
    "token_logprobs": 16,
    "lm_head_logprobs": 16,
    "attention_prefill": 100,  # scores up to about 20, rounded a few times and exponentiated
    "attention_decode_paged": 100,
}
"""Allowed error beyond the rounding of the output, in units of 2^−24 of the magnitude that enters it."""


def noise(*shape, seed=0, dtype=torch.float64):
    """Normal values from a generator of their own."""
    draw = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=torch.float64, device="cpu").to(DEVICE, dtype)


def spread(tensor, dim=-1):
    """The same values, every other one along `dim` of a buffer that holds NaN or -1 elsewhere."""
    shape = list(tensor.shape)
    shape[dim] *= 2
    buffer = torch.full(shape, float("nan") if tensor.is_floating_point() else -1, dtype=tensor.dtype)
    index = [slice(None)] * len(shape)
    index[dim] = slice(None, None, 2)
    view = buffer[tuple(index)]
    view.copy_(tensor)
    return view


def transposed(tensor):
    """The same values, the last two axes swapped in memory."""
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def rms_norms(dtype):
    """Inputs of rms_norm by name: sizes about the block of 256, layouts, both offsets."""

    def make(x, weight, eps=1e-6, offset=0):
        return {"x": x, "weight": weight, "eps": eps, "offset": offset}

    yield "no tokens", make(noise(0, 7, dtype=dtype), noise(7, dtype=dtype))
    yield "one element", make(noise(1, 1, dtype=dtype), noise(1, dtype=dtype), 1e-5, 1)
    for hidden in (127, 256, 257):
        yield f"hidden {hidden}", make(noise(3, hidden, dtype=dtype), noise(hidden, seed=1, dtype=dtype))
    yield "a zero row", make(torch.zeros(2, 5, dtype=dtype), noise(5, dtype=dtype))
    weight = torch.full((67,), 15.8125, dtype=dtype)
    yield "one added near 16", make(transposed(noise(5, 67, dtype=dtype)), spread(weight), 1e-6, 1)


def ropes(dtype):
    """Inputs of rope by name: both conventions, far positions, layouts."""
    far = torch.tensor([0, 1, 4097, 131072, 131071])
    for interleaved in (False, True):
        for name, x, positions in (
            ("no tokens", noise(0, 2, 4, dtype=dtype), far[:0]),
            ("one pair", noise(1, 1, 2, dtype=dtype), far[3:4]),
            ("three heads of 20, far", transposed(noise(5, 3, 20, dtype=dtype)), spread(far)),
            ("five heads of 34", spread(noise(2, 5, 34, dtype=dtype)), far[:2].to(torch.int32)),
        ):
            yield (
                f"{name}, {'interleaved' if interleaved else 'split'}",
                {"x": x, "positions": positions, "theta": 1e4, "interleaved": interleaved},
            )


def masked_logits(rows, vocab, dtype):
    """Logits whose first blocks of 256 are masked, but for row 0."""
    logits = (4 * noise(rows, vocab)).to(dtype)
    logits[1:, : vocab - 3] = float("-inf")
    return logits


def softmaxes(dtype):
    """Inputs of softmax by name: vocabularies about the block of 256, masks, layouts."""
    yield "no tokens", {"logits": noise(0, 11, dtype=dtype)}
    yield "one token of one", {"logits": noise(1, 1, dtype=dtype)}
    for vocab in (255, 256, 257):
        yield f"vocab {vocab}", {"logits": transposed(3 * noise(2, vocab)).to(dtype)}
    yield "two masked blocks before a finite logit", {"logits": masked_logits(3, 523, dtype)}
    yield "a huge offset", {"logits": spread((1000 + 4 * noise(2, 67)).to(dtype))}


def token_logprobs(dtype):
    """Inputs of token_logprobs by name, from those of softmax, with targets at the ends."""
    for (name, inputs), temperature in zip(
        softmaxes(dtype), (1.0, 0.5, 0.7, 1.3, 2.0, 1.0, 0.6), strict=True
    ):
        rows, vocab = inputs["logits"].shape
        targets = torch.tensor([vocab - 1, 0, vocab - 1][:rows], dtype=torch.int64)
        yield name, {**inputs, "targets": spread(targets), "temperature": temperature}


def lm_heads(dtype):
    """Inputs of lm_head_logprobs by name: sizes about the tile of 16 × 64 × 64, layouts."""
    for name, rows, vocab, hidden in (
        ("no tokens", 0, 5, 3),
        ("one of each", 1, 1, 1),
        ("one tile", 16, 64, 64),
        ("past every tile", 17, 67, 65),
        ("primes", 3, 131, 127),
    ):
        weight = (noise(vocab, hidden, seed=1) * 2 / hidden**0.5).to(dtype)
        yield (
            name,
            {
                "hidden": transposed(noise(rows, hidden, dtype=dtype)),
                "weight": transposed(weight) if vocab % 2 else weight,
                "targets": spread((torch.arange(rows) * 7 + vocab - 1) % vocab),
                "temperature": 0.7,
            },
        )


def prefills(dtype):
    """Inputs of attention_prefill by name: packed lengths, masks, groups, layouts, softcap, sinks."""
    plain = {"causal": True, "window": None, "softcap": None, "sinks": None}
    for name, lengths, (heads, kv, size), changes in (
        ("no sequences", [], (2, 1, 4), {}),
        ("an empty sequence alone", [0], (2, 2, 4), {}),
        ("one token", [1], (1, 1, 1), {}),
        ("tile edges and an empty sequence", [17, 0, 1, 32, 33], (2, 1, 20), {}),
        ("not causal", [5, 33], (4, 2, 16), {"causal": False}),
        ("window", [35], (2, 2, 8), {"window": 5}),
        ("window of one", [18, 2], (2, 1, 8), {"window": 1}),
        ("window past int32", [7], (2, 1, 8), {"window": 2**31 - 1, "causal": False}),
        ("symmetrical window", [37], (1, 1, 16), {"window": 3, "causal": False}),
        ("window that sees nothing", [3, 18], (2, 1, 8), {"window": 0}),
        ("softcap", [19], (2, 1, 32), {"softcap": 5.0}),
        ("sinks", [3, 34], (4, 2, 16), {"sinks": spread(noise(4, seed=9, dtype=dtype)), "window": 4}),
    ):
        tokens = sum(lengths)
        yield (
            name,
            plain
            | {
                "q": transposed((3 * noise(tokens, heads, size)).to(dtype)),
                "k": spread(noise(tokens, kv, size, seed=1, dtype=dtype)),
                "v": noise(tokens, kv, 2 * size, seed=2, dtype=dtype)[..., size:],
                "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
                "scale": size**-0.5,
            }
            | changes,
        )


def decodes(dtype):
    """Inputs of attention_decode_paged by name: split and page edges, poisoned pages, empty sequences."""
    for name, lengths, page, (heads, kv, size), window, softcap in (
        ("no sequences", [], 4, (2, 1, 8), None, None),
        ("empty sequences alone", [0, 0], 4, (2, 1, 8), None, None),
        ("one position", [1], 1, (1, 1, 1), None, None),
        ("edges of split and page", [31, 32, 0, 33, 65], 16, (4, 2, 20), None, None),
        ("pages of 7, groups of 3", [13, 40], 7, (3, 1, 16), None, None),
        ("window that empties the first splits", [70, 3], 4, (2, 2, 8), 5, None),
        ("window past int32", [9], 4, (2, 1, 8), 2**31 - 1, None),
        ("window that sees nothing", [9], 4, (2, 1, 8), 0, None),
        ("softcap", [37], 16, (2, 1, 32), None, 5.0),
    ):
        yield (
            name,
            {
                "q": transposed((3 * noise(len(lengths), heads, size)).to(dtype)),
                **paged(lengths, page, kv, size, dtype),
                "seq_lens": spread(torch.tensor(lengths, dtype=torch.int32)),
                "scale": size**-0.5,
                "window": window,
                "softcap": softcap,
            },
        )


def paged(lengths, page, kv, size, dtype):
    """Caches [P, page, kv, size] in reversed order, NaN where nothing is stored, and -1 for unused entries."""
    counts = [-(-length // page) for length in lengths]
    caches = torch.full((2, sum(counts) + 1, page, kv, size), float("nan"), dtype=dtype)
    table = torch.full((len(lengths), max([*counts, 0]) + 1), -1, dtype=torch.int32)
    free = sum(counts)
    for b, length in enumerate(lengths):
        for m in range(counts[b]):
            held = min(page, length - m * page)
            caches[:, free, :held] = noise(2, held, kv, size, seed=free, dtype=dtype)
            table[b, m] = free
            free -= 1
    return {"k_cache": transposed(caches[0]), "v_cache": spread(caches[1]), "block_table": transposed(table)}


AWKWARD = {
    "rms_norm": rms_norms,
    "rope": ropes,
    "softmax": softmaxes,
    "token_logprobs": token_logprobs,
    "lm_head_logprobs": lm_heads,
    "attention_prefill": prefills,
    "attention_decode_paged": decodes,
}


def admitted(pair, dtype):
    """The awkward inputs that lie in a pair's domain."""
    with torch.device(DEVICE):
        cases = list(AWKWARD[pair.op](getattr(torch, dtype)))
    for name, inputs in cases:
        values = {**inputs, "sinks": inputs.get("sinks") is not None}
        if all(values[key] in allowed for key, allowed in pair.domain.items()):
            yield name, inputs


def excess(got, exact, scale):
    """Error beyond half an ulp of the output, in units of 2^-24 of the magnitude that enters it; NaN matches NaN."""
    info = torch.finfo(got.dtype)
    same = (got.double() == exact) | (got.isnan() & exact.isnan())
    binade = torch.exp2(torch.floor(torch.log2(exact.abs().clamp_min(info.tiny))))
    error = (got.double() - exact).abs() - binade * info.eps / 2
    error = error.nan_to_num(nan=torch.inf).clamp_min(0.0).masked_fill(same, 0.0)
    return error / (scale.abs().clamp_min(info.tiny) * 2.0**-24)


def bits(outputs):
    """Outputs as bytes, so that NaN equals itself."""
    return {
        name: value.clone(memory_format=torch.contiguous_format).view(torch.uint8)
        for name, value in outputs.items()
    }


def equal(one, other):
    """Whether two dicts of outputs are the same, bit for bit."""
    one, other = bits(one), bits(other)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


load_pairs(ROOT / "kernel_pairs")
PAIRS = sorted((pair for pair in registry if pair.op in AWKWARD), key=lambda pair: pair.name)
TRITON = [pair for pair in PAIRS if pair.name.endswith("/triton")]
if __name__ != "__main__":
    load_pairs(ROOT / "kernel_pairs" / "oracles")

of_every_pair = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
of_triton_pairs = pytest.mark.parametrize("pair", TRITON, ids=lambda pair: pair.name)


def test_each_operator_has_a_triton_pair_and_another_one():
    """Seven operators, each with a Triton kernel and one other inference kernel, and an oracle."""
    for op in AWKWARD:
        assert f"{op}/triton" in registry
        assert sum(pair.op == op for pair in PAIRS) >= 2
        assert op in oracles


@pytest.mark.parametrize(("roundings", "allowed"), [(7.9, True), (8.1, False)])
@pytest.mark.parametrize("scale", [1.0, 16.0])
def test_excess_counts_float32_roundings_beyond_half_an_ulp(roundings, allowed, scale):
    """An error of half a bf16 ulp and 7.9 roundings at the scale keeps a limit of 8; 8.1 breaks it."""
    got = torch.tensor([1.5], dtype=torch.bfloat16)
    error = 2.0**-8 + roundings * scale * 2.0**-24
    exact = torch.tensor([1.5 + error], dtype=torch.float64)
    assert bool(excess(got, exact, torch.tensor([scale])) <= 8) is allowed


def test_excess_is_infinite_where_one_side_alone_is_not_finite():
    """NaN and infinity match themselves and nothing else."""
    exact = torch.tensor([float("nan"), float("inf"), 1.0, float("inf"), 1.0], dtype=torch.float64)
    got = torch.tensor([float("nan"), float("inf"), float("nan"), 1.0, float("inf")])
    assert excess(got, exact, torch.ones(5)).tolist() == [0.0, 0.0, *[float("inf")] * 3]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@of_every_pair
def test_both_sides_keep_to_the_oracle(pair, dtype):
    """On every awkward input each side errs by half an ulp of its output and a few float32 roundings."""
    found, judged = [], 0
    for name, inputs in admitted(pair, dtype):
        exact = oracles[pair.op](**inputs)
        names = [output for output in exact if not output.endswith("_scale")]
        for side in ("train", "inf"):
            outputs = getattr(pair, side)(**inputs)
            assert sorted(outputs) == sorted(names)
            for output in names:
                got, wanted = outputs[output], exact[output]
                assert got.dtype == (torch.float32 if output == "logp" else getattr(torch, dtype))
                assert got.shape == wanted.shape, (name, side, output)
                beyond = excess(got, wanted, exact.get(f"{output}_scale", wanted))
                judged += beyond.numel()
                if beyond.numel() and not float(beyond.max()) <= ROUNDINGS[pair.op]:
                    found.append((name, side, output, float(beyond.max())))
    assert judged > 20
    assert not found


@of_every_pair
def test_a_call_leaves_its_inputs_alone_and_is_repeatable(pair):
    """A second call on the same inputs gives the same bits, and no call changes a bit of them."""
    for name, inputs in admitted(pair, "bfloat16"):
        tensors = {key: value for key, value in inputs.items() if isinstance(value, torch.Tensor)}
        before = bits({key: value.clone() for key, value in tensors.items()})
        assert equal(pair.inf(**inputs), pair.inf(**inputs)), name
        after = bits(tensors)
        assert all(torch.equal(before[key], after[key]) for key in tensors), name


ROWS = {
    "rms_norm": ("x",),
    "rope": ("x", "positions"),
    "softmax": ("logits",),
    "token_logprobs": ("logits", "targets"),
    "lm_head_logprobs": ("hidden", "targets"),
    "attention_decode_paged": ("q", "block_table", "seq_lens"),
}


@pytest.mark.parametrize("pair", [pair for pair in TRITON if pair.op in ROWS], ids=lambda pair: pair.name)
def test_a_row_is_the_same_bits_in_any_batch(pair):
    """Each row alone, and the rows reversed, give the bits that the whole batch gives."""
    compared = 0
    for name, inputs in admitted(pair, "float32"):
        whole = pair.inf(**inputs)
        rows = len(inputs[ROWS[pair.op][0]])
        for index in ([0], [rows - 1], list(range(rows))[::-1]) if rows > 1 else ():
            chosen = {key: inputs[key][index] for key in ROWS[pair.op]}
            part = pair.inf(**(inputs | chosen))
            assert equal(part, {key: value[index] for key, value in whole.items()}), (name, index)
            compared += 1
    assert compared >= 6


def test_a_sequence_alone_is_the_same_bits_as_packed():
    """Prefill of the last sequence by itself gives the bits that it has among the others."""
    pair, compared = registry["attention_prefill/triton"], 0
    for name, inputs in admitted(pair, "float32"):
        ends = inputs["cu_seqlens"].tolist()
        if len(ends) < 3:
            continue
        alone = {key: inputs[key][ends[-2] :] for key in ("q", "k", "v")}
        alone["cu_seqlens"] = torch.tensor([0, ends[-1] - ends[-2]], dtype=torch.int32, device=DEVICE)
        assert equal(pair.inf(**(inputs | alone)), {"o": pair.inf(**inputs)["o"][ends[-2] :]}), name
        compared += 1
    assert compared >= 3


DIFFERENTIABLE = {
    "rms_norm": ("x", "weight"),
    "rope": ("x",),
    "softmax": ("logits",),
    "token_logprobs": ("logits",),
    "lm_head_logprobs": ("hidden", "weight"),
    "attention_prefill": ("q", "k", "v"),
    "attention_decode_paged": ("q", "k_cache", "v_cache"),
}


WITHOUT_GRADIENT = {
    "window that sees nothing": "the outputs are constant",
    "two masked blocks before a finite logit": "some outputs are infinite",
}


def gradients(kernel, inputs, names, dtype):
    """Gradients of the outputs' sum, weighted by their index, with respect to the named inputs in `dtype`."""
    leaves = {name: inputs[name].detach().to(dtype).requires_grad_() for name in names}
    outputs = kernel(**(inputs | leaves))
    total = sum(
        (value.double() * torch.arange(value.numel(), device=DEVICE).reshape(value.shape).cos()).sum()
        for name, value in sorted(outputs.items())
        if not name.endswith("_scale")
    )
    return torch.autograd.grad(total, list(leaves.values()), allow_unused=True)


@of_triton_pairs
def test_gradients_of_the_training_kernel_are_those_of_the_oracle(pair):
    """K_train's float32 gradients lie within 1e-5 of the float64 ones, seen beside the largest of the tensor."""
    compared = 0
    for name, inputs in admitted(pair, "float32"):
        names = DIFFERENTIABLE[pair.op]
        if name in WITHOUT_GRADIENT or not inputs[names[0]].numel() or not any(inputs.get("seq_lens", [1])):
            continue
        exact = gradients(oracles[pair.op], inputs, names, torch.float64)
        ours = gradients(pair.train, inputs, names, torch.float32)
        for key, got, wanted in zip(names, ours, exact, strict=True):
            wanted = torch.zeros_like(inputs[key]).double() if wanted is None else wanted
            got = torch.zeros_like(inputs[key]) if got is None else got
            gap = (got.double() - wanted).abs().max()
            assert float(gap) <= 1e-5 * max(1.0, float(wanted.abs().max())), (name, key)
            compared += 1
    assert compared >= 3


@pytest.mark.parametrize("op", ["softmax", "token_logprobs"])
def test_a_row_masked_entirely_is_nan_and_spoils_no_other(op):
    """A row of nothing but -inf gives NaN on both sides and in the oracle; the row beside it stays finite."""
    logits = torch.tensor([[float("-inf")] * 3, [0.0, 1.0, float("-inf")]], device=DEVICE)
    inputs = {"logits": logits}
    if op == "token_logprobs":
        inputs |= {"targets": torch.tensor([0, 1], device=DEVICE), "temperature": 1.0}
    for kernel in (
        oracles[op],
        *(side for pair in PAIRS if pair.op == op for side in (pair.train, pair.inf)),
    ):
        value = next(iter(kernel(**inputs).values()))
        assert value[0].isnan().all(), kernel
        assert value[1].isfinite().all(), kernel


def test_the_log_prob_of_a_masked_target_is_minus_infinity():
    """Not NaN, and not the smallest finite number."""
    logits = torch.tensor([[0.0, float("-inf"), 1.0]], device=DEVICE)
    for pair in PAIRS:
        if pair.op == "token_logprobs":
            for side in (pair.train, pair.inf):
                found = side(logits=logits, targets=torch.tensor([1], device=DEVICE), temperature=0.5)
                assert found["logp"].item() == float("-inf")


@pytest.fixture(scope="module")
def far_apart(tmp_path_factory):
    """Give views of one sparse file: elements 2^30 apart along an axis, so that an int32 offset wraps at 2.

    The first 2^31 elements are left as zeros: a wrapped offset reads these, and gives a wrong result, not a crash.
    """
    path = tmp_path_factory.mktemp("sparse") / "elements"
    memory = torch.from_file(str(path), shared=True, size=2**31 + 3 * 2**30 + 2**12, dtype=torch.bfloat16)
    taken = 2**31

    def place(values, axis):
        nonlocal taken
        strides = [1] * values.dim()
        inner = 1
        for dim in reversed(range(values.dim())):
            if dim != axis:
                strides[dim], inner = inner, inner * values.shape[dim]
        strides[axis] = 2**30
        view = memory.as_strided(values.shape, strides, taken)
        taken += inner
        return view.copy_(values)

    yield place
    path.unlink()


@pytest.mark.skipif(DEVICE == "cuda", reason="the far elements lie in a sparse file on the host")
@pytest.mark.parametrize(
    ("op", "far"),
    [
        ("rms_norm", {"x": 1}),
        ("rope", {"x": 2}),
        ("rope", {"x": 1}),
        ("softmax", {"logits": 1}),
        ("softmax", {"logits": 0}),
        ("token_logprobs", {"logits": 1}),
        ("lm_head_logprobs", {"hidden": 1, "weight": 1}),
        ("lm_head_logprobs", {"hidden": 0, "weight": 0}),
        ("attention_prefill", {"q": 1, "k": 0, "v": 2}),
        ("attention_decode_paged", {"q": 1, "k_cache": 0, "v_cache": 1}),
        ("attention_decode_paged", {"q": 0, "k_cache": 2, "v_cache": 3}),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(f"{k}{v}" for k, v in value.items()),
)
def test_offsets_past_2_to_the_31_do_not_wrap(op, far, far_apart):
    """Elements 2^30 apart are read where they are: the bits are those of the same values in one piece."""
    dtype = torch.bfloat16
    x = noise(3, 3, 4, dtype=dtype)
    together = {
        "rms_norm": {"x": x[0], "weight": x[1, 0], "eps": 1e-6, "offset": 0},
        "rope": {"x": x, "positions": torch.arange(3), "theta": 1e4, "interleaved": True},
        "softmax": {"logits": x[0]},
        "token_logprobs": {"logits": x[0], "targets": torch.tensor([3, 2, 3]), "temperature": 0.7},
        "lm_head_logprobs": {
            "hidden": x[0], "weight": x[1], "targets": torch.tensor([2, 0, 1]), "temperature": 0.7,
        },
        "attention_prefill": {
            "q": x, "k": x, "v": x, "cu_seqlens": torch.tensor([0, 3], dtype=torch.int32), "scale": 0.5,
            "causal": True, "window": None, "softcap": None, "sinks": None,
        },
        "attention_decode_paged": {
            "q": x, "k_cache": noise(3, 3, 3, 4, dtype=dtype), "v_cache": noise(3, 3, 3, 4, seed=1, dtype=dtype),
            "block_table": torch.tensor([[2], [1], [0]], dtype=torch.int32),
            "seq_lens": torch.tensor([3, 3, 3], dtype=torch.int32), "scale": 0.5, "window": None, "softcap": None,
        },
    }[op]  # fmt: skip
    pair = registry[f"{op}/triton"]
    apart = {key: far_apart(together[key], axis) for key, axis in far.items()}
    assert equal(pair.inf(**(together | apart)), pair.inf(**together))


TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int64: "*i64", torch.int32: "*i32"}


class Compiled:
    """Stands where a Triton kernel stands; compiles each launch for a compute capability and launches nothing."""

    def __init__(self, kernel, capability):
        self.kernel, self.capability, self.launches = kernel, capability, 0

    def __getitem__(self, grid):
        return self.compile

    def compile(self, *args, **constants):
        """Compile for these arguments as a launch would: integers that are 1 are constants too."""
        import triton
        from triton.backends.compiler import GPUTarget

        given = inspect.signature(self.kernel.fn).bind(*args, **constants).arguments
        kinds, fixed = {}, dict(constants)
        for name, value in given.items():
            if isinstance(value, torch.Tensor):
                kinds[name] = TYPES[value.dtype]
            elif name in constants or (isinstance(value, int) and value == 1):
                kinds[name], fixed[name] = "constexpr", value
            else:
                kinds[name] = "fp32" if isinstance(value, float) else "i32"
        source = triton.compiler.ASTSource(fn=self.kernel, signature=kinds, constexprs=fixed)
        binary = triton.compile(source, target=GPUTarget("cuda", self.capability, 32))
        assert binary.asm["cubin"]
        self.launches += 1


def compile_all(capability):
    """Compile every Triton kernel for each path that the awkward bf16 inputs take; print the kernels' names."""
    for pair in TRITON:
        module = sys.modules[pair.inf.__module__]
        for name, kernel in list(vars(module).items()):
            if type(kernel).__name__ == "JITFunction":
                setattr(module, name, Compiled(kernel, capability))
        for case in PATHS[pair.op]:
            pair.inf(**dict(AWKWARD[pair.op](torch.bfloat16))[case])
        for name, kernel in vars(module).items():
            if isinstance(kernel, Compiled) and kernel.launches:
                print(f"{pair.name} {name} {kernel.launches}")


PATHS = {
    "rms_norm": ["one added near 16"],
    "rope": ["three heads of 20, far, split", "three heads of 20, far, interleaved"],
    "softmax": ["vocab 257"],
    "token_logprobs": ["vocab 257"],
    "lm_head_logprobs": ["past every tile", "one of each"],
    "attention_prefill": ["tile edges and an empty sequence", "softcap", "sinks", "symmetrical window"],
    "attention_decode_paged": ["edges of split and page", "window that empties the first splits", "softcap"],
}


@pytest.mark.parametrize("capability", [90])
def test_every_triton_kernel_compiles_for_cuda(capability, tmp_path):
    """Triton's own compiler and ptxas accept all eight kernels on every path, without a device."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, __file__, str(capability)],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)}, cwd=ROOT,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    launched = {tuple(line.split()[:2]) for line in run.stdout.splitlines()}
    assert {pair for pair, _ in launched} == {pair.name for pair in TRITON}
    assert len(launched) == 8


if __name__ == "__main__":
    compile_all(int(sys.argv[1]))
