"""`kernelpact lint`: everything that can be said of contracts without running them."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from typing import Any

import click

from kernelpact.dsl import ContractError, Problem, find_contracts, load_contract
from kernelpact.dsl.lint import Warned, implications

__all__ = ["command"]


@click.command("lint")
@click.argument("paths", nargs=-1, required=True, metavar="PATH|GLOB|NAME...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(paths: tuple[str, ...], as_json: bool) -> None:
    """Check contracts: exit 0 when all can be used, 1 when one cannot.

    Warns where the declared logit drift does not imply a derived budget, by how much, and which drift would.
    """
    errors: list[Problem] = []
    warnings: list[Warned] = []
    seen: dict[str, str] = {}
    for asked in paths:
        try:
            files = find_contracts(asked)
        except ContractError as error:
            errors.extend(error.problems)
            continue
        for file in files:
            _lint(str(file), seen, errors, warnings)
    if as_json:
        record = {
            "contracts": sorted(seen),
            "errors": list(map(asdict, errors)),
            "warnings": [_finite(asdict(warning)) for warning in warnings],
        }
        click.echo(json.dumps(record, indent=1, allow_nan=False))
    else:
        for line in (*errors, *warnings):
            click.echo(str(line))
        click.echo(f"{len(seen)} contracts, {len(errors)} errors, {len(warnings)} warnings")
    sys.exit(1 if errors else 0)


def _finite(record: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: a bound beyond float64's range is null; the message says it in words."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record.items()
    }


def _lint(file: str, seen: dict[str, str], errors: list[Problem], warnings: list[Warned]) -> None:
    try:
        contract = load_contract(file)
    except ContractError as error:
        errors.extend(error.problems)
        return
    if seen.get(contract.contract, file) != file:
        line = contract.origin.line("contract")
        message = f"contract {contract.contract!r} is also in {seen[contract.contract]}"
        errors.append(Problem(file, line, 1, message))
        return
    seen[contract.contract] = file
    warnings.extend(implications(contract))
