"""`kernelpact pairs`: operators and pairs, and what each can run on here."""

from __future__ import annotations

import json
from typing import Any

import click

from kernelpact.pairs import KernelPair, PairError, registry

__all__ = ["command"]


@click.command("pairs")
@click.option(
    "--pairs", "sources", multiple=True, metavar="MODULE|FILE", help="Load pairs from here (repeatable)."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(sources: tuple[str, ...], as_json: bool) -> None:
    """List operators and pairs, with what each pair can run on here."""
    from kernelpact import substrate
    from kernelpact.loading import load_suite
    from kernelpact.operators import operators

    ground = substrate.prepare()
    try:
        pairs = load_suite(sources)
    except PairError as error:
        raise click.ClickException(str(error)) from error
    rows = [_row(pair, ground) for pair in pairs]
    if as_json:
        click.echo(
            json.dumps(
                {"operators": sorted(operators), "substrate": ground.to_dict(), "pairs": rows}, indent=1
            )
        )
        return
    for name in sorted(operators):
        click.echo(f"{name}: {', '.join(operators[name].outputs)}")
        for row in rows:
            if row["op"] == name:
                click.echo(
                    f"  {row['name']:40} {row['runs']:6} {', '.join(row['dtypes'])}  {row['why']}".rstrip()
                )
    for row in rows:
        if row["op"] not in operators:
            click.echo(f"unknown operator {row['op']!r}: {row['name']} ({row['where']})", err=True)


def _row(pair: KernelPair, ground: Any) -> dict[str, Any]:
    here = "cuda" if ground.kind == "cuda" else "cpu"
    missing = pair.missing()
    on = [device for device in pair.devices if device in ("cpu", here)]
    why = f"needs {', '.join(missing)}" if missing else "" if on else f"needs {', '.join(pair.devices)}"
    return {
        "name": pair.name,
        "op": pair.op,
        "dtypes": list(pair.dtypes),
        "devices": list(pair.devices),
        "runs": "no" if why else ",".join(on),
        "why": why,
        "where": registry.where(pair.name),
    }
