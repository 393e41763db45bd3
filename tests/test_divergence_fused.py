"""The fused Triton kernel of `kernelpact.divergence`: on CUDA where there is one, interpreted on the CPU elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import torch

from kernelpact.divergence import Divergence
from kernelpact.divergence.blocked import compare_blocked
from kernelpact.divergence.fused import compare_fused

INF, NAN = float("inf"), float("nan")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def logits(rows: int, width: int, noise: float, scale: float = 3.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal logits, and the same with normal noise: train, inf [rows, width]."""
    draw = torch.Generator().manual_seed(width)
    y = torch.randn(rows, width, generator=draw) * scale
    return y + torch.randn(rows, width, generator=draw) * noise, y


def assert_agree(
    train: torch.Tensor, inf: torch.Tensor, temperature: float = 1.0, rtol: float = 1e-9
) -> None:
    """The fused kernel gives what the blocked path gives in float64, flags, NaN and infinities included."""
    fused = compare_fused(train.to(DEVICE), inf.to(DEVICE), temperature)
    blocked = compare_blocked(train.double(), inf.double(), temperature)
    assert (
        fused.keys()
        == blocked.keys()
        == {f for f in Divergence.__slots__ if f not in ("dlogp", "ratio")}
        | {
            "center",
            "shift",
        }
    )
    for name in blocked.keys() - {"center", "shift"}:
        torch.testing.assert_close(
            fused[name].cpu(),
            blocked[name],
            rtol=rtol,
            atol=0,
            equal_nan=True,
            msg=lambda text, n=name: f"{n}: {text}",
        )


@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-3, 0.3, 3.0, 40.0])
@pytest.mark.parametrize("width", [1, 3, 64, 1000, 1025, 2500])
def test_the_fused_kernel_agrees_with_the_blocked_path(width, noise):
    """Below, at and beyond one block, for drifts from none to vast, every metric agrees."""
    assert_agree(*logits(4, width, noise))


@pytest.mark.parametrize("train", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("inf", [torch.bfloat16, torch.float64])
def test_every_dtype_is_read_as_it_is(train, inf):
    """No logit is rounded on the way in, whichever dtypes meet; float8 takes the blocked path."""
    x, y = logits(3, 1200, 0.1)
    assert_agree(x.to(train), y.to(inf))
    assert_agree(x.to(torch.float8_e4m3fn), y.to(inf), rtol=1e-5)


def test_strided_rows_are_read_in_place():
    """Transposed, stepped, offset and expanded logits give what their contiguous copies give."""
    x, y = logits(3, 3600, 0.1)
    assert_agree(x.t().contiguous().t()[:, ::3], y[:, 1::3])
    assert_agree(x[1:, 7:1100], y.flip(0)[1:, 7:1100])
    assert_agree(x[:, :1100], y[:1, :1100].expand(3, 1100))


def test_masks_and_broken_logits_are_judged_alike():
    """−inf on one or both sides, NaN, +inf and rows without tokens: the same limits, flags and NaN."""
    x, y = logits(12, 1300, 0.1)
    x[0, 5] = y[1, 1100] = -INF
    x[2, 100:1200] = y[2, 100:1200] = -INF
    x[3, 1299], y[4, 0] = NAN, NAN
    x[5, 3], y[6, 1290] = INF, INF
    x[7], x[8] = -INF, -INF
    y[8], y[9] = -INF, -INF
    x[10, :600] = y[10, 600:] = -INF
    x[11, 5], y[11, 6] = -INF, -INF
    assert_agree(x, y)


def test_the_likeliest_token_may_come_last():
    """Rows whose maximum rises block by block keep the digits of a small drift."""
    x, y = logits(3, 2500, 1e-5)
    rise = torch.linspace(0, 60, 2500)
    assert_agree(x + rise, y + rise, rtol=1e-6)
    assert_agree(x.double() + rise.flip(0), y.double() + rise.flip(0), rtol=1e-6)


@pytest.mark.parametrize("temperature", [0.01, 0.7, 50.0])
def test_the_temperature_is_not_rounded(temperature):
    """τ reaches the kernel in float64."""
    assert_agree(*logits(3, 1200, 0.1), temperature)


def test_no_rows_are_no_launch():
    """An empty batch gives empty results."""
    assert all(
        value.shape == (0,) for value in compare_fused(torch.empty(0, 5), torch.empty(0, 5), 1.0).values()
    )


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kernelpact.divergence.fused import _divergence_kernel as kernel
constants = {"BLOCK": 1024, "BLOCKS": 149, "WIDE_TRAIN": False, "WIDE_INF": True}
types = {"train": "*bf16", "inf": "*fp64", "out": "*fp64", "inverse_pointer": "*fp64"}
signature = {name: types.get(name, "constexpr" if name in constants else "i32") for name in kernel.arg_names}
compiled = triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", 90, 32))
assert compiled.asm["cubin"]
print(compiled.asm["ttir"])
"""


def test_the_kernel_compiles_for_a_gpu_and_reads_each_input_twice(tmp_path):
    """What the interpreter runs is a kernel that Triton compiles for sm_90, with two loads a side."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    run = subprocess.run(
        [sys.executable, "-c", COMPILE], check=True, capture_output=True, text=True, env=environment
    )
    loads = re.findall(r"tt\.load .*?tensor<1024x!tt\.ptr<(\w+)>>", run.stdout)
    assert sorted(loads) == ["bf16", "bf16", "f64", "f64"]
