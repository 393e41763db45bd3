"""The search: Hypothesis draws recipes, shrinks the failing ones, and each promise gets its result.

One pass looks at all promises that have not failed yet. When one fails, Hypothesis shrinks for that promise
alone; then the pass is repeated for the others. What was run before is remembered, so a repeat is cheap.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity

from kernelpact.cases import Case, Promise
from kernelpact.clauses import Finding
from kernelpact.evidence import Counterexample, Result
from kernelpact.operators import Recipe
from kernelpact.relations import describe_index, worst
from kernelpact.verdict import Verdict

__all__ = ["replay", "search"]

SHRINK_EVALUATIONS = (
    150  # inputs run while shrinking one counterexample; counted, so that runs are deterministic
)
_FAILING = (Verdict.VIOLATED, Verdict.ERROR)

Found = tuple[str, Finding]


class _Failed(Exception):
    """Tells Hypothesis that the input fails."""


@dataclass
class _Evidence:
    """What is known of one promise so far."""

    promise: Promise
    found: list[Found] = field(default_factory=list)
    examples: int = 0
    failing: Recipe | None = None
    first: Recipe | None = None
    failure: Found | None = None


class _Search:
    def __init__(self, case: Case, examples: int, seed: int) -> None:
        self.case, self.examples, self.seed = case, examples, seed
        self.evidence = [_Evidence(promise) for promise in case.promises]
        self._memory: dict[str, dict[int, Found]] = {}

    def run(self, kept: Iterable[Recipe]) -> list[Result]:
        for recipe in kept:
            self._retry(recipe)
        while active := [i for i, known in enumerate(self.evidence) if known.failing is None]:
            for position in active:
                self.evidence[position].found.clear()
                self.evidence[position].examples = 0
            if not self._explore(active):
                break
        return [self._result(known) for known in self.evidence]

    def _assess(self, recipe: Recipe, wanted: Sequence[int]) -> dict[int, Found]:
        memory = self._memory.setdefault(_key(recipe), {})
        if unknown := [position for position in wanted if position not in memory]:
            memory.update(self.case.assess(recipe, unknown))
        return {position: memory[position] for position in wanted if position in memory}

    def _retry(self, recipe: Recipe) -> None:
        """Judge a recipe that failed before; it was shrunk then."""
        try:
            assessed = self._assess(recipe, range(len(self.evidence)))
        except Exception:  # noqa: BLE001 - a recipe of another version; what is broken today, the search meets
            return
        for position, found in assessed.items():
            known = self.evidence[position]
            if found[1].verdict in _FAILING and known.failing is None:
                known.failing, known.failure, known.examples = recipe, found, 1

    def _explore(self, active: Sequence[int]) -> bool:
        """Search until one of the active promises fails, and shrink it; False when none fails."""
        target: int | None = None
        evaluations = 0

        def body(recipe: Recipe) -> None:
            nonlocal target, evaluations
            if target is None:
                target = self._look(recipe, active)
            else:
                if _key(recipe) not in self._memory:
                    evaluations += 1
                    if evaluations > SHRINK_EVALUATIONS:
                        return
                self._shrink(recipe, target)
            if target is not None and self.evidence[target].failing is recipe:
                raise _Failed

        settings = hypothesis.settings(
            max_examples=self.examples,
            phases=(Phase.generate, Phase.shrink),
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.quiet,
            database=None,
            deadline=None,
            derandomize=False,  # the seed below decides
            print_blob=False,
        )
        drawn = hypothesis.given(self.case.strategy())(body)  # type: ignore[no-untyped-call]  # Hypothesis leaves what it wraps untyped
        configured: Any = settings(hypothesis.seed(self.seed)(drawn))
        try:
            configured()
        except _Failed:
            return True
        return False

    def _look(self, recipe: Recipe, active: Sequence[int]) -> int | None:
        """Judge a generated recipe; give the first promise that fails on it."""
        assessed = self._assess(recipe, active)
        for position in active:
            if position in assessed:
                self.evidence[position].examples += 1
                self.evidence[position].found.append(assessed[position])
        for position, found in assessed.items():
            if found[1].verdict in _FAILING:
                self._fail(position, recipe, found)
                return position
        return None

    def _shrink(self, recipe: Recipe, target: int) -> None:
        found = self._assess(recipe, [target]).get(target)
        known = self.evidence[target]
        # The same kind of failure only: shrinking must not slip from a wrong result to a kernel that raises.
        if found and known.failure and found[1].verdict is known.failure[1].verdict:
            self._fail(target, recipe, found)

    def _fail(self, position: int, recipe: Recipe, found: Found) -> None:
        known = self.evidence[position]
        known.first = known.first or recipe
        known.failing, known.failure = recipe, found

    def _result(self, known: _Evidence) -> Result:
        promise = known.promise
        if promise.limit is None:
            why = f"states no limit for {self.case.dtype} on {self.case.cell.hardware}"
            return promise.result(Verdict.INCONCLUSIVE, reason=why)
        found = known.failure or worst(known.found, promise.higher_is_better)
        if found is None:
            reason = f"none of the inputs drawn says anything of it ({self.examples} were asked for)"
            return promise.result(Verdict.INCONCLUSIVE, reason=reason)
        name, finding = found
        return promise.result(
            finding.verdict, observed=finding.observed, bound=finding.bound, examples=known.examples,
            where=describe_index(name, finding), reason=finding.reason, candidate=finding.candidate,
            reference=finding.reference, counterexample=self._counterexample(known),
        )  # fmt: skip

    def _counterexample(self, known: _Evidence) -> Counterexample | None:
        if known.failing is None:
            return None
        case, describe = self.case, self.case.operator.describe
        text, first = describe(known.failing), describe(known.first) if known.first else ""
        return Counterexample(
            case.contract.contract, case.pair.name, case.dtype, case.cell.device, case.relation,
            known.promise.label, known.failing, text, first if first != text else "", case.domain,
        )  # fmt: skip


def _key(recipe: Recipe) -> str:
    return json.dumps(recipe, sort_keys=True)


def search(case: Case, examples: int, seed: int, kept: Iterable[Recipe] = ()) -> list[Result]:
    """Search for inputs that break the promises of a case; give a result for each promise.

    examples: inputs generated, at most. seed: the same gives the same. kept: recipes that failed before.
    """
    return _Search(case, examples, seed).run(kept)


def replay(case: Case, recipe: Recipe) -> list[Result]:
    """Judge one recipe alone; of promises on which it says nothing, INCONCLUSIVE."""
    looking = _Search(case, 1, 0)
    for position, found in looking._assess(recipe, range(len(case.promises))).items():
        known = looking.evidence[position]
        known.examples = 1
        known.found.append(found)
        if found[1].verdict in _FAILING:
            looking._fail(position, recipe, found)
    return [looking._result(known) for known in looking.evidence]
