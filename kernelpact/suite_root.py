"""Where the suite's folders are: inside an installed wheel, or in the clone."""

from __future__ import annotations

from pathlib import Path

__all__ = ["suite_root"]


def suite_root() -> Path:
    """Give the folder that holds `kernel_pairs/`, `strategies/`, `contracts/` and `tests/test_contracts.py`."""
    package = Path(__file__).resolve().parent
    inside = package / "suite"
    return inside if inside.is_dir() else package.parent
