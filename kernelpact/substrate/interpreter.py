"""Corrections of Triton's CPU interpreter (TRITON_INTERPRET=1), for triton 3.6 to 3.9.

The interpreter keeps bfloat16 and fp8 values as integer bit patterns and computes on the integers, truncates
where a device rounds, has no libdevice, and cannot choose an autotuned configuration without a device.
This module replaces those paths by what the PTX says that Triton 3.9 emits for sm_90:

- conversions to bfloat16 round once, to nearest even, also from float64 and from integers (``cvt.rn.bf16``);
- conversions to fp8 saturate, infinities included (``cvt.rn.satfinite``). torch's casts do not: they give
  NaN (e4m3) or infinity (e5m2) there; inside the range the two agree bit for bit;
- conversions to integers truncate, saturate, and turn NaN into 0 (``cvt.rzi``); to 8 bits by way of 16;
- bfloat16 arithmetic rounds after every operation, sums of bfloat16 and float16 included (``add.bf16``);
- ``tl.max`` and ``tl.min`` drop NaN (``max.f32``);
- ``tl.dot`` of float32 operands is TF32 unless ``input_precision="ieee"``: the low 13 bits are not read;
- a Python float passed to a kernel is a float32 tensor (``.param .f32``), and promotes 16-bit operands;
- fp8 values have no arithmetic: it does not compile, so here it is refused.

Not modelled: a device's approximate exp2, division and rsqrt, contraction of a*b+c, the order of its
reductions, accumulation inside a tensor core. What argmax makes of NaN is unspecified on a device.

Besides, `and`, `or`, `not` and chained comparisons of blocks work element by element, device_assert raises,
numpy's floating-point warnings are silenced, and Triton's modules are patched once a launch (half the time).
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial, wraps
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

Array = npt.NDArray[Any]

SUPPORTED = ((3, 6), (3, 7), (3, 8), (3, 9))
"""(major, minor) of the Triton releases that the corrections were written against and tested with."""


# ------------------------------------------------------------------------------------------- number formats


def round_to_odd(values: Array) -> npt.NDArray[np.float32]:
    """Narrow float64 to float32 so that a later rounding to at most 22 bits is that of the exact value.

    Shapes: any. Source: Boldo and Melquiond 2008, "Emulation of FMA and correctly rounded sums: proved
    algorithms using rounding to odd".
    """
    exact = np.asarray(values, dtype=np.float64)
    near = exact.astype(np.float32)
    bits = near.view(np.uint32).copy()
    inexact = (near.astype(np.float64) != exact) & ~np.isnan(exact)
    bits -= (inexact & (np.abs(near.astype(np.float64)) > np.abs(exact))).astype(np.uint32)
    odd: npt.NDArray[np.float32] = (bits | inexact).astype(np.uint32).view(np.float32)
    return odd


class Bfloat16:
    """bfloat16 as the upper half of a float32; bit patterns are uint16."""

    has_arithmetic = True

    def decode(self, bits: Array) -> npt.NDArray[np.float32]:
        """Give the float32 values of uint16 bit patterns, exactly."""
        return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)

    def encode(self, values: Array, toward_zero: bool = False) -> npt.NDArray[np.uint16]:
        """Round real numbers (any float or integer dtype) once to uint16 bit patterns; NaN becomes 0x7FC0."""
        values = np.asarray(values)
        exact = values.dtype in (np.float16, np.float32)
        single = values.astype(np.float32) if exact else round_to_odd(values)
        bits = np.ascontiguousarray(single).view(np.uint32).reshape(single.shape)
        if not toward_zero:
            bits = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        return np.where(np.isnan(single), np.uint16(0x7FC0), (bits >> np.uint32(16)).astype(np.uint16))


@dataclass(frozen=True)
class Float8:
    """An 8-bit float with `mantissa` stored bits; bit patterns are uint8.

    `min_exponent` is that of the smallest normal number, `max_finite` the value at which conversions
    saturate, `infinity` the bit pattern of infinity where the format has one.
    """

    mantissa: int
    min_exponent: int
    max_finite: float
    infinity: int | None
    has_arithmetic = False

    @cached_property
    def _values(self) -> npt.NDArray[np.float32]:
        codes = np.arange(128)
        exponent, fraction = codes >> self.mantissa, codes & ((1 << self.mantissa) - 1)
        significand = np.where(exponent > 0, fraction + (1 << self.mantissa), fraction)
        shift = np.maximum(exponent, 1) - 1 + self.min_exponent - self.mantissa
        positive = np.ldexp(significand.astype(np.float64), shift)
        positive[positive > self.max_finite] = np.nan
        if self.infinity is not None:
            positive[self.infinity] = np.inf
        return np.concatenate([positive, -positive]).astype(np.float32)

    def decode(self, bits: Array) -> npt.NDArray[np.float32]:
        """Give the float32 values of uint8 bit patterns, exactly."""
        return self._values[np.asarray(bits).astype(np.intp)]

    def encode(self, values: Array, toward_zero: bool = False) -> npt.NDArray[np.uint8]:
        """Round real numbers once to uint8 bit patterns, saturating at `max_finite`; NaN becomes 0x7F."""
        exact = np.asarray(values, dtype=np.float64)
        magnitude = np.where(np.isnan(exact), 0.0, np.minimum(np.abs(exact), self.max_finite))
        smallest = np.ldexp(1.0, self.min_exponent)  # below it, zero included, the spacing is constant
        exponent = np.frexp(np.maximum(magnitude, smallest))[1] - 1
        scaled = np.ldexp(magnitude, self.mantissa - exponent)
        steps = np.trunc(scaled) if toward_zero else np.rint(scaled)
        # Positive numbers have consecutive codes, so a carry into the next binade needs no special case.
        code = ((exponent - self.min_exponent) << self.mantissa) + steps.astype(np.int64)
        code = np.where(np.isnan(exact), 0x7F, code | (np.signbit(exact).astype(np.int64) << 7))
        return code.astype(np.uint8)


BFLOAT16 = Bfloat16()
E4M3 = Float8(mantissa=3, min_exponent=-6, max_finite=448.0, infinity=None)
E5M2 = Float8(mantissa=2, min_exponent=-14, max_finite=57344.0, infinity=0x7C)


def to_integer(values: Array, dtype: Any) -> Array:
    """Convert floats to integers as ``cvt.rzi`` does: truncate, saturate, NaN to 0.

    An 8-bit target is converted through 16 bits and then loses its upper byte, as in Triton's PTX.
    """
    target = np.dtype(dtype)
    work = np.dtype(f"{target.kind}2") if target.itemsize == 1 else target
    info = np.iinfo(work)
    whole = np.trunc(np.where(np.isnan(values), 0, values).astype(np.float64))
    high, low = whole >= 2.0 ** (info.bits - (info.kind == "i")), whole < float(info.min)
    result = np.where(high | low, 0.0, whole).astype(work)
    result = np.where(high, work.type(info.max), np.where(low, work.type(info.min), result))
    return result.astype(target)


def to_tf32(values: Array) -> npt.NDArray[np.float32]:
    """Drop the 13 mantissa bits of float32 that a TF32 tensor core does not read."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32).reshape(np.shape(values))


def half_toward_zero(values: Array) -> npt.NDArray[np.float16]:
    """Convert floats to float16 rounding toward zero."""
    half = values.astype(np.float16)
    over = np.abs(half.astype(np.float64)) > np.abs(values.astype(np.float64))
    return np.where(over, np.nextafter(half, np.float16(0)), half)


def fused_multiply_add(x: Array, y: Array, z: Array) -> Array:
    """x·y + z of float32 or narrower values, as a float64 rounded to odd, fit for one more rounding."""
    x, y, z = (np.asarray(v, dtype=np.float64) for v in (x, y, z))
    product = x * y  # exact: 24 + 24 bits fit into 53
    total = np.asarray(product + z)
    part = total - product
    error = (product - (total - part)) + (z - part)  # Knuth's two-sum
    inexact = np.isfinite(total) & (error != 0)
    bits = total.view(np.int64).copy().reshape(total.shape)
    away = (error > 0) == (total > 0)
    even = inexact & ((bits & 1) == 0)
    odd = np.asarray(np.where(even, bits + np.where(away, 1, -1), bits))
    return odd.view(np.float64).reshape(total.shape)


# ------------------------------------------------------------------------------------------------ libdevice


def _round_half_away(x: Array) -> Array:
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(1, x), whole)


def _sinpi(x: Array) -> Array:
    return np.sin(np.pi * np.fmod(x.astype(np.float64), 2))


def _cospi(x: Array) -> Array:
    return np.cos(np.pi * np.fmod(x.astype(np.float64), 2))


def _fdim(x: Array, y: Array) -> Array:
    return np.asarray(np.maximum(x - y, 0))


LIBDEVICE: dict[str, Callable[..., Any]] = {
    "abs": np.abs, "llabs": np.abs, "fabs": np.abs, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc,
    "rint": np.rint, "nearbyint": np.rint, "llrint": np.rint, "round": _round_half_away,
    "llround": _round_half_away, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "cbrt": np.cbrt,
    "rcbrt": lambda x: 1 / np.cbrt(x), "exp": np.exp, "exp2": np.exp2, "exp10": special.exp10,
    "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p, "sin": np.sin,
    "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "atan2": np.arctan2, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "sinpi": _sinpi, "cospi": _cospi, "erf": special.erf,
    "erfc": special.erfc, "erfcx": special.erfcx, "erfinv": special.erfinv, "erfcinv": special.erfcinv,
    "normcdf": special.ndtr, "normcdfinv": special.ndtri, "lgamma": special.gammaln,
    "tgamma": special.gamma, "j0": special.j0, "j1": special.j1, "y0": special.y0, "y1": special.y1,
    "cyl_bessel_i0": special.i0, "cyl_bessel_i1": special.i1, "pow": np.power,
    "powi": lambda x, n: np.power(x, n.astype(x.dtype)), "fmod": np.fmod,
    "remainder": lambda x, y: x - y * np.rint(x / y), "fdim": _fdim, "hypot": np.hypot,
    "rhypot": lambda x, y: 1 / np.hypot(x, y), "ldexp": np.ldexp, "scalbn": np.ldexp,
    "fmaf": fused_multiply_add, "fmaf_rn": fused_multiply_add, "copysign": np.copysign,
    "nextafter": np.nextafter, "isnan": np.isnan, "isinf": np.isinf, "finite": np.isfinite,
    "isfinite": np.isfinite, "signbit": np.signbit, "saturate": lambda x: np.fmin(np.fmax(x, 0), 1),
    "fdivide": np.divide, "fadd_rn": np.add, "dadd_rn": np.add, "fsub_rn": np.subtract,
    "dsub_rn": np.subtract, "fmul_rn": np.multiply, "dmul_rn": np.multiply, "fdiv_rn": np.divide,
    "ddiv_rn": np.divide, "frcp_rn": np.reciprocal, "drcp_rn": np.reciprocal, "fsqrt_rn": np.sqrt,
    "dsqrt_rn": np.sqrt, "frsqrt_rn": lambda x: 1 / np.sqrt(x),
    "popc": lambda x: np.bitwise_count(x.view(f"u{x.itemsize}")),
}  # fmt: skip
"""numpy's or scipy's function for each libdevice function that has one, by its name without prefix."""


def libdevice_function(symbol: str) -> Callable[..., Any]:
    """Find the CPU function of a libdevice symbol such as ``__nv_rsqrtf``.

    Errors: NotImplementedError, naming the symbol, where none is known.
    """
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
    for candidate in (name, name.removesuffix("f"), name.removesuffix("d")):
        if candidate in LIBDEVICE:
            return LIBDEVICE[candidate]
    raise NotImplementedError(f"kernelpact's corrections of the interpreter have no {symbol} of libdevice")


# --------------------------------------------------------------------------------------------- installation


@dataclass
class Installation:
    """What was replaced in Triton, in order, so that it can be put back; leaving a ``with`` does so."""

    names: tuple[str, ...] = ()
    _changes: list[tuple[Any, str, Any]] = field(default_factory=list)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute (new or existing) and remember what was there."""
        self._changes.append((owner, name, vars(owner).get(name, self)))
        setattr(owner, name, value)

    def uninstall(self) -> None:
        """Put back everything that was replaced; a second call does nothing."""
        while self._changes:
            owner, name, original = self._changes.pop()
            if original is self:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        if self.names:  # kernels rewritten for the corrections are written anew
            importlib.import_module("triton.runtime.interpreter").InterpretedFunction.rewritten_fn.clear()
        self.names = ()

    def __enter__(self) -> Installation:
        return self

    def __exit__(self, *_: object) -> None:
        self.uninstall()


def triton_version() -> tuple[int, int]:
    """(major, minor) of the installed Triton."""
    found = re.match(r"(\d+)\.(\d+)", importlib.import_module("triton").__version__)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def install() -> Installation:
    """Install every correction that this Triton release needs; on an unknown release, none.

    Triton must have been imported in interpret mode. Returns what was installed, by name.
    """
    installation = Installation()
    if triton_version() not in SUPPORTED:
        return installation
    parts = _Triton()
    names = [name for name, correct in CORRECTIONS.items() if correct(parts, installation) is not False]
    parts.ip.InterpretedFunction.rewritten_fn.clear()  # functions rewritten before are rewritten again
    installation.names = tuple(names)
    return installation


class _Triton:
    """The pieces of Triton that the corrections touch, and the storage formats by Triton's dtype."""

    def __init__(self) -> None:
        self.tl: Any = importlib.import_module("triton.language")
        self.ip: Any = importlib.import_module("triton.runtime.interpreter")
        self.builder: Any = self.ip.InterpreterBuilder
        tl = self.tl
        self.formats: dict[Any, Bfloat16 | Float8] = {
            tl.bfloat16: BFLOAT16, tl.float8e4nv: E4M3, tl.float8e5: E5M2,
        }  # fmt: skip
        # AMD's fnuz formats and e4b15 keep Triton's own conversion, and conformance claims nothing for them.
        self.foreign = {tl.float8e4b8, tl.float8e5b16, tl.float8e4b15}

    def widen(self, handle: Any) -> Array:
        """Give the numbers that a handle stores: float32 for bfloat16 and fp8, else the data itself."""
        data: Array = handle.data
        form = self.formats.get(handle.dtype.scalar)
        return data if form is None or data.dtype == np.bool_ else form.decode(data)

    def operand(self, handle: Any) -> Array:
        """Widen an operand of arithmetic; fp8 has none on a device, so TypeError."""
        form = self.formats.get(handle.dtype.scalar)
        if form is not None and not form.has_arithmetic:
            name = handle.dtype.scalar
            raise TypeError(f"Triton does not compile arithmetic on {name}: convert it to float32 first")
        return self.widen(handle)

    def narrow(self, values: Array, dtype: Any) -> Any:
        """Give a handle of the scalar type `dtype` that stores numbers rounded to it."""
        return self.ip.TensorHandle(self.stored(values, dtype.scalar), dtype.scalar)

    def stored(self, values: Array, scalar: Any, toward_zero: bool = False) -> Array:
        """Round numbers to what a handle of the type `scalar` stores."""
        form = self.formats.get(scalar)
        if form is not None:
            return form.encode(values, toward_zero)
        target = self.ip._get_np_dtype(scalar)
        if values.dtype.kind == "f" and target.kind in "iu":
            return to_integer(values, target)
        if toward_zero and target == np.float16:
            return half_toward_zero(values)
        return values.astype(target)


def _casts(t: _Triton, into: Installation) -> None:
    upstream_cast, upstream_convert = t.builder.cast_impl, t.builder.create_fp_to_fp

    def convert(src: Any, dst: Any, toward_zero: bool = False) -> Any:
        data = t.stored(t.widen(src), dst.scalar, toward_zero)
        return t.ip.TensorHandle(data, dst.scalar)

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        if {src.dtype.scalar, dst_type.scalar} & t.foreign:
            return upstream_cast(self, src, dst_type)
        return convert(src, dst_type)

    def create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        if {src.dtype.scalar, dst_type.scalar} & t.foreign:
            return upstream_convert(self, src, dst_type, rounding_mode)
        return convert(src, dst_type, rounding_mode == t.ip._ir.ROUNDING_MODE.RTZ)

    def get_bf16(self: Any, value: float) -> Any:
        return t.narrow(np.array([value], dtype=np.float64), t.tl.bfloat16)

    into.replace(t.builder, "cast_impl", cast_impl)
    into.replace(t.builder, "create_fp_to_fp", create_fp_to_fp)
    into.replace(t.builder, "get_bf16", get_bf16)


_BINARY: dict[str, Any] = {
    "create_fadd": np.add, "create_fsub": np.subtract, "create_fmul": np.multiply, "create_fdiv": np.divide,
    "create_precise_divf": np.divide, "create_approx_divf": np.divide, "create_frem": np.fmod,
    "create_minimumf": np.minimum, "create_maximumf": np.maximum, "create_minnumf": np.fmin,
    "create_maxnumf": np.fmax,
}  # fmt: skip
_COMPARE: dict[str, Any] = {
    f"create_fcmp{kind}{name}": op
    for kind in "OU"
    for name, op in (
        ("LT", np.less), ("GT", np.greater), ("LE", np.less_equal), ("GE", np.greater_equal),
        ("EQ", np.equal), ("NE", np.not_equal),
    )
}  # fmt: skip
_UNARY: dict[str, Any] = {
    "create_exp": np.exp, "create_exp2": np.exp2, "create_log": np.log, "create_log2": np.log2,
    "create_sin": np.sin, "create_cos": np.cos, "create_floor": np.floor, "create_ceil": np.ceil,
    "create_sqrt": np.sqrt, "create_precise_sqrt": np.sqrt, "create_erf": special.erf,
    "create_rsqrt": lambda x: 1 / np.sqrt(x), "create_fneg": np.negative,
}  # fmt: skip


def _arithmetic(t: _Triton, into: Installation) -> None:
    def binary(_: Any, lhs: Any, rhs: Any, *, op: Any) -> Any:
        return t.narrow(op(t.operand(lhs), t.operand(rhs)), lhs.dtype)

    def compare(_: Any, lhs: Any, rhs: Any, *, op: Any) -> Any:
        # The result is an int1. Triton labels it with the operands' type, which breaks a later cast of it.
        return t.ip.TensorHandle(np.asarray(op(t.operand(lhs), t.operand(rhs))), t.tl.int1)

    def unary(_: Any, arg: Any, *, op: Any) -> Any:
        return t.narrow(op(t.operand(arg)), arg.dtype)

    for table, method in ((_BINARY, binary), (_COMPARE, compare), (_UNARY, unary)):
        for name, op in table.items():
            into.replace(t.builder, name, _method(method, op))

    def create_fma(_: Any, x: Any, y: Any, z: Any) -> Any:
        if z.data.dtype == np.float64:
            return upstream_fma(_, x, y, z)
        return t.narrow(fused_multiply_add(t.operand(x), t.operand(y), t.operand(z)), z.dtype)

    def create_clampf(self: Any, arg: Any, lo: Any, hi: Any, propagate_nans: Any) -> Any:
        drops = propagate_nans == t.ip._ir.PROPAGATE_NAN.NONE
        least, most = (np.fmax, np.fmin) if drops else (np.maximum, np.minimum)
        return t.narrow(most(least(t.operand(arg), t.operand(lo)), t.operand(hi)), arg.dtype)

    upstream_fma = t.builder.create_fma
    into.replace(t.builder, "create_fma", create_fma)
    into.replace(t.builder, "create_clampf", create_clampf)


def _method(function: Callable[..., Any], op: Any) -> Callable[..., Any]:
    """Bind `op` and stay a plain function, so that the class turns it into a method."""
    return lambda self, *args: function(self, *args, op=op)


def _dot(t: _Triton, into: Installation) -> None:
    upstream = t.builder.create_dot
    tf32 = t.ip._ir.INPUT_PRECISION.TF32

    def create_dot(self: Any, a: Any, b: Any, d: Any, precision: Any, max_num_imprecise_acc: Any) -> Any:
        if {a.dtype.scalar, b.dtype.scalar} & t.foreign or a.dtype.scalar.is_int():
            return upstream(self, a, b, d, precision, max_num_imprecise_acc)
        lhs, rhs = t.widen(a), t.widen(b)
        if a.data.dtype == np.float32 and precision == tf32:
            lhs, rhs = to_tf32(lhs), to_tf32(rhs)
        wide = np.float64 if d.data.dtype == np.float64 else np.float32
        product = np.matmul(lhs.astype(wide), rhs.astype(wide))
        return t.narrow(product + t.widen(d).astype(wide), d.dtype)

    into.replace(t.builder, "create_dot", create_dot)


def _reductions(t: _Triton, into: Installation) -> None:
    tl, reduce_ops, std = t.tl, t.ip.ReduceOps, t.tl.standard
    upstream = reduce_ops.apply_impl
    largest = {std._argmax_combine_tie_break_left, std._argmax_combine_tie_break_fast}
    smallest = {std._argmin_combine_tie_break_left, std._argmin_combine_tie_break_fast}
    extremes = {std._elementwise_max: np.fmax, std._elementwise_min: np.fmin}
    short = {tl.bfloat16, tl.float16}

    def pack(self: Any, values: Array, dtype: Any) -> Any:
        return self.to_tensor(t.stored(np.asarray(values), dtype.scalar), dtype)

    def apply_impl(self: Any, input: Any) -> Any:
        first, combine = input[0], self.combine_fn
        values = t.widen(first.handle)
        if combine in largest or combine in smallest:
            value, index = _extreme_with_index(values, input[1].handle.data, self.axis, self.keep_dims,
                                               combine in largest)  # fmt: skip
            return pack(self, value, first.dtype), self.to_tensor(index, input[1].dtype)
        if combine in extremes:
            reduced = extremes[combine].reduce(values, axis=self.axis, keepdims=self.keep_dims)
            return pack(self, reduced, first.dtype)
        if combine is std._sum_combine and first.dtype in short:
            total = _halving_sum(values, self.axis, self.keep_dims, partial(_rounded, t, first.dtype))
            return pack(self, total, first.dtype)
        return upstream(self, input)

    into.replace(reduce_ops, "apply_impl", apply_impl)


def _scans(t: _Triton, into: Installation) -> None:
    def scan(self: Any, input: Any, *, op: Any, upstream: Any) -> Any:
        if input.dtype != t.tl.bfloat16:
            return upstream(self, input)
        steps = np.moveaxis(t.widen(input.handle), self.axis, 0).copy()
        for i in range(1, len(steps)):
            steps[i] = _rounded(t, input.dtype, op(steps[i - 1], steps[i]))
        data = np.moveaxis(BFLOAT16.encode(steps), 0, self.axis)
        return [self.to_tensor(np.ascontiguousarray(data), input.dtype)]

    for name, op in (("cumsum", np.add), ("cumprod", np.multiply)):
        upstream = getattr(t.ip.ScanOps, name)
        into.replace(t.ip.ScanOps, name, _method(partial(scan, upstream=upstream), op))


def _rounded(t: _Triton, dtype: Any, values: Array) -> Array:
    """Round numbers to `dtype` and give them back as numbers."""
    return t.widen(t.narrow(values, dtype))


def _extreme_with_index(
    values: Array, indices: Array, axis: int | None, keep_dims: bool, want_largest: bool
) -> tuple[Array, Array]:
    """Largest (smallest) value along `axis` and its leftmost index; NaN only where there is no number."""
    shape = [1] * values.ndim if keep_dims else []
    if axis is None:
        values, indices, axis = values.ravel(), np.broadcast_to(indices, values.shape).ravel(), 0
    key = values
    if values.dtype.kind == "f":
        key = np.where(np.isnan(values), -np.inf if want_largest else np.inf, values)
    at = np.expand_dims((np.argmax if want_largest else np.argmin)(key, axis=axis), axis)
    value = np.take_along_axis(values, at, axis)
    index = np.take_along_axis(np.broadcast_to(indices, values.shape), at, axis)
    if not keep_dims:
        return np.squeeze(value, axis), np.squeeze(index, axis)
    return (value.reshape(shape), index.reshape(shape)) if value.ndim != len(shape) else (value, index)


def _halving_sum(
    values: Array, axis: int | None, keep_dims: bool, rounded: Callable[[Array], Array]
) -> Array:
    """Sum by folding the upper half onto the lower, rounding after every addition as 16-bit adds do."""
    rank = values.ndim
    part = values.ravel() if axis is None else np.moveaxis(values, axis, 0)
    while len(part) > 1:
        half = len(part) // 2
        part = np.concatenate([rounded(part[:half] + part[half : 2 * half]), part[2 * half :]])
    total = np.asarray(part[0])
    if not keep_dims:
        return total
    return total.reshape([1] * rank) if axis is None else np.expand_dims(total, axis)


def _atomics(t: _Triton, into: Installation) -> None:
    upstream = t.builder.create_atomic_rmw
    raw = t.ip._interpreter

    def create_atomic_rmw(self: Any, op: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:
        if val.dtype.scalar != t.tl.bfloat16 or op != t.ip._ir.ATOMIC_OP.FADD:
            return upstream(self, op, ptr, val, mask, sem, scope)
        old = np.zeros(ptr.data.shape, dtype=np.uint16)
        values, masks = np.broadcast_to(t.widen(val), old.shape), np.broadcast_to(mask.data, old.shape)
        true, zero = np.ones(1, dtype=np.bool_), np.zeros(1, dtype=np.uint16)
        for at in np.ndindex(old.shape):  # one after the other: several may name the same address
            if masks[at]:
                address = np.array([ptr.data[at]], dtype=np.uint64)
                before = raw.load(address, true, zero, np.dtype(np.uint16))
                raw.store(address, BFLOAT16.encode(BFLOAT16.decode(before) + values[at]), true)
                old[at] = before[0]
        return t.ip.TensorHandle(old, val.dtype.scalar)

    into.replace(t.builder, "create_atomic_rmw", create_atomic_rmw)


def _libdevice(t: _Triton, into: Installation) -> None:
    def create_extern_elementwise(
        _: Any, lib_name: str, lib_path: str, symbol: str, args: Any, ret_type: Any, is_pure: bool
    ) -> Any:
        result = np.asarray(libdevice_function(symbol)(*(arg.data for arg in args)))
        return t.narrow(result, ret_type)

    into.replace(t.builder, "create_extern_elementwise", create_extern_elementwise)
    nvidia = importlib.import_module("triton.language.extra.cuda.libdevice")
    generic = importlib.import_module("triton.language.extra.libdevice")
    for name, function in list(vars(nvidia).items()):
        if t.tl.core.is_builtin(function):
            call = wraps(function)(partial(_with_semantic, t, function))
            into.replace(nvidia, name, call)
            if hasattr(generic, name):
                into.replace(generic, name, call)


def _with_semantic(t: _Triton, function: Any, *args: Any, **kwargs: Any) -> Any:
    kwargs.pop("_semantic", None)
    return function(*args, **kwargs, _semantic=t.ip.interpreter_semantic)


def _autotune(t: _Triton, into: Installation) -> None:
    # Equal timings: the first configuration left after pruning wins. A device's choice hangs on its clock.
    autotuner = importlib.import_module("triton.runtime.autotuner").Autotuner
    into.replace(autotuner, "_bench", lambda self, *args, config, **meta: [0.0, 0.0, 0.0])


def _device_assert(t: _Triton, into: Installation) -> None:
    def create_assert(self: Any, condition: Any, message: str) -> None:
        if not np.all(condition.data):
            raise AssertionError(f"device_assert in program {self.grid_idx}: {message}")

    # Overflow checks are asserts too: on a device they are off, and int32 wraps silently.
    options = t.ip.InterpreterOptions(debug=True, sanitize_overflow=False)
    into.replace(t.ip.interpreter_builder, "options", options)
    into.replace(t.builder, "create_assert", create_assert)


# Python's `and`, `or`, `not` on blocks look at one truth value, which the interpreter makes True. On a device
# they work element by element. The rewriter of kernel sources is taught to call two functions instead.


def _boolean_operators(t: _Triton, into: Installation) -> None:
    tl, transformer = t.tl, t.ip.ASTTransformer

    def is_block(value: Any) -> bool:
        return isinstance(value, tl.tensor) and value.handle.data.size > 1

    def bool_op(method: str, *operands: Callable[[], Any]) -> Any:
        block, value = None, None
        for operand in operands:
            value = operand()
            if is_block(value):
                block = value if block is None else getattr(block, method)(value)
            elif bool(value) is (method == "logical_or"):
                return value
        return value if block is None else block

    def negate(value: Any) -> Any:
        return value == 0 if is_block(value) else not value

    into.replace(t.ip, "_kernelpact_bool_op", bool_op)
    into.replace(t.ip, "_kernelpact_not", negate)
    into.replace(transformer, "visit_BoolOp", _visit_bool_op)
    into.replace(transformer, "visit_UnaryOp", _visit_unary_op)
    if not hasattr(transformer, "visit_Compare"):  # before 3.9 chains were Python's, assignments unvisited
        visit_assign = transformer.visit_Assign

        def visit_Assign(self: Any, node: ast.Assign) -> Any:  # noqa: N802 - ast's naming
            node.value = self.visit(node.value)
            return visit_assign(self, node)

        into.replace(transformer, "visit_Compare", _visit_compare)
        into.replace(transformer, "visit_Assign", visit_Assign)


def _lazily(value: ast.expr) -> ast.Lambda:
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(args=nothing, body=value)


def _call(name: str, args: list[ast.expr], node: ast.AST) -> ast.expr:
    return ast.copy_location(ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=args, keywords=[]), node)


def _visit_bool_op(self: ast.NodeTransformer, node: ast.BoolOp) -> ast.expr:
    self.generic_visit(node)
    if any(isinstance(part, ast.NamedExpr) for part in ast.walk(node)):
        return node  # a lambda would take the name away
    method = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
    return _call("_kernelpact_bool_op", [ast.Constant(method), *map(_lazily, node.values)], node)


def _visit_unary_op(self: ast.NodeTransformer, node: ast.UnaryOp) -> ast.expr:
    self.generic_visit(node)
    return _call("_kernelpact_not", [node.operand], node) if isinstance(node.op, ast.Not) else node


def _visit_compare(self: ast.NodeTransformer, node: ast.Compare) -> ast.expr:
    self.generic_visit(node)
    middle = node.comparators[:-1]
    if not middle or not all(isinstance(part, ast.Name | ast.Constant) for part in middle):
        return node  # only what can be evaluated twice
    lefts = [node.left, *middle]
    pairs = [
        ast.Compare(left=left, ops=[op], comparators=[right])
        for left, op, right in zip(lefts, node.ops, node.comparators, strict=True)
    ]
    return _call("_kernelpact_bool_op", [ast.Constant("logical_and"), *map(_lazily, pairs)], node)


def _index(t: _Triton, into: Installation) -> bool:
    """Triton 3.6 takes int() of arrays of one element, which numpy 2.4 refuses: tl.range, descriptors."""
    if triton_version() > (3, 6):
        return False
    upstream = t.ip._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        upstream(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    into.replace(t.ip, "_patch_lang_tensor", patch)
    return True


def _ieee_silence(t: _Triton, into: Installation) -> None:
    """A device does not warn of 0/0, log(0) or inf − inf, which masked lanes and −inf scores often make."""
    upstream = t.ip.GridExecutor.__call__

    def launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        with np.errstate(all="ignore"):
            return upstream(self, *args, **kwargs)

    into.replace(t.ip.GridExecutor, "__call__", launch)


def _float_arguments(t: _Triton, into: Installation) -> None:
    """A Python float that a kernel is given is a float32 tensor on a device, and promotes 16-bit operands."""
    upstream = t.ip._implicit_cvt

    def convert(arg: Any) -> Any:
        if not isinstance(arg, float):
            return upstream(arg)
        return t.tl.tensor(t.ip.TensorHandle(np.array([arg], dtype=np.float32), t.tl.float32), t.tl.float32)

    into.replace(t.ip, "_implicit_cvt", convert)


def _patch_once(t: _Triton, into: Installation) -> None:
    """Patch Triton's modules once a launch. Upstream does so at every tl.sum, and leaves it patched."""
    upstream, tl, scope_class = t.ip._patch_lang, t.tl, t.ip._LangPatchScope
    launch = SimpleNamespace(scope=None, seen=set())

    def end(scope: Any) -> None:
        launch.scope, launch.seen = None, set()
        scope_class.restore(scope)

    def patch_lang(fn: Any) -> Any:
        modules = {id(m) for m in fn.__globals__.values() if m is tl or m is tl.core}
        if launch.scope is not None and modules and modules <= launch.seen:
            return scope_class()
        scope = upstream(fn)
        launch.seen |= modules
        if launch.scope is None:
            launch.scope, scope.restore = scope, partial(end, scope)
            return scope
        launch.scope._changes.extend(scope._changes)
        return scope_class()

    into.replace(t.ip, "_patch_lang", patch_lang)


CORRECTIONS: dict[str, Callable[[_Triton, Installation], bool | None]] = {
    "casts": _casts, "arithmetic": _arithmetic, "dot": _dot, "reductions": _reductions, "scans": _scans,
    "atomics": _atomics,
    "libdevice": _libdevice, "autotune": _autotune, "device_assert": _device_assert,
    "boolean_operators": _boolean_operators, "float_arguments": _float_arguments, "index": _index,
    "ieee_silence": _ieee_silence, "patch_once": _patch_once,
}  # fmt: skip
"""The corrections by the names under which evidence records list them."""


@contextmanager
def corrected() -> Iterator[Installation]:
    """Install the corrections for the length of a ``with`` block."""
    with install() as installation:
        yield installation
