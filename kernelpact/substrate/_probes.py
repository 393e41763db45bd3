# ruff: noqa: ANN001, ANN202, N803 - Triton reads these signatures, and its constexpr arguments are upper case
# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""The Triton kernels that `conformance` runs: one feature each, as small as it can be.

Import this module only after `kernelpact.substrate.prepare()`: `triton.jit` decides at decoration.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def cast(x, y, n, BLOCK: tl.constexpr):
    """Convert x[n] to y's element type."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n).to(y.dtype.element_ty), mask=at < n)


@triton.jit
def binary(a, b, y, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    """y[n] = a[n] OP b[n] in a's own element type."""
    at = tl.arange(0, BLOCK)
    lhs, rhs = tl.load(a + at, mask=at < n, other=1.0), tl.load(b + at, mask=at < n, other=1.0)
    if OP == "add":
        out = lhs + rhs
    elif OP == "sub":
        out = lhs - rhs
    elif OP == "mul":
        out = lhs * rhs
    elif OP == "div":
        out = (lhs / rhs).to(lhs.dtype)
    elif OP == "max":
        out = tl.maximum(lhs, rhs)
    elif OP == "min":
        out = tl.minimum(lhs, rhs)
    else:
        out = (lhs < rhs).to(lhs.dtype)
    tl.store(y + at, out, mask=at < n)


@triton.jit
def dot(a, b, c, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr):
    """c[M,N] = a[M,K] · b[K,N], all row-major and one tile, accumulated in float32."""
    m, k, n = tl.arange(0, M), tl.arange(0, K), tl.arange(0, N)
    lhs = tl.load(a + m[:, None] * K + k[None, :])
    rhs = tl.load(b + k[:, None] * N + n[None, :])
    tl.store(c + m[:, None] * N + n[None, :], tl.dot(lhs, rhs, input_precision=PRECISION))


@triton.jit
def reduce(x, y, cols, OP: tl.constexpr, BLOCK: tl.constexpr):
    """Reduce each row of x[rows, cols], one program a row, in x's own element type, into y[rows]."""
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    if OP == "sum":
        tl.store(y + row, tl.sum(tl.load(x + row * cols + at, mask=at < cols, other=0.0), 0))
    else:
        values = tl.load(x + row * cols + at, mask=at < cols, other=float("-inf"))
        if OP == "max":
            tl.store(y + row, tl.max(values, 0))
        else:
            tl.store(y + row, tl.argmax(values, 0))


@triton.jit
def cumsum(x, y, cols, REVERSE: tl.constexpr, BLOCK: tl.constexpr):
    """Running sum of each row of x[rows, cols], one program a row, into y[rows, cols]."""
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * cols + at, mask=at < cols, other=0.0)
    tl.store(y + row * cols + at, tl.cumsum(values, 0, reverse=REVERSE), mask=at < cols)


@triton.jit
def _larger_magnitude(a, b):
    return tl.where(tl.abs(a) >= tl.abs(b), a, b)


@triton.jit
def reduce_custom(x, y, BLOCK: tl.constexpr):
    """The element of largest magnitude of x[BLOCK] into y[0]."""
    tl.store(y, tl.reduce(tl.load(x + tl.arange(0, BLOCK)), 0, _larger_magnitude))


@triton.jit
def sort(x, y, BLOCK: tl.constexpr):
    """x[BLOCK] in ascending order."""
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.sort(tl.load(x + at)))


@triton.jit
def elementary(x, y, n, BLOCK: tl.constexpr):
    """exp, log, exp2, sqrt, rsqrt, sigmoid of x[n] into the rows of y[6, n]."""
    at = tl.arange(0, BLOCK)
    value, inside = tl.load(x + at, mask=at < n, other=1.0), at < n
    tl.store(y + at, tl.exp(value), mask=inside)
    tl.store(y + n + at, tl.log(value), mask=inside)
    tl.store(y + 2 * n + at, tl.exp2(value), mask=inside)
    tl.store(y + 3 * n + at, tl.sqrt(value), mask=inside)
    tl.store(y + 4 * n + at, tl.rsqrt(value), mask=inside)
    tl.store(y + 5 * n + at, tl.sigmoid(value), mask=inside)


@triton.jit
def library(x, y, n, BLOCK: tl.constexpr):
    """libdevice's tanh, erf, rsqrt, pow(x, 1.5), log1p of x[n] into the rows of y[5, n]."""
    at = tl.arange(0, BLOCK)
    value, inside = tl.load(x + at, mask=at < n, other=1.0), at < n
    tl.store(y + at, libdevice.tanh(value), mask=inside)
    tl.store(y + n + at, libdevice.erf(value), mask=inside)
    tl.store(y + 2 * n + at, libdevice.rsqrt(value), mask=inside)
    tl.store(y + 3 * n + at, libdevice.pow(value, 1.5), mask=inside)
    tl.store(y + 4 * n + at, libdevice.log1p(value), mask=inside)


@triton.jit
def gather(x, y, rows, cols, stride_row, stride_col, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Copy x[rows, cols] with its strides, transposed, into the contiguous y[cols, rows]."""
    r, c = tl.arange(0, ROWS), tl.arange(0, COLS)
    inside = (r[:, None] < rows) & (c[None, :] < cols)
    tile = tl.load(x + r[:, None] * stride_row + c[None, :] * stride_col, mask=inside, other=-1.0)
    tl.store(y + c[:, None] * rows + r[None, :], tl.trans(tile), mask=tl.trans(inside))


@triton.jit
def int64_index(y, stride, BLOCK: tl.constexpr):
    """y[BLOCK] = i · stride in 64 bits."""
    at = tl.arange(0, BLOCK)
    tl.store(y + at, at.to(tl.int64) * stride)


@triton.jit
def atomics(x, y, n, bins, BLOCK: tl.constexpr):
    """Add x[n] into y[bins], element i into bin i mod bins."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y + at % bins, tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def loops(x, y, n, BLOCK: tl.constexpr):
    """Sum of x[n] by a range loop into y[0], by a while loop into y[1], by tl.range into y[2]."""
    at = tl.arange(0, BLOCK)
    by_range = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n, BLOCK):
        by_range += tl.load(x + start + at, mask=start + at < n, other=0.0)
    by_while, start = tl.zeros([BLOCK], dtype=tl.float32), 0
    while start < n:
        by_while += tl.load(x + start + at, mask=start + at < n, other=0.0)
        start += BLOCK
    by_tl_range = tl.zeros([BLOCK], dtype=tl.float32)
    for block in tl.range(0, tl.cdiv(n, BLOCK)):
        by_tl_range += tl.load(x + block * BLOCK + at, mask=block * BLOCK + at < n, other=0.0)
    tl.store(y, tl.sum(by_range, 0))
    tl.store(y + 1, tl.sum(by_while, 0))
    tl.store(y + 2, tl.sum(by_tl_range, 0))


@triton.autotune(configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])
@triton.jit
def autotuned(x, y, n, BLOCK: tl.constexpr):
    """y[n] = 2 x[n], with a block size that the autotuner chooses."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def boolean(y, low, high, BLOCK: tl.constexpr):
    """y[i] = 1 where low <= i < high or i = 0, written with Python's operators."""
    at = tl.arange(0, BLOCK)
    chosen = (at >= low and at < high) or at == 0
    tl.store(y + at, chosen.to(tl.int32))


@triton.jit
def float_argument(x, y, factor, BLOCK: tl.constexpr):
    """y[BLOCK] = factor · x[BLOCK] in the type that the product has."""
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) * factor)


@triton.jit
def descriptor(x, y, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Copy the lower right tile of the tensor descriptor x to y[ROWS, COLS]."""
    tile = x.load([ROWS, COLS])
    tl.store(y + tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :], tile)


@triton.jit
def assembly(x, y, BLOCK: tl.constexpr):
    """Copy int32 x[BLOCK] to y by a line of PTX."""
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    moved = tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [value], dtype=tl.int32, is_pure=True, pack=1
    )
    tl.store(y + at, moved)


if hasattr(tl, "make_block_ptr"):  # gone in 3.9

    @triton.jit
    def block_pointer(x, y, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
        """Copy x[rows, cols] into y[ROWS, COLS], padded with zeros."""
        tile = tl.load(
            tl.make_block_ptr(x, (rows, cols), (cols, 1), (0, 0), (ROWS, COLS), (1, 0)),
            boundary_check=(0, 1),
            padding_option="zero",
        )
        tl.store(y + tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :], tile)
