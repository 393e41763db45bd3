"""One run of the suite: its cases, their judgement, and the evidence that comes together."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import secrets
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelpact import substrate
from kernelpact.cases import Case, Cell, PlanError, plan, unproven, within
from kernelpact.contract import Contract
from kernelpact.dsl import ContractError, load_contracts
from kernelpact.evidence import (
    SCHEMA,
    Counterexample,
    Item,
    Result,
    encode,
    known_tokens,
    load_counterexample,
    write_json,
)
from kernelpact.loading import load_suite
from kernelpact.operators import OperatorError, Recipe
from kernelpact.pairs import KernelPair, PairError, registry
from kernelpact.plugin import text
from kernelpact.plugin.search import replay, search
from kernelpact.substrate import conformance
from kernelpact.suite_root import suite_root
from kernelpact.verdict import Verdict

__all__ = ["ContractSession", "InputError"]

EXAMPLES = 20
EXAMPLES_AMONG_TESTS = 3  # when plain `pytest` runs the shipped contracts beside the engine's tests


class InputError(ValueError):
    """What the command line names cannot be judged; the message says what was found and what is allowed."""


class ContractSession:
    """What `--contract` asked for, resolved once: contracts, pairs, cell, seed, cases.

    Errors: InputError.
    """

    def __init__(self, config: pytest.Config) -> None:
        option = config.getoption
        self.asked: list[str] = option("contract")
        self.sources: list[str] = option("pairs")
        self.report_path: Path | None = option("contract_report")
        if self.report_path is not None and self.report_path.is_dir():
            raise InputError(f"--contract-report={self.report_path}: a folder; expected a file to write")
        self.examples = option("contract_examples") or (EXAMPLES if self.asked else EXAMPLES_AMONG_TESTS)
        self.seed = self._seed(config)
        self.kept = config.rootpath / ".kernelpact" / "counterexamples"
        self.suite_file = suite_root() / "tests" / "test_contracts.py"
        self.started = time.time()
        self.collected: dict[str, dict[str, Any]] = {}
        self.substrate = substrate.prepare()
        self.cell = _cell(option("contract_device"))
        self._conformance: conformance.Conformance | None = None
        try:
            self.contracts: Sequence[Contract] = self._contracts()
            self.pairs = self._pairs(option("pair"))
            self.cases: list[Case] = plan(
                self._in_use(option("pair")), self.pairs, self.cell, self._obstacles
            )
            self._check_covered(self.pairs)
        except (ContractError, PairError, PlanError, OperatorError) as error:
            raise InputError(str(error)) from error
        self.replayed = self._replayed(option("contract_replay"))

    def _seed(self, config: pytest.Config) -> int:
        asked = str(config.getoption("contract_seed"))
        if asked == "random":  # one seed for all workers: the controller draws it and writes it back
            asked = str(secrets.randbelow(2**31))
            config.option.contract_seed = asked
        if not asked.isdecimal():
            raise InputError(f"--contract-seed={asked}: expected a number or `random`")
        return int(asked)

    def _contracts(self) -> list[Contract]:
        found: list[Contract] = []
        for asked in self.asked or [str(suite_root() / "contracts")]:
            found.extend(one for one in load_contracts(asked) if one not in found)
        return found

    def _pairs(self, globs: Sequence[str]) -> list[KernelPair]:
        pairs = self._brought(load_suite(self.sources))
        if not globs:
            return pairs
        chosen = [pair for pair in pairs if any(fnmatch.fnmatchcase(pair.name, glob) for glob in globs)]
        if not chosen:
            names = ", ".join(pair.name for pair in pairs)
            raise InputError(f"--pair={' '.join(globs)}: no registered pair matches; registered: {names}")
        return chosen

    def _brought(self, pairs: Sequence[KernelPair]) -> list[KernelPair]:
        """With `--pairs`, leave out the suite's own pairs that a pair module has merely imported."""
        shipped = str(suite_root() / "kernel_pairs")
        named = [str(Path(source).resolve()) for source in self.sources]
        if not named or any(shipped.startswith(source) or source.startswith(shipped) for source in named):
            return list(pairs)
        return [pair for pair in pairs if not registry.where(pair.name).startswith(shipped)]

    def _check_covered(self, pairs: Sequence[KernelPair]) -> None:
        """A pair that was brought along must have a contract; so must all when all contracts are asked for."""
        everything = any(Path(asked).is_dir() for asked in self.asked) or not self.asked
        brought = [str(Path(source).resolve()) for source in self.sources]
        for pair in pairs:
            where = registry.where(pair.name)
            ours = any(where.startswith(source) for source in brought) if brought else everything
            if ours and not any(contract.covers(pair.name) for contract in self.contracts):
                names = ", ".join(contract.contract for contract in self.contracts)
                raise InputError(f"{where}: pair {pair.name!r} has no contract among: {names}")

    def _in_use(self, globs: Sequence[str]) -> list[Contract]:
        """With `--pair`, contracts of other pairs are not at fault for having none here."""
        if not globs:
            return list(self.contracts)
        return [one for one in self.contracts if any(one.covers(pair.name) for pair in self.pairs)]

    def _obstacles(self, pair: KernelPair) -> str:
        used = conformance.features_used(pair.inf, pair.dtypes) | conformance.features_used(
            pair.train, pair.dtypes
        )
        if not used:
            return ""
        if self.substrate.problem:
            return self.substrate.problem
        self._conformance = self._conformance or conformance.check(self.cell.device)
        return "; ".join(conformance.missing(used, self._conformance))

    def _replayed(self, token: str | None) -> Counterexample | None:
        if token is None:
            return None
        found = load_counterexample(self.kept / f"{Path(token).name}.json") or self._reported(token)
        if found is None:
            known = ", ".join(known_tokens(self.kept)) or "none"
            raise InputError(
                f"--contract-replay={token}: no such counterexample; kept in {self.kept}: {known}"
            )
        self.cases = [case for case in self.cases if _is_of(case, found)]
        if not self.cases:
            raise InputError(
                f"--contract-replay={token}: it is of {found.contract} · {found.pair} · {found.dtype} · "
                f"{found.device} · {found.relation}, which this run does not reach"
            )
        return found

    def _reported(self, token: str) -> Counterexample | None:
        """Find a counterexample in an evidence file of another machine."""
        if self.report_path is None or not self.report_path.is_file():
            return None
        try:
            record = json.loads(self.report_path.read_text(encoding="utf-8"))
            found = [r["counterexample"] for item in record["items"] for r in item["results"]]
            known = next((one for one in found if one and one.pop("token") == token), None)
            return Counterexample(**known) if known else None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(f"--contract-report={self.report_path}: no evidence file: {error!r}") from error

    # -- judging, in whichever process runs the item --

    def judge(self, case: Case) -> Item:
        """Search a case, and keep what failed. Whatever the kernel or the search raises becomes ERROR."""
        begun = time.perf_counter()
        seed = _seed_of(case, self.seed)
        results = self._results(case, seed)
        for result in results:
            if result.counterexample and self.replayed is None:
                result.counterexample.save(self.kept)
        return self._item(case, seed, results, time.perf_counter() - begun)

    def _results(self, case: Case, seed: int) -> list[Result]:
        if case.obstacle:
            return [promise.result(Verdict.INCONCLUSIVE, reason=case.obstacle) for promise in case.promises]
        try:
            if self.replayed is not None:
                return replay(case, dict(self.replayed.recipe))
            return search(case, self.examples, seed, self._kept_of(case))
        except Exception as error:  # noqa: BLE001 - one item's fault must not cost the others their evidence
            reason = f"{type(error).__name__}: {error}"
            return [promise.result(Verdict.ERROR, reason=reason) for promise in case.promises]

    def _kept_of(self, case: Case) -> list[Recipe]:
        """Give the recipes that failed before; not those that the contract has stopped to speak of."""
        kept = (load_counterexample(path) for path in sorted(self.kept.glob("*.json")))
        ours = [known for known in kept if known is not None and _is_of(case, known)]
        return [dict(one.recipe) for one in ours if one.domain is None or within(one.domain, case.domain)]

    def _item(self, case: Case, seed: int, results: list[Result], seconds: float) -> Item:
        return Item(
            case.id, case.contract.contract, case.contract.hash, case.contract.origin.path, case.pair.name,
            case.dtype, case.cell.device, case.cell.hardware, case.relation, case.pair.fingerprint(), seed,
            results, seconds,
        )  # fmt: skip

    def encode(self, item: Item) -> dict[str, Any]:
        """Give an item as plain JSON values."""
        plain: dict[str, Any] = encode(item)
        return plain

    def failures(self, item: Item) -> str:
        """Give the failure text of an item: a block for each promise that does not hold."""
        failed = [one for one in item.results if one.verdict in (Verdict.VIOLATED, Verdict.ERROR)]
        return "\n\n".join(text.failure(item, result, self.replay_options()) for result in failed)

    def doubt(self, item: Item) -> str:
        """Say why an item is INCONCLUSIVE; "" where it is not."""
        reasons = {one.reason: None for one in item.results if one.verdict is Verdict.INCONCLUSIVE}
        return "; ".join(reasons)

    def replay_options(self) -> str:
        """Give the options that a replay needs beside the contract."""
        return "".join(f" --pairs={source}" for source in self.sources)

    # -- collecting, in the process that sees all reports --

    def collect(self, evidence: dict[str, Any]) -> None:
        """Keep an item's evidence, on disk too, so that a crash later loses nothing measured."""
        self.collected[evidence["id"]] = evidence
        self._write()

    def crashed(self, case_id: str, detail: str) -> None:
        """Note ERROR for an item whose process died before it could report."""
        case = next((case for case in self.cases if case.id == case_id), None)
        if case is None or case_id in self.collected:
            return
        reason = f"the process died: {detail.strip().splitlines()[-1] if detail.strip() else 'no report'}"
        results = [promise.result(Verdict.ERROR, reason=reason) for promise in case.promises]
        self.collect(encode(self._item(case, _seed_of(case, self.seed), results, 0.0)))

    @property
    def judged(self) -> int:
        """Count the items that were judged, either way."""
        return sum(item["verdict"] != Verdict.INCONCLUSIVE for item in self.collected.values())

    def finish(self) -> None:
        """Write the evidence."""
        self._write()

    def record(self) -> dict[str, Any]:
        """Give the whole run's evidence."""
        return {
            "schema": SCHEMA,
            "kernelpact": version("kernelpact"),
            "started": self.started,
            "seconds": time.time() - self.started,
            "seed": self.seed,
            "examples": self.examples,
            "python": sys.version.split()[0],
            "device": _device_facts(self.cell),
            "substrate": self.substrate.to_dict(),
            "conformance": self._conformance.to_dict() if self._conformance else None,
            "verdict": str(Verdict.worst(Verdict(item["verdict"]) for item in self.collected.values())),
            "unproven": unproven(self.contracts, self.cell),
            "items": [self.collected[key] for key in sorted(self.collected)],
        }

    def _write(self) -> None:
        if self.report_path is not None and self.replayed is None:
            write_json(self.report_path, self.record())

    # -- telling --

    def header(self) -> list[str]:
        """Give the lines at the top of the run."""
        names = ", ".join(contract.contract for contract in self.contracts)
        ground = self.substrate
        corrected = f", {len(ground.corrections)} corrections" if ground.corrections else ""
        return [
            f"contracts: {names}",
            f"kernels on: {self.cell.hardware} ({ground.kind} {ground.triton}{corrected}), torch {ground.torch}",
            f"contract seed: {self.seed}, {self.examples} examples an item",
        ]

    def summarise(self, reporter: Any) -> None:
        """Print the table of clauses, the cells that were not reached, and where the evidence is."""
        if not self.collected:
            return
        reporter.section("kernel contracts")
        verbose = reporter.config.get_verbosity() > 0
        for line in text.table(list(self.collected.values()), each_dtype=verbose):
            reporter.write_line(line)
        for line in text.closing(list(self.collected.values()), unproven(self.contracts, self.cell)):
            reporter.write_line(line)
        if not self.judged:
            reporter.write_line(
                "no evidence at all: nothing could be judged, so this run does not pass", red=True
            )
        if self.report_path is not None and self.replayed is None:
            reporter.write_line(f"evidence: {self.report_path}")


def _is_of(case: Case, known: Counterexample) -> bool:
    theirs = (known.contract, known.pair, known.dtype, known.device, known.relation)
    return theirs == (case.contract.contract, case.pair.name, case.dtype, case.cell.device, case.relation)


def _seed_of(case: Case, seed: int) -> int:
    """Derive an item's seed from its name, so that neither order nor worker changes its inputs."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{case.id}".encode()).digest()[:8])


def _cell(asked: str) -> Cell:
    available = torch.cuda.is_available()
    if asked == "cuda" and not available:
        raise InputError("--contract-device=cuda: torch sees no CUDA device here; allowed: auto, cpu")
    if asked == "cpu" or not available:
        return Cell("cpu", "cpu")
    major, minor = torch.cuda.get_device_capability()
    return Cell("cuda", f"sm_{major}{minor}")


def _device_facts(cell: Cell) -> dict[str, Any]:
    facts: dict[str, Any] = {"device": cell.device, "hardware": cell.hardware}
    if cell.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        facts |= {
            "name": properties.name,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
        }
    return facts
