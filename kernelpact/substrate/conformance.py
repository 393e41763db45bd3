"""Proof of the substrate: does this machine compute what Triton kernels ask of it?

`check` runs small Triton kernels, one a feature, and compares them with torch's casts (bit for bit) and with
float64. Its result is part of every evidence record, and a pair that needs a feature that fails is
INCONCLUSIVE: see `features_used` and `missing`.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import sys
import textwrap
import types
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kernelpact import substrate

Result = tuple[bool, str]


@dataclass(frozen=True)
class Conformance:
    """What was measured on `device`: by feature, whether it is right and in what way it is not."""

    device: str
    features: Mapping[str, Result]

    def ok(self, feature: str) -> bool:
        """Whether `feature` was measured and is right."""
        return self.features.get(feature, (False, ""))[0]

    def to_dict(self) -> dict[str, Any]:
        """Give plain JSON values, for evidence records."""
        features = {name: {"ok": ok, "detail": detail} for name, (ok, detail) in self.features.items()}
        return {"device": self.device, "features": features}


def check(device: str = "cpu") -> Conformance:
    """Measure every feature on `device` (``cpu``: kernels are interpreted; or ``cuda``), once a process.

    A probe that raises is a feature that fails, with the exception as detail. Where no Triton kernel can run,
    every feature fails with the reason. Takes about two seconds on a CPU.
    """
    return _measure(device, substrate.prepare())


@functools.cache
def _measure(device: str, ground: substrate.Substrate) -> Conformance:
    problem = ground.problem
    if not problem and (ground.kind == "triton-interpreter") != (device == "cpu"):
        problem = f"Triton kernels run on {ground.kind} in this process, not on {device}"
    if problem:
        return Conformance(device, dict.fromkeys(PROBES, (False, problem)))
    lab = _Lab(device)
    return Conformance(device, {name: _run(probe, lab) for name, probe in PROBES.items()})


def _run(probe: Callable[[_Lab], str], lab: _Lab) -> Result:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a deprecated feature is judged all the same
            fault = probe(lab)
    except Exception as error:  # noqa: BLE001 - whatever a probe dies of is the finding
        reason = str(error.__cause__ or error).splitlines() or [""]
        return False, f"{type(error).__name__}: {reason[0]}"
    return not fault, fault or "right"


def missing(features: Collection[str], conformance: Conformance) -> list[str]:
    """Name, with the reason, each of `features` that was not measured or is wrong.

    Nothing missing: a pair that uses these features may be judged.
    """
    reasons = []
    for feature in sorted(features):
        ok, detail = conformance.features.get(feature, (False, "not measured"))
        if not ok:
            reasons.append(f"{feature} on {conformance.device}: {detail}")
    return reasons


# --------------------------------------------------------------------------------------------------- probes


class _Lab:
    """torch, the probe kernels and the device, with the comparisons that probes share. A fault is a text."""

    def __init__(self, device: str) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.kernels: Any = importlib.import_module("kernelpact.substrate._probes")
        self.device = device

    def normal(self, *shape: int, seed: int = 0, dtype: str = "float32") -> Any:
        """Seeded normal numbers of `shape`."""
        generator = self.torch.Generator().manual_seed(seed)
        return self.torch.randn(*shape, generator=generator).to(getattr(self.torch, dtype)).to(self.device)

    def empty(self, *shape: int, dtype: str = "float32") -> Any:
        """A tensor of `shape` that no kernel has written: NaN, or −1 where the type has none."""
        kind = getattr(self.torch, dtype)
        return self.torch.full(shape, float("nan") if kind.is_floating_point else -1).to(kind).to(self.device)

    def same(self, got: Any, want: Any, given: Any = None) -> str:
        """Compare bit patterns, any NaN equal to any other; say where the first difference is."""
        bits = {1: self.torch.uint8, 2: self.torch.int16, 4: self.torch.int32, 8: self.torch.int64}
        both_nan = got.float().isnan() & want.float().isnan()
        width = bits[got.element_size()]
        wrong = (got.view(width) != want.view(width)) & ~both_nan
        if not bool(wrong.any()):
            return ""
        at = int(wrong.flatten().nonzero()[0])
        source = "" if given is None else f" of {given.flatten()[at].item()!r}"
        values = f"{got.flatten()[at].item()!r} for {want.flatten()[at].item()!r}"
        return f"{int(wrong.sum())} of {wrong.numel()} differ, e.g. {values}{source}"

    def near(self, got: Any, want: Any, relative: float) -> str:
        """Compare with float64 values, relative to the largest of them; NaN is never near."""
        scale = float(want.abs().max())
        error = float((got.double() - want.double()).abs().max()) / scale
        return "" if error <= relative else f"relative error {error:.2e} where {relative:.0e} is allowed"


def _float32_patterns(lab: _Lab) -> Any:
    """float32 values that casts get wrong: ties and their neighbours in every format, specials, noise."""
    torch = lab.torch
    high = torch.arange(0, 65536, 7, dtype=torch.int64) << 16
    ties = torch.cat([high | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    narrow = torch.arange(0, 4096, dtype=torch.int64) << 20  # e4m3 ends at bit 20, e5m2 at 21
    ties8 = torch.cat([narrow + low for low in (0, 1, 0x7FFFF, 0x80000, 0x80001)])
    half = torch.arange(0, 65536, 11, dtype=torch.int64).to(torch.int16).view(torch.float16).float()
    half_ties = (half.view(torch.int32).to(torch.int64) + 0x1000) & 0xFFFFFFFF
    noise = torch.randint(0, 1 << 32, (4096,), generator=torch.Generator().manual_seed(0), dtype=torch.int64)
    bits = torch.cat([ties, ties8, half_ties, noise])
    return bits.to(torch.int32).view(torch.float32).to(lab.device)


def _cast(lab: _Lab, x: Any, dtype: str) -> Any:
    y = lab.empty(x.numel(), dtype=dtype)
    block = 4096
    lab.kernels.cast[(-(-x.numel() // block),)](x, y, x.numel(), BLOCK=block)
    return y


def _probe_cast(lab: _Lab, dtype: str) -> str:
    """From float32 as torch casts, fp8 saturating as sm_89 does; back exactly, from every bit pattern."""
    torch = lab.torch
    kind, narrow = getattr(torch, dtype), _float32_patterns(lab)
    limit = torch.finfo(kind).max if "float8" in dtype else float("inf")
    fault = lab.same(_cast(lab, narrow, dtype), narrow.clamp(-limit, limit).to(kind), narrow)
    if fault:
        return f"float32 to {dtype}: {fault}"
    size = 1 << (8 * kind.itemsize)
    codes = torch.arange(size).to(torch.uint8 if size == 256 else torch.int16).view(kind).to(lab.device)
    fault = lab.same(_cast(lab, codes, "float32"), codes.float(), codes.float())
    return f"{dtype} to float32: {fault}" if fault else ""


def _probe_arithmetic(lab: _Lab, dtype: str) -> str:
    torch = lab.torch
    a, b = lab.normal(1000, seed=1, dtype=dtype), lab.normal(1000, seed=2, dtype=dtype)
    wants = {
        "add": a + b, "sub": a - b, "mul": a * b, "div": a / b, "max": torch.maximum(a, b),
        "min": torch.minimum(a, b), "less": (a < b).to(a.dtype),
    }  # fmt: skip
    for op, want in wants.items():
        got = lab.empty(1000, dtype=dtype)
        lab.kernels.binary[(1,)](a, b, got, 1000, OP=op, BLOCK=1024)
        # Division is approximate on a device: one unit in the last place, not a bit pattern.
        loose = op == "div" and lab.device != "cpu"
        fault = lab.near(got, want.double(), torch.finfo(a.dtype).eps) if loose else lab.same(got, want)
        if fault:
            return f"{op} of {dtype}: {fault}"
    return ""


def _probe_dot(lab: _Lab, dtype: str) -> str:
    a, b = lab.normal(16, 64, seed=3).to(getattr(lab.torch, dtype)), lab.normal(64, 32, seed=4)
    b, c = b.to(a.dtype), lab.empty(16, 32)
    lab.kernels.dot[(1,)](a, b, c, 16, 64, 32, PRECISION="ieee")
    # Operands are exact, products exact in float32 but for float32 itself; 64 additions in any order.
    return lab.near(c, a.double() @ b.double(), 1e-6 if "float8" not in dtype else 1e-4)


def _probe_reduction(lab: _Lab, op: str, dtype: str) -> str:
    torch, (rows, cols) = lab.torch, (5, 77)
    x = lab.normal(rows, cols, seed=5, dtype=dtype)
    y = lab.empty(rows, dtype="int32" if op == "argmax" else dtype)
    lab.kernels.reduce[(rows,)](x, y, cols, OP=op, BLOCK=128)
    if op == "argmax":
        return lab.same(y, x.argmax(1).to(torch.int32))
    if op == "max":
        return lab.same(y, x.amax(1))
    # The order is free; log2(128) = 7 roundings in a tree, on the scale of the sum of magnitudes.
    error = float(((y.double() - x.double().sum(1)).abs() / x.double().abs().sum(1)).max())
    allowed = 7 * torch.finfo(x.dtype).eps
    return "" if error <= allowed else f"relative error {error:.2e} where {allowed:.1e} is allowed"


def _probe_max_drops_nan(lab: _Lab) -> str:
    x = lab.normal(3, 77, seed=6)
    x[0, 5], x[1, 76], x[2, :] = float("nan"), float("nan"), float("nan")
    y = lab.empty(3)
    lab.kernels.reduce[(3,)](x, y, 77, OP="max", BLOCK=128)
    want = x.nan_to_num(nan=float("-inf")).amax(1)  # the masked lanes are −inf, and a device drops every NaN
    return lab.same(y, want)


def _probe_cumsum(lab: _Lab) -> str:
    x = lab.normal(4, 77, seed=7)
    for reverse in (False, True):
        y = lab.empty(4, 77)
        lab.kernels.cumsum[(4,)](x, y, 77, REVERSE=reverse, BLOCK=128)
        wide = x.double().flip(1).cumsum(1).flip(1) if reverse else x.double().cumsum(1)
        fault = lab.near(y, wide, 1e-6)
        if fault:
            return f"reverse={reverse}: {fault}"
    return ""


def _probe_reduce_custom(lab: _Lab) -> str:
    x, y = lab.normal(32, seed=8), lab.empty(1)
    lab.kernels.reduce_custom[(1,)](x, y, BLOCK=32)
    return lab.same(y, x[x.abs().argmax()].reshape(1))


def _probe_sort(lab: _Lab) -> str:
    x, y = lab.normal(16, seed=9), lab.empty(16)
    lab.kernels.sort[(1,)](x, y, BLOCK=16)
    return lab.same(y, x.sort().values)


def _probe_elementary(lab: _Lab) -> str:
    x = lab.normal(1000, seed=10).abs() * 8 + 1e-3
    y, wide = lab.empty(6, 1000), x.double()
    lab.kernels.elementary[(1,)](x, y, 1000, BLOCK=1024)
    wants = {
        "exp": wide.exp(), "log": wide.log(), "exp2": wide.exp2(), "sqrt": wide.sqrt(), "rsqrt": wide.rsqrt(),
        "sigmoid": wide.sigmoid(),
    }  # fmt: skip
    return _first_fault(y, wants)


def _probe_libdevice(lab: _Lab) -> str:
    x = lab.normal(1000, seed=11).abs() + 1e-3
    y, wide = lab.empty(5, 1000), x.double()
    lab.kernels.library[(1,)](x, y, 1000, BLOCK=1024)
    wants = {
        "tanh": wide.tanh(), "erf": wide.erf(), "rsqrt": wide.rsqrt(), "pow": wide**1.5,
        "log1p": wide.log1p(),
    }  # fmt: skip
    return _first_fault(y, wants)


def _first_fault(rows: Any, wants: Mapping[str, Any]) -> str:
    for row, (name, want) in zip(rows, wants.items(), strict=True):
        # 4e-6 leaves room for a device's ex2.approx at arguments up to 40. Below 0.1 the error is absolute.
        error = float(((row.double() - want).abs() / want.abs().clamp(min=0.1)).max())
        if not error <= 4e-6:
            return f"{name}: relative error {error:.2e} where 4e-06 is allowed"
    return ""


def _probe_gather(lab: _Lab) -> str:
    """Masked loads through strides, of a transposed, a sliced and an expanded tensor (triton#8926)."""
    base = lab.normal(40, 30, seed=12)
    views = {"transposed": base.t(), "sliced": base[3:33:3, 2:21:2], "expanded": base[7:8].expand(9, 30)}
    for name, x in views.items():
        rows, cols = x.shape
        y = lab.empty(cols, rows)
        lab.kernels.gather[(1,)](x, y, rows, cols, x.stride(0), x.stride(1), ROWS=64, COLS=64)
        fault = lab.same(y, x.t().contiguous())
        if fault:
            return f"{name}: {fault}"
    return ""


def _probe_int64_index(lab: _Lab) -> str:
    y = lab.empty(16, dtype="int64")
    lab.kernels.int64_index[(1,)](y, 1_500_000_007, BLOCK=16)
    return lab.same(y, lab.torch.arange(16, device=lab.device) * 1_500_000_007)


def _probe_atomics(lab: _Lab, dtype: str) -> str:
    # Small integers: exact in any order, in bfloat16 too.
    x = (lab.torch.arange(77, device=lab.device) % 5).to(getattr(lab.torch, dtype))
    y = lab.torch.zeros(7, dtype=x.dtype, device=lab.device)
    lab.kernels.atomics[(3,)](x, y, 77, 7, BLOCK=32)
    return lab.same(y, x.float().reshape(11, 7).sum(0).to(x.dtype))


def _probe_loops(lab: _Lab) -> str:
    x, y = lab.normal(77, seed=13), lab.empty(3)
    lab.kernels.loops[(1,)](x, y, 77, BLOCK=16)
    return lab.near(y, x.double().sum().expand(3), 1e-5)


def _probe_autotune(lab: _Lab) -> str:
    x, y = lab.normal(77, seed=14), lab.empty(77)
    lab.kernels.autotuned[lambda meta: (-(-77 // meta["BLOCK"]),)](x, y, 77)
    return lab.same(y, 2 * x)


def _probe_boolean(lab: _Lab) -> str:
    y = lab.empty(16, dtype="int32")
    lab.kernels.boolean[(1,)](y, 3, 9, BLOCK=16)
    at = lab.torch.arange(16, device=lab.device)
    return lab.same(y, (((at >= 3) & (at < 9)) | (at == 0)).to(lab.torch.int32))


def _probe_float_argument(lab: _Lab) -> str:
    """A float argument is a float32, so that its product with bfloat16 is not rounded to bfloat16."""
    x, y = lab.normal(16, seed=17, dtype="bfloat16"), lab.empty(16)
    lab.kernels.float_argument[(1,)](x, y, 0.1, BLOCK=16)
    return lab.same(y, x.float() * lab.torch.tensor(0.1, device=lab.device))


def _probe_descriptor(lab: _Lab) -> str:
    descriptor = importlib.import_module("triton.tools.tensor_descriptor").TensorDescriptor
    x, y = lab.normal(15, 32, seed=15), lab.empty(8, 16)
    lab.kernels.descriptor[(1,)](descriptor.from_tensor(x, [8, 16]), y, ROWS=8, COLS=16)
    want = lab.torch.zeros_like(y)
    want[:7] = x[8:, 16:]
    return lab.same(y, want)


def _probe_block_pointer(lab: _Lab) -> str:
    x, y = lab.normal(7, 13, seed=16), lab.empty(8, 16)
    lab.kernels.block_pointer[(1,)](x, y, 7, 13, ROWS=8, COLS=16)
    want = lab.torch.zeros_like(y)
    want[:7, :13] = x
    return lab.same(y, want)


def _probe_assembly(lab: _Lab) -> str:
    x, y = lab.torch.arange(16, dtype=lab.torch.int32, device=lab.device), lab.empty(16, dtype="int32")
    lab.kernels.assembly[(1,)](x, y, BLOCK=16)
    return lab.same(y, x)


_HALVES = ("bfloat16", "float16")
_FP8 = ("float8_e4m3fn", "float8_e5m2")

PROBES: dict[str, Callable[[_Lab], str]] = {
    **{f"cast_{d}": functools.partial(_probe_cast, dtype=d) for d in (*_HALVES, *_FP8)},
    **{f"arithmetic_{d}": functools.partial(_probe_arithmetic, dtype=d) for d in _HALVES},
    **{f"dot_{d}": functools.partial(_probe_dot, dtype=d) for d in ("float32", *_HALVES, *_FP8)},
    **{
        f"{op}_{d}": functools.partial(_probe_reduction, op=op, dtype=d)
        for op in ("sum", "max", "argmax")
        for d in ("float32", *_HALVES)
    },
    "max_drops_nan": _probe_max_drops_nan,
    "cumsum": _probe_cumsum,
    "reduce_custom": _probe_reduce_custom,
    "sort": _probe_sort,
    "elementary": _probe_elementary,
    "libdevice": _probe_libdevice,
    "gather": _probe_gather,
    "int64_index": _probe_int64_index,
    **{f"atomics_{d}": functools.partial(_probe_atomics, dtype=d) for d in ("float32", *_HALVES)},
    "loops": _probe_loops,
    "autotune": _probe_autotune,
    "boolean_operators": _probe_boolean,
    "float_arguments": _probe_float_argument,
    "descriptors": _probe_descriptor,
    "block_pointers": _probe_block_pointer,
    "inline_asm": _probe_assembly,
}
"""The features that are measured, and how."""


# --------------------------------------------------------------------------------------- what a kernel uses

_BASE = frozenset({"gather", "int64_index", "loops", "float_arguments"})
_ELEMENTARY = (
    "exp", "exp2", "log", "log2", "sqrt", "sqrt_rn", "rsqrt", "sin", "cos", "sigmoid", "softmax", "erf",
)  # fmt: skip
_CALLS: dict[str, str] = {
    **dict.fromkeys(("max", "min"), "max"),
    **dict.fromkeys(("argmax", "argmin"), "argmax"),
    **dict.fromkeys(("cumsum", "cumprod"), "cumsum"),
    **dict.fromkeys(("reduce", "associative_scan", "xor_sum", "reduce_or"), "reduce_custom"),
    **dict.fromkeys(("sort", "topk"), "sort"),
    **dict.fromkeys(_ELEMENTARY, "elementary"),
    **dict.fromkeys(("make_block_ptr", "advance"), "block_pointers"),
    **dict.fromkeys(("make_tensor_descriptor", "load_tensor_descriptor"), "descriptors"),
    "sum": "sum", "dot": "dot", "dot_scaled": "dot_scaled", "inline_asm_elementwise": "inline_asm",
}  # fmt: skip
_BY_DTYPE = frozenset({"sum", "max", "argmax", "dot", "atomics"})
_TRITON_DTYPES = {
    "bfloat16": "bfloat16", "float16": "float16", "float8e4nv": "float8_e4m3fn", "float8e5": "float8_e5m2",
}  # fmt: skip
_FOREIGN = frozenset(sys.stdlib_module_names) | {"torch", "numpy", "scipy", "triton", "kernelpact"}


def features_used(implementation: Any, dtypes: Collection[str] = ("float32", *_HALVES)) -> set[str]:
    """Name the features, as `check` names them, that the Triton kernels behind `implementation` use.

    implementation: a function, autograd function or module class, partial, or Triton kernel. Its kernels are
        those that it reaches, in any number of steps, through module globals and closures that code names.
    dtypes: the dtypes of its tensor arguments; by default all that dots and reductions are measured in.
    Best effort, erring towards more features; a kernel chosen at run time is not found. Empty without one.
    """
    used: set[str] = set()
    for kernel in _kernels(implementation):
        used |= _BASE | _scan(kernel, dtypes)
    if used:
        used |= {f"cast_{dtype}" for dtype in dtypes if f"cast_{dtype}" in PROBES}
    return used


def _kernels(start: Any) -> Iterator[Any]:
    """Find the Triton kernels that `start` reaches, each once, with what they are wrapped in."""
    waiting, seen = [start], set()
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if type(thing).__module__.startswith("triton.runtime") and hasattr(thing, "fn"):
            yield thing
            waiting.append(thing.fn)
        else:
            waiting.extend(_parts(thing))


def _parts(thing: Any) -> Iterator[Any]:
    """Yield what a thing is made of or names: wrapped functions, methods, members, globals, closure cells."""
    if isinstance(thing, functools.partial):
        yield thing.func
    elif isinstance(thing, types.MethodType):
        yield from (thing.__func__, thing.__self__)
    elif isinstance(thing, staticmethod | classmethod):
        yield thing.__func__
    elif isinstance(thing, type):
        if _own(thing.__module__):
            yield from vars(thing).values()
    elif isinstance(thing, types.FunctionType):
        yield from _named(thing)
    elif isinstance(thing, dict):
        yield from thing.values()
    elif isinstance(thing, list | tuple | set):
        yield from thing
    elif callable(thing) and not isinstance(thing, types.BuiltinFunctionType | types.ModuleType):
        yield type(thing)


def _named(function: types.FunctionType) -> Iterator[Any]:
    """Yield the globals, attributes of modules, and closure cells that a function's code names."""
    if not _own(function.__module__):
        return
    yield from (cell.cell_contents for cell in function.__closure__ or () if cell.cell_contents is not None)
    if hasattr(function, "__wrapped__"):
        yield function.__wrapped__
    names = set(_names(function.__code__))
    for name in names:
        thing = function.__globals__.get(name, sys.modules.get(name))
        if not isinstance(thing, types.ModuleType):
            yield thing
        elif _own(thing.__name__):
            yield from (vars(thing)[attribute] for attribute in names & vars(thing).keys())


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _own(module: str | None) -> bool:
    """Whether a module may hold kernels of a pair, rather than be a library that pairs are written with."""
    name = module or ""
    return name.split(".")[0] not in _FOREIGN or name.startswith("kernelpact.divergence")


def _scan(kernel: Any, dtypes: Collection[str]) -> set[str]:
    if type(kernel).__name__ == "Autotuner":
        return {"autotune"}
    if not isinstance(kernel.fn, types.FunctionType):
        return set()  # another wrapper; what it wraps is found too
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kernel.fn)))
    except (OSError, TypeError, SyntaxError):
        return {"source"}  # no source, no claim: `missing` says that it was not measured
    reader = _Reader(kernel.fn, dtypes)
    reader.visit(tree)
    return reader.used


class _Reader(ast.NodeVisitor):
    """Collects the features that one kernel's source names."""

    def __init__(self, function: types.FunctionType, dtypes: Collection[str]) -> None:
        self.globals, self.dtypes, self.used = function.__globals__, dtypes, set[str]()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """A dtype that is named is converted to or from."""
        if node.attr in _TRITON_DTYPES:
            self.used.add(f"cast_{_TRITON_DTYPES[node.attr]}")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Python's `and` and `or`."""
        self.used.add("boolean_operators")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Arithmetic; in a half precision unless its operands were converted, which is not followed here."""
        self.used.update(f"arithmetic_{dtype}" for dtype in self.dtypes if dtype in _HALVES)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """A function of triton.language, of libdevice, or a method of a tensor."""
        name, home = self._target(node.func)
        if "libdevice" in home:
            self.used.add("libdevice")
        elif name.startswith("atomic_"):
            self._add("atomics")
        elif name in _CALLS:
            self._add(_CALLS[name])
        self.generic_visit(node)

    def _add(self, feature: str) -> None:
        if feature not in _BY_DTYPE:
            self.used.add(feature)
            return
        # Accumulators and converted operands are float32 whatever the arguments are.
        named = {f"{feature}_{dtype}" for dtype in {"float32", *self.dtypes}}
        self.used |= named & PROBES.keys()

    def _target(self, node: ast.expr) -> tuple[str, str]:
        """Name of a called function, and of the module it comes from as far as that is known."""
        if isinstance(node, ast.Attribute):
            root: Any = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            home = self.globals.get(root.id) if isinstance(root, ast.Name) else None
            return node.attr, f"{getattr(home, '__name__', '')}.{ast.unparse(node.value)}"
        if isinstance(node, ast.Name):
            target = self.globals.get(node.id)
            module = getattr(target, "__module__", "") or ""
            known = module.startswith("triton.language")
            return (getattr(target, "__name__", node.id) if known else "", module)
        return "", ""
