"""The same rows, presented differently: what invariances are promised for, where rows are independent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from kernelpact.operators import Inputs, Recipe, Variant
from strategies.layouts import lay_out

__all__ = ["of_rows", "repeated"]

Transformation = Callable[[Inputs, Recipe], Variant | None]


def repeated(inputs: Inputs, recipe: Recipe) -> Variant:
    """Call the kernel again on the same inputs: it keeps no state."""
    return Variant(dict(inputs), lambda outputs: outputs, note="called again")


def of_rows(*names: str) -> Mapping[str, Transformation]:
    """Give the transformations of an operator whose inputs `names` have one row a token and whose outputs too.

    batch: the last row alone. permutation: rows reversed. padding: two more rows, copies of the first.
    chunking: the second half of the rows alone.
    """

    def picked(inputs: Inputs, recipe: Recipe, index: Sequence[int]) -> Inputs:
        at = torch.tensor(index, dtype=torch.long, device=inputs[names[0]].device)
        chosen = {name: inputs[name].index_select(0, at) for name in names}
        chosen[names[0]] = lay_out(chosen[names[0]], recipe["layout"])  # the layout is not what varies
        return dict(inputs) | chosen

    def subset(inputs: Inputs, recipe: Recipe, index: Sequence[int]) -> Variant:
        return Variant(picked(inputs, recipe, index), lambda outputs: outputs, _select(index))

    def batch(inputs: Inputs, recipe: Recipe) -> Variant | None:
        count = len(inputs[names[0]])
        return subset(inputs, recipe, [count - 1]) if count > 1 else None

    def permutation(inputs: Inputs, recipe: Recipe) -> Variant | None:
        count = len(inputs[names[0]])
        return subset(inputs, recipe, range(count)[::-1]) if count > 1 else None

    def chunking(inputs: Inputs, recipe: Recipe) -> Variant | None:
        count = len(inputs[names[0]])
        return subset(inputs, recipe, range(count // 2, count)) if count > 1 else None

    def padding(inputs: Inputs, recipe: Recipe) -> Variant | None:
        count = len(inputs[names[0]])
        if not count:
            return None
        return Variant(picked(inputs, recipe, [*range(count), 0, 0]), _select(range(count)))

    return {
        "batch": batch, "permutation": permutation, "padding": padding, "chunking": chunking, "repeat": repeated,
    }  # fmt: skip


def _select(index: Sequence[int]) -> Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]:
    def select(outputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {name: value[list(index)] for name, value in outputs.items()}

    return select
