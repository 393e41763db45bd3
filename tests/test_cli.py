"""The command line: help costs nothing, commands load when they run."""

import json
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

import kernelpact
from kernelpact import cli
from kernelpact.cli import main


def run(*arguments):
    """Run the command in this process."""
    return CliRunner().invoke(main, arguments)


def test_help_names_every_command_and_loads_none():
    """`--help` imports no command, and nothing heavier than click."""
    code = (
        "import sys; from kernelpact.cli import main; main(['--help'], standalone_mode=False)\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'ruamel.yaml', 'kernelpact.cli.lint'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {"bounds", "lint", "pairs", "schema"} <= set(re.findall(r"^  (\w+) ", done.stdout, re.MULTILINE))


@pytest.mark.parametrize("name", ["bounds", "lint", "pairs", "schema"])
def test_every_listed_command_has_a_module(name):
    """Each command of the list runs its own help."""
    done = run(name, "--help")
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"Usage: main {name}")


def test_a_command_whose_module_is_missing_says_so(monkeypatch):
    """Help still lists it; running it names what is missing and exits 1."""
    monkeypatch.setitem(cli._COMMANDS, "fleet", "Spread contracts over machines.")
    assert "fleet" in run("--help").output
    done = run("fleet")
    assert (done.exit_code, done.exception.__class__) == (1, SystemExit)
    assert "fleet needs kernelpact.cli.fleet" in done.output


def test_an_unknown_command_is_a_usage_error():
    """Exit 2, with the name that was given."""
    done = run("lnit")
    assert done.exit_code == 2
    assert "lnit" in done.output


@pytest.mark.parametrize("arguments", [["lint"], ["lint", "--jsn", "x"], ["schema", "x"]])
def test_wrong_usage_exits_2(arguments):
    """No path, an unknown option, an argument too many."""
    assert run(*arguments).exit_code == 2


def test_the_package_knows_its_version_and_its_names():
    """The version is the distribution's; a name that is not there is refused with those that are."""
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", kernelpact.__version__)
    assert kernelpact.load_contract.__module__ == "kernelpact.dsl"
    with pytest.raises(AttributeError, match=r"no attribute 'load_contrat': it has .*load_contract"):
        _ = kernelpact.load_contrat


def test_the_schema_describes_clauses_to_an_editor():
    """Draft 2020-12: required keys, the metrics by name, no unknown keys anywhere, and what a clause means."""
    schema = json.loads(run("schema").output)
    clause = schema["$defs"]["NumericalClause"]
    assert (schema["$schema"], schema["title"]) == (
        "https://json-schema.org/draft/2020-12/schema", "kernelpact contract",
    )  # fmt: skip
    assert set(schema["required"]) == {"kernelpact", "contract", "why", "pairs", "scope"}
    assert set(clause["required"]) == {"why", "relation", "metric"}
    assert "rel_rms" in clause["properties"]["metric"]["enum"]
    assert clause["description"].startswith("N: one promise")
    assert all(
        found["additionalProperties"] is False for found in schema["$defs"].values() if "properties" in found
    )
