# ruff: noqa: N803 - Triton's constexpr arguments are upper case
"""The proof of the substrate: what `check` measures, what a kernel's source uses, what is missing."""

import dataclasses
import functools
import json
import time

import pytest

from kernelpact import substrate
from kernelpact.substrate import conformance, interpreter
from kernelpact.substrate.conformance import Conformance, check, features_used, missing

GROUND = substrate.prepare()  # before Triton is imported
torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
libdevice = pytest.importorskip("triton.language.extra.libdevice")

interpreted = pytest.mark.skipif(
    not GROUND.corrections, reason="the interpreter is not in use, or not corrected"
)
BASE = {"gather", "int64_index", "loops", "float_arguments"}


# what is measured


@interpreted
def test_the_corrected_interpreter_has_every_feature_that_it_can_have():
    """Only inline PTX, and block pointers where Triton has dropped them, do not work on the CPU."""
    wrong = {name for name, (ok, _) in check("cpu").features.items() if not ok}
    dropped = {"block_pointers"} if interpreter.triton_version() >= (3, 9) else set()
    assert wrong == {"inline_asm"} | dropped


@interpreted
def test_the_check_is_measured_once_a_process():
    """A second call gives the same object."""
    assert check("cpu") is check("cpu")


@interpreted
def test_the_check_takes_a_few_seconds_at_most():
    """Measured afresh, all features take under 10 seconds, on a busy machine too."""
    start = time.perf_counter()
    conformance._measure.__wrapped__("cpu", GROUND)
    assert time.perf_counter() - start < 10


@interpreted
def test_the_result_is_plain_json():
    """Evidence records take the result as it is."""
    facts = json.loads(json.dumps(check("cpu").to_dict()))
    assert facts["device"] == "cpu"
    assert facts["features"]["dot_bfloat16"] == {"ok": True, "detail": "right"}


@interpreted
def test_another_device_than_the_substrates_is_not_proven():
    """Interpreted kernels say nothing about CUDA, and the reason is given for every feature."""
    results = check("cuda").features
    assert {ok for ok, _ in results.values()} == {False}
    assert results["loops"][1] == "Triton kernels run on triton-interpreter in this process, not on cuda"


def test_a_substrate_with_a_problem_proves_nothing():
    """Where Triton kernels cannot run, every feature fails with that reason."""
    ground = dataclasses.replace(GROUND, problem="no Triton here")
    result = conformance._measure.__wrapped__("cpu", ground)
    assert set(result.features.values()) == {(False, "no Triton here")}
    assert set(result.features) == set(conformance.PROBES)


@interpreted
@pytest.mark.parametrize(
    ("probe", "result"),
    [(lambda lab: "", (True, "right")), (lambda lab: "off by one", (False, "off by one"))],
)
def test_a_probe_that_finds_a_fault_fails(probe, result):
    """No fault is right; a fault's text is the detail."""
    assert conformance._run(probe, conformance._Lab("cpu")) == result


@interpreted
def test_a_probe_that_raises_is_a_feature_that_fails():
    """The exception is the finding, and the other features are still measured."""

    def probe(lab):
        raise RuntimeError("no such instruction")

    assert conformance._run(probe, conformance._Lab("cpu")) == (False, "RuntimeError: no such instruction")


@interpreted
@pytest.mark.parametrize(("offset", "fault"), [(1e-6, False), (1.1e-6, True)])
def test_nearness_is_judged_at_its_limit(offset, fault):
    """An error of the limit is allowed, a tenth more is not."""
    want = torch.tensor([1.0, 0.5], dtype=torch.float64)
    got = want + torch.tensor([0.0, offset - 1e-12], dtype=torch.float64)
    assert bool(conformance._Lab("cpu").near(got, want, 1e-6)) is fault


@interpreted
def test_nearness_does_not_swallow_nan():
    """NaN is not near anything."""
    lab = conformance._Lab("cpu")
    assert lab.near(torch.tensor([float("nan")]), torch.ones(1), 1.0) != ""


@interpreted
def test_sameness_is_of_bits_and_of_nan():
    """−0 is not 0, one bit off is a fault with its value, and NaN equals NaN alone."""
    lab, nan = conformance._Lab("cpu"), float("nan")
    assert lab.same(torch.tensor([1.0, nan]), torch.tensor([1.0, nan])) == ""
    assert "1 of 2 differ, e.g. -0.0 for 0.0" in lab.same(torch.tensor([1.0, -0.0]), torch.tensor([1.0, 0.0]))
    assert lab.same(torch.tensor([1.0]), torch.tensor([nan])) != ""


# each probe notices what it is there for


def truncated(x):
    """float32 values without their lower half."""
    return (x.view(torch.int32) & -65536).view(torch.float32)


FAULTS = {
    "cast_bfloat16": ("cast", lambda x, y, n, BLOCK: y.copy_(truncated(x))),
    "sum_float32": ("reduce", lambda x, y, cols, OP, BLOCK: y.copy_(x[:, :64].sum(1))),
    "max_float32": ("reduce", lambda x, y, cols, OP, BLOCK: y.copy_(x.amax(1).clamp(min=2.5))),
    "argmax_float32": ("reduce", lambda x, y, cols, OP, BLOCK: y.copy_(x.argmin(1))),
    "max_drops_nan": ("reduce", lambda x, y, cols, OP, BLOCK: y.copy_(x.amax(1))),
    "gather": ("gather", lambda x, y, *a, **k: y.copy_(x.as_strided(x.shape, (x.shape[1], 1)).t())),
    "int64_index": ("int64_index", lambda y, s, BLOCK: y.copy_((torch.arange(16) * s).to(torch.int32))),
    "atomics_float32": ("atomics", lambda x, y, n, bins, BLOCK: y.copy_(x[-7:])),
    "loops": ("loops", lambda x, y, n, BLOCK: y.copy_(x[:64].sum().expand(3))),
    "autotune": ("autotuned", lambda x, y, n: y.copy_(x)),
    "sort": ("sort", lambda x, y, BLOCK: y.copy_(x)),
    "boolean_operators": ("boolean", lambda y, low, high, BLOCK: y.copy_((torch.arange(16) < high).int())),
    "float_arguments": ("float_argument", lambda x, y, f, BLOCK: y.copy_(x * f)),
    "elementary": ("elementary", lambda x, y, n, BLOCK: y.copy_(torch.stack([x.exp(), *[x] * 5]))),
    "dot_float16": ("dot", lambda a, b, c, *s, PRECISION: c.copy_(a @ b)),
}  # fmt: skip


class Fake:
    """A kernel that is launched like one and is plain Python."""

    def __init__(self, run):
        self.run = run

    def __getitem__(self, grid):
        return self.run


@interpreted
@pytest.mark.parametrize("feature", FAULTS)
def test_a_probe_notices_a_wrong_kernel(feature):
    """Truncating, dropping, wrapping and the like are found by the probe of that feature."""
    lab = conformance._Lab("cpu")
    name, run = FAULTS[feature]
    right = conformance._run(conformance.PROBES[feature], lab)
    lab.kernels = type("Kernels", (), {name: Fake(run)})
    wrong = conformance._run(conformance.PROBES[feature], lab)
    assert right[0]
    assert not wrong[0]
    assert "Error" not in wrong[1], "the fault, not an exception, is what is found"


# what a kernel uses


@triton.jit
def inner(x):
    """A device function."""
    return tl.exp(x)


@triton.jit
def attend(q, k, o, scale, BLOCK: tl.constexpr):
    """A kernel with a dot, a maximum, and a device function."""
    at = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    scores = tl.dot(tl.load(q + at), tl.load(k + at)) * scale
    tl.store(o + at, inner(scores - tl.max(scores, 1)[:, None]))


@triton.autotune(configs=[triton.Config({"BLOCK": 16})], key=[])
@triton.jit
def tuned(x, y, BLOCK: tl.constexpr):
    """A kernel with libdevice and an atomic, autotuned."""
    tl.atomic_add(y, libdevice.tanh(tl.load(x)).to(tl.float8e4nv).to(tl.float32))


def run_attend(q, k):
    """An implementation."""
    o = torch.empty_like(q)
    attend[(1,)](q, k, o, 1.0, BLOCK=16)
    return o


def through_a_helper(q, k):
    """An implementation whose kernel is two steps away."""
    return run_attend(q, k) + 1


def in_a_closure():
    """An implementation that finds its kernel in a closure."""
    kernel = tuned

    def implementation(x):
        kernel[(1,)](x, x)

    return implementation


class Op(torch.autograd.Function):
    """An implementation as an autograd function."""

    @staticmethod
    def forward(ctx, q, k):
        """Launch."""
        return run_attend(q, k)


TABLE = {"fast": run_attend}


def by_table(q, k):
    """An implementation that picks its kernel from a table."""
    return TABLE["fast"](q, k)


def plain(x):
    """An implementation in PyTorch alone."""
    return x.softmax(-1)


ATTEND = {"dot_float32", "max_float32", "elementary"} | BASE


@pytest.mark.parametrize(
    "implementation",
    [
        attend,
        run_attend,
        through_a_helper,
        functools.partial(through_a_helper, k=None),
        Op,
        Op.apply,
        by_table,
    ],
    ids=["kernel", "launcher", "helper", "partial", "class", "apply", "table"],
)
def test_features_are_found_however_the_kernel_is_reached(implementation):
    """Kernels are found through globals, helpers, partials, classes and tables."""
    assert features_used(implementation, dtypes=["float32"]) == ATTEND


def test_features_depend_on_the_dtypes():
    """A bfloat16 argument asks for bfloat16's casts, arithmetic, dots and reductions besides float32's."""
    extra = {"cast_bfloat16", "arithmetic_bfloat16", "dot_bfloat16", "max_bfloat16"}
    assert features_used(run_attend, dtypes=["bfloat16"]) == ATTEND | extra


def test_libdevice_atomics_autotuning_and_fp8_are_recognised():
    """The decorator, the library, the atomic and a named fp8 type each count as a feature."""
    used = features_used(in_a_closure(), dtypes=["float32"])
    assert used == {"libdevice", "atomics_float32", "autotune", "cast_float8_e4m3fn"} | BASE


def test_without_dtypes_every_dtype_is_meant():
    """The default errs towards more features."""
    assert {"dot_float32", "dot_bfloat16", "dot_float16"} <= features_used(run_attend)


def test_an_implementation_without_a_kernel_uses_nothing():
    """Plain PyTorch needs no Triton, whatever the substrate."""
    assert features_used(plain) == set()


def test_a_kernel_without_source_makes_no_claim(monkeypatch):
    """Where the source cannot be read, that is what is missing."""

    def unreadable(_):
        raise OSError("could not get source code")

    monkeypatch.setattr(conformance.inspect, "getsource", unreadable)
    used = features_used(attend, dtypes=["float32"])
    assert used == {"source"} | BASE
    assert missing(used, Conformance("cpu", dict.fromkeys(BASE, (True, "right")))) == [
        "source on cpu: not measured"
    ]


@interpreted
def test_every_feature_that_the_scan_can_name_is_measured():
    """But for dot_scaled, which no probe covers yet, a name from a source is a name of a probe."""
    names = {name for name in conformance._CALLS.values() if name not in conformance._BY_DTYPE}
    assert names - set(conformance.PROBES) == {"dot_scaled"}
    assert BASE | {"libdevice", "autotune", "boolean_operators"} <= set(conformance.PROBES)


def test_missing_names_what_fails_and_what_was_not_measured():
    """A feature that is right is not missing; one that is wrong or unknown is, with the reason."""
    result = Conformance("cpu", {"dot_float32": (True, "right"), "libdevice": (False, "no such symbol")})
    assert missing({"dot_float32"}, result) == []
    assert missing({"dot_float32", "libdevice", "sort"}, result) == [
        "libdevice on cpu: no such symbol",
        "sort on cpu: not measured",
    ]
    assert result.ok("dot_float32")
    assert not result.ok("libdevice")
    assert not result.ok("sort")
