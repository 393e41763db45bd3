"""The `kernelpact` command. Each subcommand is a module here, imported only when it is asked for."""

from __future__ import annotations

import importlib

import click

__all__ = ["main"]

_COMMANDS = {
    "bounds": "Bounds from logit drift to reward and gradient, and their inverses.",
    "lint": "Check contracts without running anything.",
    "pairs": "List operators and pairs, with what each can run on here.",
    "schema": "Print the JSON Schema of a contract file.",
}


class _Lazy(click.Group):
    """Knows its commands by name and loads one when it runs, so that `--help` costs nothing."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        try:
            command: click.Command = importlib.import_module(f"kernelpact.cli.{cmd_name}").command
        except ModuleNotFoundError as error:
            raise click.ClickException(f"{cmd_name} needs {error.name}, which is not installed") from error
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))


@click.command(cls=_Lazy)
@click.version_option(package_name="kernelpact")
def main() -> None:
    """Contracts for training/inference kernel pairs."""
