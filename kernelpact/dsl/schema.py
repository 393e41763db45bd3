"""The JSON Schema of a contract file, for editors."""

from __future__ import annotations

from typing import Any

from kernelpact.contract import Contract

__all__ = ["json_schema"]


def json_schema() -> dict[str, Any]:
    """Give the schema of a contract file (JSON Schema, draft 2020-12)."""
    schema = Contract.model_json_schema(by_alias=True, mode="validation")
    schema["properties"].pop("origin", None)
    schema.get("$defs", {}).pop("Origin", None)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return head | schema | {"title": "kernelpact contract"}
