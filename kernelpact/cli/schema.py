"""`kernelpact schema`: the JSON Schema of a contract file."""

from __future__ import annotations

import json

import click

from kernelpact.dsl.schema import json_schema

__all__ = ["command"]


@click.command("schema")
@click.option("--json", "as_json", is_flag=True, help="The same: the schema is JSON.")
def command(as_json: bool) -> None:
    """Print the JSON Schema of a contract file, for editors."""
    click.echo(json.dumps(json_schema(), indent=2))
