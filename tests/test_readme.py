"""README is held to what it says: its commands run, its tree is the tree, its failure is a real one."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kernelpact import load_contract

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(marker: str) -> str:
    """Give the fenced block that follows an HTML comment."""
    found = re.search(rf"<!-- {re.escape(marker)} -->\n```\w*\n(.*?)```", README, re.DOTALL)
    assert found, f"README has no block {marker!r}"
    return found[1]


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a README command with this interpreter, in `folder`, the suite importable as in the clone."""
    program, *arguments = shlex.split(command)
    module = {"pytest": "pytest", "kernelpact": "kernelpact.cli"}[program]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "140"}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def test_the_failure_shown_is_what_the_command_prints(tmp_path):
    """README's own planted fault gives README's own output, word for word."""
    (tmp_path / "my_pairs.py").write_text(block("my_pairs.py"))
    (command,) = re.findall(r"^    (pytest .*my_pairs\.py -k .*)$", README, re.MULTILINE)
    done = run(command, tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    shown = re.search(r"^VIOLATED  .*?replay[^\n]*\n", done.stdout, re.DOTALL | re.MULTILINE)
    assert shown, done.stdout
    assert _without_folders(shown[0]) == _without_folders(block("output"))


def _without_folders(text: str) -> str:
    return re.sub(r"[^\s(=]*/contracts/", "contracts/", text)


def test_the_tree_names_what_is_there():
    """Every folder and file of README's tree exists."""
    names = re.findall(r"^(\S+) {2,}\S", README.split("## Where things are")[1].split("```")[1], re.MULTILINE)
    assert len(names) >= 6
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_the_contract_shown_loads(tmp_path):
    """The contract in README is a contract."""
    shown = re.search(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert shown
    path = tmp_path / "mine.yaml"
    path.write_text(shown[1])
    assert load_contract(path).pairs == ("rms_norm/mine",)


@pytest.mark.parametrize("command", re.findall(r"`(kernelpact [^`>]*?)(?: >[^`]*)?`", README))
def test_each_command_of_the_table_succeeds(command):
    """Each `kernelpact` command that README names exits with 0 and prints something."""
    done = run(command, ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_each_contract_path_that_readme_names_exists():
    """No command of README points at a contract that is not shipped."""
    named = set(re.findall(r"--contract=(contracts/\S*?)[`\s]", README))
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
