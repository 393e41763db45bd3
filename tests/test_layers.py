"""The direction of imports, read from the sources."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENGINE = ROOT / "kernelpact"

# The layers of the engine, lowest first; a module imports its own layer and those below it.
LAYERS = (
    ("verdict", "contract", "pairs", "operators", "suite_root"),
    ("dsl", "divergence", "bounds", "budgets", "substrate"),
    ("clauses",),
    ("trial", "relations", "derived", "evidence", "cases", "loading"),
    ("plugin", "cli"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports(path):
    """Give the names of the modules that a file imports, at any depth of its code."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part(path):
    """Name the part of the engine that a file belongs to."""
    return path.relative_to(ENGINE).parts[0].removesuffix(".py")


SOURCES = sorted(path for path in ENGINE.rglob("*.py") if "suite" not in path.relative_to(ENGINE).parts)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_engine_imports_downwards(path):
    """A module of the engine imports no layer above its own, and nothing of the suite."""
    mine = LEVEL.get(part(path), len(LAYERS))
    for name in imports(path):
        top, *rest = name.split(".")
        assert top not in ("kernel_pairs", "strategies", "tests", "reports"), name
        if top == "kernelpact" and rest and part(path) != "__init__":
            assert LEVEL.get(rest[0], 0) <= mine, name


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_frameworks_stay_where_they_belong(path):
    """Only the plugin knows pytest and Hypothesis; only the substrate and the fused kernel know Triton."""
    tops = {name.split(".")[0] for name in imports(path)}
    if part(path) != "plugin":
        assert not tops & {"pytest", "hypothesis", "_pytest"}
    if part(path) != "substrate" and path.name != "fused.py":
        assert "triton" not in tops


def test_every_part_of_the_engine_has_a_layer():
    """A new module must say where it stands."""
    assert {part(path) for path in SOURCES} - {"__init__"} == set(LEVEL)


@pytest.mark.parametrize("folder", ["kernel_pairs", "strategies"])
def test_the_suite_does_not_import_its_tests(folder):
    """Pairs and strategies import neither tests nor reports, nor each other."""
    other = {"kernel_pairs": "strategies", "strategies": "kernel_pairs"}[folder]
    for path in sorted((ROOT / folder).rglob("*.py")):
        assert not {name.split(".")[0] for name in imports(path)} & {"tests", "reports", other}, path


def test_the_control_plane_needs_no_torch():
    """Contract model, DSL, bounds, pairs and the command line import where there is no torch."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import kernelpact, kernelpact.contract, kernelpact.dsl, kernelpact.bounds, kernelpact.budgets\n"
        "import kernelpact.pairs, kernelpact.cli.lint, kernelpact.cli.bounds\n"
        "from kernelpact import KernelPair, Verdict, load_contract, register_pair, bounds\n"
        "assert 'pytest' not in sys.modules and 'triton' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
