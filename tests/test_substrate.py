# ruff: noqa: D103, N803 - kernels' names say what they do; Triton's constexpr arguments are upper case
"""The corrections of Triton's CPU interpreter, against torch and float64, and the choice of a substrate."""

import json
import math
import os
import subprocess
import sys
import textwrap
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from kernelpact import substrate
from kernelpact.substrate import interpreter

GROUND = substrate.prepare()  # before Triton is imported
torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
libdevice = pytest.importorskip("triton.language.extra.libdevice")

pytestmark = pytest.mark.skipif(
    not GROUND.corrections, reason="the interpreter is not in use, or not corrected"
)

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
NARROW = (torch.bfloat16, torch.float16, *FP8)


def launch(kernel, *args, grid=(1,), **meta):
    kernel[grid](*args, **meta)


def same_bits(got, want):
    """Bit patterns are equal; any NaN equals any other."""
    nan = got.float().isnan() & want.float().isnan()
    width = BITS[got.element_size()]
    return bool(((got.view(width) == want.view(width)) | nan).all())


def patterns(dtype):
    """Every value of a 16- or 8-bit dtype."""
    bits = torch.arange(1 << (8 * dtype.itemsize)).to(BITS[dtype.itemsize])
    return bits.view(dtype)


def float32_values():
    """Over 600,000 float32 values: every upper half, and all ties of narrower formats with their sides."""
    high = torch.arange(65536, dtype=torch.int64) << 16
    values = [high | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]
    narrow = torch.arange(4096, dtype=torch.int64) << 20
    values += [narrow + low for low in (0x7FFFF, 0x80000, 0x80001)]
    half = patterns(torch.float16).float().view(torch.int32).to(torch.int64)
    values += [half + low for low in (0xFFF, 0x1000, 0x1001)]
    return (torch.cat(values) & 0xFFFFFFFF).to(torch.int32).view(torch.float32)


def saturated(x, dtype):
    """torch's cast, after the clamp that a device's conversion to fp8 includes."""
    limit = torch.finfo(dtype).max if dtype in FP8 else math.inf
    return x.float().clamp(-limit, limit).to(dtype)


@triton.jit
def convert(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n).to(y.dtype.element_ty), mask=at < n)


def cast(x, dtype):
    y = torch.empty(x.numel(), dtype=dtype)
    launch(convert, x, y, x.numel(), grid=(-(-x.numel() // 65536),), BLOCK=65536)
    return y


# casts


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_float32_is_narrowed_as_torch_narrows_it(dtype):
    """Over 600,000 float32 values, ties, subnormals, infinities and NaN among them, give torch's bits."""
    x = float32_values()
    assert same_bits(cast(x, dtype), saturated(x, dtype))


@pytest.mark.parametrize("source", NARROW, ids=str)
@pytest.mark.parametrize("target", [*NARROW, torch.float32, torch.float64], ids=str)
def test_every_narrow_pattern_converts_as_in_torch(source, target):
    """All patterns of each 8- and 16-bit float convert to every float as torch converts them."""
    x = patterns(source)
    want = x.to(target) if target in (torch.float32, torch.float64, source) else saturated(x, target)
    assert same_bits(cast(x, target), want)


@pytest.mark.parametrize(
    ("dtype", "value", "code"),
    [
        (torch.float8_e4m3fn, 448.0, 0x7E),
        (torch.float8_e4m3fn, 1e9, 0x7E),
        (torch.float8_e4m3fn, -math.inf, 0xFE),
        (torch.float8_e5m2, 57344.0, 0x7B),
        (torch.float8_e5m2, math.inf, 0x7B),
        (torch.float8_e4m3fn, math.nan, 0x7F),
    ],
)
def test_fp8_saturates_as_on_a_device_where_torch_overflows(dtype, value, code):
    """cvt.rn.satfinite gives the largest finite number beyond the range, and NaN for NaN alone."""
    assert cast(torch.tensor([value]), dtype).view(torch.uint8).item() == code


def test_float64_becomes_bfloat16_in_one_rounding():
    """1 + 2⁻⁸ + 2⁻³⁰ lies above the tie, which a detour through float32 would lose."""
    x = torch.tensor([1 + 2.0**-8 + 2.0**-30, 1 + 2.0**-8, -(1 + 2.0**-8 + 2.0**-30)], dtype=torch.float64)
    assert cast(x, torch.bfloat16).tolist() == [1 + 2.0**-7, 1.0, -(1 + 2.0**-7)]
    assert x[0].to(torch.float32).to(torch.bfloat16).item() == 1.0


def test_integers_become_bfloat16_in_one_rounding():
    """2²⁵ + 2¹⁷ is a tie and goes down to even; one more goes up, though float32 cannot tell them apart."""
    tie = (1 << 25) + (1 << 17)
    got = cast(torch.tensor([tie, tie + 1, -7], dtype=torch.int32), torch.bfloat16)
    assert got.tolist() == [float(1 << 25), float((1 << 25) + (1 << 18)), -7.0]


def test_floats_become_integers_by_truncation_and_saturation():
    """NaN is 0, the range ends at its ends, and int8 takes the low byte of an int16."""
    x = torch.tensor([math.nan, math.inf, -math.inf, 3e9, -2.7, 2.7])
    assert cast(x, torch.int32).tolist() == [0, 2**31 - 1, -(2**31), 2**31 - 1, -2, 2]
    assert cast(torch.tensor([300.0, -129.0, 127.9, 1e6]), torch.int8).tolist() == [44, 127, 127, -1]


def test_round_to_odd_makes_the_second_rounding_harmless():
    """Random float64 values, rounded to odd and then to bfloat16, are within half a unit of the truth."""
    random = np.random.default_rng(0)
    exact = random.standard_normal(20000) * 2.0 ** random.integers(-20, 20, 20000)
    got = interpreter.BFLOAT16.decode(interpreter.BFLOAT16.encode(exact)).astype(np.float64)
    spacing = 2.0 ** (np.floor(np.log2(np.abs(exact))) - 7)
    assert np.all(np.abs(got - exact) <= spacing / 2)


# arithmetic


@triton.jit
def operate(a, b, y, OP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    lhs, rhs = tl.load(a + at), tl.load(b + at)
    if OP == "add":
        out = lhs + rhs
    elif OP == "sub":
        out = lhs - rhs
    elif OP == "mul":
        out = lhs * rhs
    elif OP == "div":
        out = (lhs / rhs).to(lhs.dtype)
    elif OP == "neg":
        out = -lhs
    elif OP == "abs":
        out = tl.abs(lhs)
    elif OP == "maximum":
        out = tl.maximum(lhs, rhs)
    elif OP == "maximum_nan":
        out = tl.maximum(lhs, rhs, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "lt":
        out = (lhs < rhs).to(lhs.dtype)
    elif OP == "where":
        out = tl.where(lhs != rhs, lhs, 2.5)
    else:
        out = tl.fma(lhs, rhs, lhs)
    tl.store(y + at, out)


def operated(a, b, op):
    y = torch.empty_like(a)
    launch(operate, a, b, y, OP=op, BLOCK=a.numel())
    return y


def larger_number(a, b):
    """The larger, or the one that is a number; torch.fmax is not it for signalling NaN."""
    return torch.where(a.isnan(), b, torch.where(b.isnan(), a, torch.maximum(a, b)))


OPERATIONS = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "neg": lambda a, b: -a,
    "abs": lambda a, b: a.abs(), "maximum": larger_number, "maximum_nan": torch.maximum,
    "lt": lambda a, b: (a < b).to(a.dtype), "where": lambda a, b: torch.where(a != b, a, 2.5),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("op", OPERATIONS)
def test_arithmetic_is_torchs_bit_for_bit(op, dtype):
    """Operations on values of every size, signed zeros, infinities and NaN round as torch rounds."""
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(-(1 << 15), 1 << 15, (2, 65536), generator=generator).to(torch.int16)
    a, b = bits.view(torch.bfloat16).to(dtype)
    got, want = operated(a, b, op), OPERATIONS[op](a, b)
    either_zero = (a == 0) & (b == 0)  # which zero is the larger is nobody's promise
    if op == "neg" and interpreter.triton_version() < (3, 8):
        either_zero = a == 0  # there −x was 0 − x, on a device too
    assert same_bits(got[~either_zero], want[~either_zero])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_fma_rounds_once(dtype):
    """tl.fma gives the value nearest to the exact x·y + x, in every float type."""
    generator = torch.Generator().manual_seed(2)
    x, y = (torch.randn(2048, generator=generator).to(dtype) for _ in range(2))
    got = operated(x, y, "fma")
    for a, b, value in zip(x.tolist(), y.tolist(), got, strict=True):
        exact = Fraction(a) * Fraction(b) + Fraction(a)
        below, above = (torch.nextafter(value, value.new_tensor(end)).item() for end in (-math.inf, math.inf))
        error = abs(Fraction(value.item()) - exact)
        assert error <= abs(Fraction(below) - exact)
        assert error <= abs(Fraction(above) - exact)


def test_fp8_arithmetic_is_refused_as_a_compiler_refuses_it():
    """Adding fp8 values raises and says what to do instead."""
    x = torch.ones(16).to(torch.float8_e4m3fn)
    with pytest.raises(Exception, match=r"does not compile arithmetic on fp8e4nv: convert it to float32"):
        operated(x, x, "add")


@triton.jit
def scale(x, y, factor, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) * factor.to(tl.float32))


def test_a_float_argument_is_a_float32_tensor():
    """Kernels may convert a float argument, and its product with bfloat16 keeps float32's bits."""
    x, y = torch.randn(16).to(torch.bfloat16), torch.empty(16)
    launch(scale, x, y, 0.1, BLOCK=16)
    assert same_bits(y, x.float() * torch.tensor(0.1))


# dot


@triton.jit
def matmul(a, b, c, PRECISION: tl.constexpr, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr):
    m, k, n = tl.arange(0, M), tl.arange(0, K), tl.arange(0, N)
    lhs, rhs = tl.load(a + m[:, None] * K + k[None, :]), tl.load(b + k[:, None] * N + n[None, :])
    tl.store(c + m[:, None] * N + n[None, :], tl.dot(lhs, rhs, input_precision=PRECISION))


def product(a, b, precision="ieee"):
    c = torch.empty(a.shape[0], b.shape[1])
    launch(matmul, a, b, c, PRECISION=precision, M=a.shape[0], K=a.shape[1], N=b.shape[1])
    return c.double()


@pytest.mark.parametrize("dtype", [torch.float32, *NARROW], ids=str)
def test_dot_accumulates_in_float32(dtype):
    """Each element is within K roundings of float32 of the float64 product of the same operands."""
    generator = torch.Generator().manual_seed(3)
    a, b = (
        torch.randn(32, 64, generator=generator).to(dtype),
        torch.randn(64, 16, generator=generator).to(dtype),
    )
    error = (product(a, b) - a.double() @ b.double()).abs()
    assert bool((error <= 64 * 2**-24 * (a.double().abs() @ b.double().abs())).all())


def test_float32_dot_is_tf32_unless_ieee_is_asked_for():
    """The operands' low 13 bits are not read by default, as by a tensor core."""
    a, b = torch.randn(16, 16, generator=torch.Generator().manual_seed(4)), torch.eye(16)
    truncated = (a.view(torch.int32) & ~0x1FFF).view(torch.float32).double()
    assert torch.equal(product(a, b, "tf32"), truncated)
    assert torch.equal(product(a, b, "ieee"), a.double())


# reductions


@triton.jit
def reduce_rows(x, y, cols, OP: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * cols + at, mask=at < cols, other=0.0 if OP == "sum" else float("-inf"))
    if OP == "sum":
        tl.store(y + row, tl.sum(values, 0))
    elif OP == "max":
        tl.store(y + row, tl.max(values, 0))
    else:
        tl.store(y + row, tl.argmax(values, 0))


def reduced(x, op, dtype=None):
    y = torch.empty(x.shape[0], dtype=dtype or x.dtype)
    launch(reduce_rows, x, y, x.shape[1], grid=(x.shape[0],), OP=op, BLOCK=128)
    return y


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_sums_round_in_their_own_type_within_a_trees_error(dtype):
    """A sum of 77 masked values is within 7 roundings of float64; a 16-bit one rounds at every addition."""
    x = torch.randn(50, 77, generator=torch.Generator().manual_seed(5)).to(dtype)
    error = (reduced(x, "sum").double() - x.double().sum(1)).abs()
    assert bool((error <= 7 * torch.finfo(dtype).eps / 2 * x.double().abs().sum(1)).all())
    if dtype is not torch.float32:
        assert not torch.equal(reduced(x, "sum"), x.double().sum(1).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_max_and_argmax_find_the_first_largest_and_drop_nan(dtype):
    """Maxima are exact, NaN does not count, and of equal maxima argmax names the leftmost."""
    x = torch.randn(20, 77, generator=torch.Generator().manual_seed(6)).to(dtype)
    x[0, 10], x[1, 76], x[2, 3] = math.nan, math.nan, 9.0
    x[2, 60] = 9.0
    x[3] = -torch.arange(77).to(dtype) - 1
    numbers = x.nan_to_num(nan=-math.inf)
    assert torch.equal(reduced(x, "max"), numbers.amax(1))
    assert torch.equal(reduced(x, "argmax", torch.int32), numbers.argmax(1).to(torch.int32))


@triton.jit
def scan_rows(x, y, REVERSE: tl.constexpr, AXIS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    tl.store(y + at, tl.cumsum(tl.load(x + at), AXIS, reverse=REVERSE))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
def test_bfloat16_running_sums_round_at_every_step(reverse, axis):
    """A cumulative sum of bfloat16 is the sequential one, in float32 before Triton 3.9, then in bfloat16."""
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(7)).to(torch.bfloat16)
    y = torch.empty_like(x)
    launch(scan_rows, x, y, REVERSE=reverse, AXIS=axis, ROWS=8, COLS=16)
    kind = torch.bfloat16 if interpreter.triton_version() >= (3, 9) else torch.float32
    steps = list((x.flip(axis) if reverse else x).to(kind).unbind(axis))
    for i in range(1, len(steps)):
        steps[i] = steps[i - 1] + steps[i]
    want = torch.stack(steps, axis).to(torch.bfloat16)
    assert torch.equal(y, want.flip(axis) if reverse else want)


@triton.jit
def largest_of_all(x, value, ROWS: tl.constexpr, COLS: tl.constexpr):
    tile = tl.load(x + tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :])
    tl.store(value, tl.max(tile))
    tl.store(value + 1, tl.sum(tile))
    best, at = tl.max(tile, 1, return_indices=True, keep_dims=True)
    tl.store(value + 2 + tl.arange(0, ROWS)[:, None], best + at.to(tl.float32).to(best.dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_reductions_over_all_axes_and_with_kept_axes(dtype):
    """tl.max and tl.sum without an axis see the whole tile; kept axes stay."""
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(8)).to(dtype).round()
    got = torch.empty(6, dtype=dtype)
    launch(largest_of_all, x, got, ROWS=4, COLS=8)
    best = x.max(1)
    assert got[:2].tolist() == [x.max().item(), x.double().sum().item()]
    assert got[2:].tolist() == (best.values + (x == best.values[:, None]).to(dtype).argmax(1)).tolist()


# libdevice, atomics, control flow, launching


@triton.jit
def call_libdevice(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    tl.store(y + at, libdevice.tanh(value))
    tl.store(y + BLOCK + at, libdevice.erf(value))
    tl.store(y + 2 * BLOCK + at, libdevice.rsqrt(value * value + 1))
    tl.store(y + 3 * BLOCK + at, tl.extra.cuda.libdevice.expm1(value))
    tl.store(y + 4 * BLOCK + at, libdevice.isnan(value).to(tl.float32))
    tl.store(y + 5 * BLOCK + at, libdevice.pow(libdevice.abs(value), value * 0 + 1.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_libdevice_functions_agree_with_float64(dtype):
    """libdevice's functions, by either import path, are right to a few units in the last place."""
    x = torch.randn(64, generator=torch.Generator().manual_seed(9)).to(dtype)
    x[5] = math.nan
    y, wide = torch.empty(6, 64, dtype=dtype), x.double()
    launch(call_libdevice, x, y, BLOCK=64)
    wants = [
        wide.tanh(),
        wide.erf(),
        (wide * wide + 1).rsqrt(),
        wide.expm1(),
        wide.isnan(),
        wide.abs() ** 1.5,
    ]
    torch.testing.assert_close(
        y.double(),
        torch.stack([w.double() for w in wants]),
        rtol=4 * torch.finfo(dtype).eps,
        atol=0,
        equal_nan=True,
    )


@pytest.mark.parametrize(
    ("symbol", "argument", "want"),
    [
        ("__nv_rsqrtf", 4.0, 0.5), ("__nv_fast_expf", 0.0, 1.0), ("__nv_erff", 0.5, math.erf(0.5)),
        ("__nv_roundf", 2.5, 3.0), ("__nv_roundf", -0.49999997, -0.0), ("__nv_rintf", 2.5, 2.0),
        ("__nv_lgammaf", 5.0, math.lgamma(5)), ("__nv_exp10f", 2.0, 100.0), ("__nv_isinff", math.inf, 1),
        ("__nv_sinpif", 0.5, 1.0), ("__nv_saturatef", 1.5, 1.0), ("__nv_frcp_rn", 4.0, 0.25),
    ],
)  # fmt: skip
def test_libdevice_symbols_are_found_by_their_name(symbol, argument, want):
    """Prefixes for speed and suffixes for the type are taken off; the function is numpy's or scipy's."""
    got = interpreter.libdevice_function(symbol)(np.array([argument], dtype=np.float32))
    assert got[0] == pytest.approx(want, rel=1e-6)


def test_an_unknown_libdevice_symbol_is_named():
    """What has no counterpart is refused, not approximated."""
    with pytest.raises(NotImplementedError, match="__nv_fadd_rz"):
        interpreter.libdevice_function("__nv_fadd_rz")


@triton.jit
def accumulate(x, y, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y + at % BINS, tl.load(x + at, mask=at < n), mask=at < n)


def test_bfloat16_atomics_add_one_after_the_other():
    """Lanes that name one address all count, each addition rounding, and masked lanes do not."""
    x, y = torch.full((70,), 1.0, dtype=torch.bfloat16), torch.tensor([256.0, 0.0], dtype=torch.bfloat16)
    launch(accumulate, x, y, 70, grid=(2,), BINS=2, BLOCK=64)
    assert y.tolist() == [256.0, 35.0]  # 256 + 1 is a tie in bfloat16 and goes back to 256, every time


@triton.jit
def choose(y, low, high, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inside = low <= at < high
    chosen = (inside and at != 5) or at == 0
    tl.store(y + at, chosen.to(tl.int32))
    tl.store(y + BLOCK + at, (not chosen).to(tl.int32))


def test_boolean_operators_work_element_by_element():
    """`and`, `or`, `not` and chained comparisons of blocks mean what they mean on a device."""
    y = torch.empty(2, 16, dtype=torch.int32)
    launch(choose, y, 3, 9, BLOCK=16)
    want = [int((3 <= i < 9 and i != 5) or i == 0) for i in range(16)]
    assert y.tolist() == [want, [1 - w for w in want]]


@triton.jit
def short_circuit(y, FLAG: tl.constexpr, OTHER: tl.constexpr):
    if FLAG is not None and FLAG > OTHER:
        tl.store(y, 1)
    else:
        tl.store(y, 0)


@pytest.mark.parametrize(("flag", "want"), [(None, 0), (1, 0), (3, 1)])
def test_boolean_operators_of_constants_stop_early(flag, want):
    """`FLAG is not None and FLAG > 2` does not look at None's size."""
    y = torch.full((1,), -1, dtype=torch.int32)
    launch(short_circuit, y, FLAG=flag, OTHER=2)
    assert y.item() == want


@triton.jit
def demand(x, BLOCK: tl.constexpr):
    tl.device_assert(tl.load(x + tl.arange(0, BLOCK)) > 0, "not positive")


@pytest.mark.parametrize(("smallest", "fails"), [(1, False), (0, True)])
def test_device_assert_is_heard(smallest, fails):
    """An assertion that fails in one lane stops the launch and names the program."""
    x = torch.full((16,), 5, dtype=torch.int32)
    x[7] = smallest
    if fails:
        with pytest.raises(Exception, match=r"device_assert in program \(0, 0, 0\): not positive"):
            launch(demand, x, BLOCK=16)
    else:
        launch(demand, x, BLOCK=16)


CONFIGS = [triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})]


@triton.autotune(configs=CONFIGS, key=["n"], reset_to_zero=["y"])
@triton.jit
def tuned(y, n, BLOCK: tl.constexpr):
    tl.atomic_add(y, BLOCK)


def test_autotuning_takes_the_first_configuration():
    """Without a device the choice is the first configuration, made without running any other."""
    y = torch.zeros(1, dtype=torch.int32)
    launch(tuned, y, 1)
    assert y.item() == 16
    assert tuned.best_config is CONFIGS[0]


@triton.jit
def warn(x, y, BLOCK: tl.constexpr):
    value = tl.load(x + tl.arange(0, BLOCK))
    tl.store(y + tl.arange(0, BLOCK), tl.log(value) + value / (value - value) + tl.exp(value + 1e38))


def test_a_launch_gives_no_floating_point_warnings():
    """log(0), 0/0 and overflow are values, as on a device, and numpy's settings are as before afterwards."""
    before, y = np.geterr(), torch.empty(16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launch(warn, torch.zeros(16), y, BLOCK=16)
    assert bool(y.isnan().all())
    assert np.geterr() == before


def test_a_launch_leaves_triton_as_it_found_it():
    """Functions that a kernel calls patch Triton's modules too; all is undone at the end of the launch."""
    before = dict(vars(tl.core)), dict(vars(tl)), dict(vars(tl.tensor))
    assert reduced(torch.ones(1, 5), "sum").item() == 5
    assert (dict(vars(tl.core)), dict(vars(tl)), dict(vars(tl.tensor))) == before


def test_a_launch_that_fails_leaves_triton_as_it_found_it():
    """An exception in a kernel does not keep the next launch from patching afresh."""
    before = dict(vars(tl.core))
    with pytest.raises(Exception, match="device_assert"):
        launch(demand, torch.zeros(16, dtype=torch.int32), BLOCK=16)
    assert dict(vars(tl.core)) == before
    assert reduced(torch.ones(1, 5), "sum").item() == 5


# the choice of a substrate


def python(code, **environment):
    """Run code in a fresh interpreter, with TRITON_INTERPRET not set unless given; its last line is JSON."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | environment
    env["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(Path(substrate.__path__[0]).parents[1]), env.get("PYTHONPATH")])
    )
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def test_prepare_describes_the_substrate_once():
    """The description is plain data with all versions, and a second call returns the same one."""
    assert substrate.prepare() is GROUND
    facts = json.loads(json.dumps(GROUND.to_dict()))
    assert (facts["kind"], facts["torch"], facts["triton"]) == (
        "triton-interpreter",
        torch.__version__,
        triton.__version__,
    )
    assert {"casts", "arithmetic", "dot", "reductions", "libdevice", "autotune"} <= set(facts["corrections"])
    assert substrate.interpreting()


def test_without_a_device_prepare_chooses_the_interpreter():
    """With TRITON_INTERPRET not set and no CUDA device, it sets it before Triton is imported."""
    got = python("""
        import json, os, torch
        torch.cuda.is_available = lambda: False
        from kernelpact import substrate
        ground = substrate.prepare()
        print(json.dumps([ground.to_dict(), os.environ["TRITON_INTERPRET"]]))
    """)
    assert (got[0]["kind"], got[0]["problem"], got[1]) == ("triton-interpreter", "", "1")
    assert got[0]["corrections"] == list(GROUND.corrections)


def test_with_a_device_prepare_touches_nothing():
    """With a CUDA device and TRITON_INTERPRET not set, neither the environment nor Triton is touched."""
    got = python("""
        import json, os, sys, torch
        torch.cuda.is_available = lambda: True
        torch.cuda.get_device_name = lambda: "Some GPU"
        from kernelpact import substrate
        ground = substrate.prepare()
        touched = [n for n in ("triton", "kernelpact.substrate.interpreter") if n in sys.modules]
        print(json.dumps([ground.to_dict(), os.environ.get("TRITON_INTERPRET"), touched]))
    """)
    assert (got[0]["kind"], got[0]["device"], got[0]["corrections"]) == ("cuda", "Some GPU", [])
    assert got[1:] == [None, []]


def test_triton_imported_too_early_is_a_stated_problem():
    """Kernels cannot be judged when Triton was imported without TRITON_INTERPRET, and the reason is given."""
    got = python("""
        import json, torch, triton
        torch.cuda.is_available = lambda: False
        from kernelpact import substrate
        from kernelpact.substrate import conformance
        ground = substrate.prepare()
        reasons = conformance.missing({"loops"}, conformance.check())
        print(json.dumps([ground.problem, ground.corrections, reasons]))
    """)
    assert "triton was imported before TRITON_INTERPRET=1 was set" in got[0]
    assert got[1] == []
    assert got[2] == [f"loops on cpu: {got[0]}"]


def test_without_triton_prepare_does_nothing(monkeypatch):
    """Where Triton is not installed the kind is none, and the environment stays as it is."""
    monkeypatch.setattr(substrate, "_prepared", None)
    monkeypatch.setattr(substrate, "_version", lambda name: "" if name == "triton" else "1")
    monkeypatch.delenv("TRITON_INTERPRET")
    ground = substrate.prepare()
    assert (ground.kind, ground.corrections) == ("none", ())
    assert "triton is not installed" in ground.problem
    assert "TRITON_INTERPRET" not in os.environ


def test_a_user_who_forbids_interpreting_is_obeyed(monkeypatch):
    """TRITON_INTERPRET=0 without a device leaves nothing to run on, and says so."""
    monkeypatch.setattr(substrate, "_prepared", None)
    monkeypatch.setattr(substrate, "_cuda_device", lambda: "")
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    ground = substrate.prepare()
    assert (ground.kind, os.environ["TRITON_INTERPRET"]) == ("none", "0")
    assert "TRITON_INTERPRET=0 forbids" in ground.problem


@pytest.mark.parametrize(("value", "truth"), [("1", True), ("on", True), ("0", False), ("", False)])
def test_interpreting_reads_the_environment_as_triton_does(monkeypatch, value, truth):
    """The values that Triton takes for true mean interpreting, and no others."""
    monkeypatch.setenv("TRITON_INTERPRET", value)
    assert substrate.interpreting() is truth


def test_an_unknown_triton_is_left_alone(monkeypatch):
    """A release that the corrections were not tested with gets none, and the description says so."""
    monkeypatch.setattr(substrate, "_prepared", None)
    monkeypatch.setattr(substrate, "_installation", None)
    monkeypatch.setattr(interpreter, "triton_version", lambda: (9, 0))
    ground = substrate.prepare()
    assert (ground.corrections, ground.problem) == ((), "")
    assert "runs uncorrected" in ground.notes[0]


def test_uninstalling_puts_triton_back():
    """Every attribute that the corrections replaced is the original again."""
    got = python(
        """
        import json, torch
        import triton.language as tl, triton.runtime.interpreter as ip, triton.runtime.autotuner as tuner
        import triton.language.extra.libdevice as lib
        from kernelpact import substrate
        homes = [ip, ip.InterpreterBuilder, ip.ReduceOps, ip.ScanOps, ip.GridExecutor, ip.ASTTransformer,
                 tuner.Autotuner, lib]
        def contents():
            return [dict(vars(home)) for home in homes] + [ip.interpreter_builder.options]
        before = contents()
        substrate.prepare()
        changed = [a != b for a, b in zip(before, contents())]
        substrate.uninstall()
        print(json.dumps([changed, contents() == before]))
        """,
        TRITON_INTERPRET="1",
    )
    assert got == [[True] * 9, True]


WRONG = {
    "cast_bfloat16", "cast_float8_e4m3fn", "cast_float8_e5m2", "arithmetic_bfloat16", "dot_bfloat16",
    "sum_bfloat16", "atomics_bfloat16", "libdevice", "autotune", "boolean_operators", "float_arguments",
}  # fmt: skip
"""What Triton's interpreter gets wrong by itself in 3.6 to 3.9."""


def test_without_the_corrections_the_interpreter_is_wrong():
    """If this fails, Triton has mended, or broken, something: the corrections are due for a look."""
    features = python(
        """
        import json
        from kernelpact.substrate import conformance, interpreter
        interpreter.SUPPORTED = ()
        print(json.dumps(conformance.check().to_dict()["features"]))
        """,
        TRITON_INTERPRET="1",
    )
    wrong = {name for name, result in features.items() if not result["ok"]}
    version = interpreter.triton_version()
    expected = WRONG | {"inline_asm"}
    if version == (3, 9):
        expected |= {"argmax_bfloat16", "block_pointers"}
    if version == (3, 6) and np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        expected |= {"loops"}
    assert wrong == expected
