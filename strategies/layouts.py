"""Memory layouts: the same values behind other strides, with NaN in every gap."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

__all__ = ["LAYOUTS", "lay_out", "layouts"]

LAYOUTS = ("contiguous", "padded", "transposed", "offset", "strided")


def layouts() -> st.SearchStrategy[str]:
    """Draw a layout, contiguous first."""
    return st.sampled_from(LAYOUTS)


def lay_out(values: Tensor, layout: str) -> Tensor:
    """Give a tensor of the same values in another layout.

    padded: rows of a wider buffer. transposed: last two axes swapped in memory. offset: starts inside its storage.
    strided: every other element of the last axis.
    """
    if values.dim() == 0 or layout == "contiguous":
        return values.contiguous()
    if layout == "transposed":
        return (
            values.transpose(-1, -2).contiguous().transpose(-1, -2)
            if values.dim() > 1
            else values.contiguous()
        )
    if layout == "offset":
        flat = _gap(values, (values.numel() + 5,))
        flat[5:] = values.flatten()
        return flat[5:].view(values.shape)
    size = values.shape[-1]
    if layout == "padded":
        buffer = _gap(values, (*values.shape[:-1], size + 3))
        buffer[..., :size] = values
        return buffer[..., :size]
    if layout == "strided":
        buffer = _gap(values, (*values.shape[:-1], 2 * size))
        buffer[..., ::2] = values
        return buffer[..., ::2]
    raise ValueError(f"layout {layout!r}: allowed are {', '.join(LAYOUTS)}")


def _gap(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    poison = float("nan") if values.is_floating_point() else torch.iinfo(values.dtype).max // 2
    return torch.full(shape, poison, dtype=values.dtype, device=values.device)
