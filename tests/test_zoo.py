"""The shipped contracts, strategies and oracles against kernels with a known fault, and against sound ones."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys
from pathlib import Path

import pytest

from kernelpact import substrate
from kernelpact.cases import Cell, plan
from kernelpact.dsl import load_contracts
from kernelpact.loading import load_suite
from kernelpact.pairs import load_pairs, registry
from kernelpact.plugin import search as searching
from kernelpact.plugin.session import EXAMPLES
from kernelpact.verdict import Verdict

ROOT = Path(__file__).resolve().parent.parent
ZOO = ROOT / "tests" / "zoo"
CELL = Cell("cpu", "cpu")
EXAMPLES_FOR_SOUND = 8
RED = (Verdict.VIOLATED, Verdict.ERROR)

substrate.prepare()
load_suite()  # first, so that the suite's own pairs are registered outside the zoo's registry
with registry.isolated():
    load_pairs(ZOO)
    SPECIMENS = {
        pair.name: pair for pair in registry if Path(registry.where(pair.name).rsplit(":")[0]).parent == ZOO
    }
from zoo import BENIGN, LIKELY  # noqa: E402 - importable once the zoo is loaded


@functools.cache
def shipped_contracts():
    """Load all shipped contracts once."""
    return load_contracts(ROOT / "contracts")


def cases_of(name):
    """Lay out what can show a specimen's fault, of every shipped contract that covers it, the likeliest first.

    A promise about the other side's kernel, which is the shipped one, says nothing of the specimen.
    """
    contracts = [contract for contract in shipped_contracts() if contract.covers(name)]
    dtype, relation = LIKELY.get(name, ("", ""))
    other = "inf" if relation == "gradient" else "train"
    cases = [case for case in plan(contracts, [SPECIMENS[name]], CELL) if not case.obstacle]
    cases = [dataclasses.replace(case, promises=about(case, other)) for case in cases]
    return sorted(
        (case for case in cases if case.promises),
        key=lambda case: (case.relation != relation, case.dtype != dtype),
    )


def about(case, other):
    """Keep the promises of a case that do not speak of the kernel `other` alone."""
    if case.relation == "gradient":
        return () if other == "train" else case.promises
    return tuple(
        promise
        for promise in case.promises
        if case.relation != "accuracy" or (promise.terms.of or "inf") != other
    )


def results_of(case, examples):
    """Judge the promises of a case one by one, so that the first failure ends the work."""
    for promise in case.promises:
        alone = dataclasses.replace(case, promises=(promise,))
        yield from searching.search(alone, examples, seed=0)


@pytest.fixture(autouse=True)
def short_shrinking(monkeypatch):
    """Shrink little: what is asked here is whether a fault is found, not how small its input can get."""
    monkeypatch.setattr(searching, "SHRINK_EVALUATIONS", 10)


@pytest.mark.parametrize("name", sorted(LIKELY))
def test_a_planted_fault_turns_a_shipped_contract_red(name):
    """Some promise of a shipped contract fails on the faulty kernel, and shows an input that it fails on."""
    reds = (
        result for case in cases_of(name) for result in results_of(case, EXAMPLES) if result.verdict in RED
    )
    found = next(reds, None)
    assert found is not None, f"{name} survives: {SPECIMENS[name].inf.__doc__}"
    assert found.counterexample is not None
    assert found.counterexample.text


@pytest.mark.parametrize("name", sorted(BENIGN))
def test_a_sound_variant_stays_green(name):
    """No promise of a shipped contract fails on a kernel that only orders or groups its arithmetic differently."""
    judged = [
        (case.id, result)
        for case in cases_of(name)
        for result in searching.search(case, EXAMPLES_FOR_SOUND, seed=0)
    ]
    failed = [
        (where, result.clause, result.observed, result.reason)
        for where, result in judged
        if result.verdict in RED
    ]
    assert any(result.verdict is Verdict.HOLDS for _, result in judged)
    assert not failed


@pytest.mark.parametrize("op", sorted({pair.op for pair in SPECIMENS.values()}))
def test_every_kernel_has_its_planted_faults(op):
    """Each operator has at least five faults and two sound variants in the zoo."""
    assert sum(name.startswith(f"{op}/") for name in LIKELY) >= 5
    assert sum(name.startswith(f"{op}/") for name in BENIGN) >= 2


def test_a_fault_fails_the_command_and_shows_how_to_see_it_again():
    """`pytest --contract` on a faulty pair exits 1 and prints the verdict, the input and a replay command."""
    run = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--contract=contracts/rms_norm.yaml",
            "--pairs=tests/zoo/rms_norm.py", "--pair=rms_norm/inverse_rms_in_half", "--contract-examples=10",
            "-k", "bfloat16 and accuracy",
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 1, run.stdout + run.stderr
    assert "VIOLATED  rms-norm · accuracy(inf).ulp · rms_norm/inverse_rms_in_half · bfloat16" in run.stdout
    assert "  input     " in run.stdout
    assert "  replay    pytest --contract=contracts/rms_norm.yaml" in run.stdout
