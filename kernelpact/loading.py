"""The suite's folders, found beside the engine (in a wheel) or in the clone, and loaded by name when needed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from kernelpact.pairs import KernelPair, PairError, load_pairs, registry
from kernelpact.suite_root import suite_root

__all__ = ["load_suite"]


def load_suite(sources: Sequence[str] = ()) -> list[KernelPair]:
    """Load the operators, their oracles and the pairs of `sources`, and give the registered pairs.

    sources: folders, files or modules; none means the suite's own `kernel_pairs/`.
    A pair module is code and is run as code. Errors: PairError.
    """
    root = suite_root()
    if str(root) not in sys.path:
        sys.path.append(str(root))
    importlib.import_module("strategies").load_operators()
    load_pairs(root / "kernel_pairs" / "oracles")
    for source in sources or [str(root / "kernel_pairs")]:
        load_pairs(source)
    if not len(registry):
        raise PairError(f"no pair is registered by {', '.join(sources) or root / 'kernel_pairs'}")
    return list(registry)
