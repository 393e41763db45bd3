"""Put the suite's folders into the wheel as one tree; an editable install finds them in the clone."""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SUITE = ("kernel_pairs", "strategies", "contracts", "tests/test_contracts.py")


class SuiteHook(BuildHookInterface):
    """Adds `kernelpact/suite/`, so that no generic name (`strategies`, `tests`) lands in site-packages."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Map each of the suite's folders to its place in a wheel."""
        if version == "standard":
            build_data["force_include"] |= {path: f"kernelpact/suite/{path}" for path in SUITE}
