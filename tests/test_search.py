"""The search: what it finds, how far it shrinks, what it counts, and what it does without evidence."""

from dataclasses import replace

import pytest
import toys
from hypothesis import strategies as st

from kernelpact.evidence import encode
from kernelpact.plugin import search as module
from kernelpact.plugin.search import replay, search
from kernelpact.verdict import Verdict

HOLDS, VIOLATED, INCONCLUSIVE, ERROR = (
    Verdict.HOLDS, Verdict.VIOLATED, Verdict.INCONCLUSIVE, Verdict.ERROR,
)  # fmt: skip


def fault_from(value, amount=1.0):
    """Give a kernel that is `amount` too large in rows whose x is at least `value`."""
    return lambda *, x, weight: x * weight + amount * (x[:, :1] >= value)


def counted(kernel, seen):
    """Note the inputs of every call: values by row."""

    def count(*, x, weight):
        seen.append(x[:, 0].tolist())
        return kernel(x=x, weight=weight)

    return count


def test_a_fault_is_found_and_shrunk_to_the_smallest_input():
    """One row, at the first value that is wrong, seed 0; and the text says what it was shrunk from."""
    (found,) = search(toys.case(fault_from(17)), 50, 0)
    assert (found.verdict, found.observed, found.allowed) == (VIOLATED, 1.0, 0.25)
    assert found.counterexample.recipe == {"values": [17], "seed": 0}
    assert found.counterexample.text == "values=[17] seed=0"
    assert found.counterexample.shrunk_from.startswith("values=[")
    assert found.counterexample.shrunk_from != found.counterexample.text
    assert found.where == "y[0, 0]"


def test_a_right_kernel_holds_with_its_worst_figure():
    """The figure is the largest of all inputs, the count is of the generated ones, and there is no counterexample."""
    (found,) = search(toys.case(fault_from(5, amount=0.125)), 50, 0)
    assert (found.verdict, found.observed) == (HOLDS, 0.125)
    assert found.examples == 50
    assert found.counterexample is None


@pytest.mark.parametrize(("limit", "verdict"), [(1.0, HOLDS), (0.99, VIOLATED)])
def test_the_limit_of_the_clause_decides(limit, verdict):
    """The same fault is within one limit and outside another."""
    (found,) = search(toys.case(fault_from(17), toys.clause(max=limit)), 50, 0)
    assert found.verdict is verdict


def test_each_promise_that_fails_gets_its_own_smallest_input():
    """Two faults, two counterexamples, and what holds is still judged on every input."""

    def kernel(*, x, weight):
        y = x * weight + 1.0 * (x[:, :1] >= 17)
        return y.where(x[:, :1] < 40, float("nan"))

    loose = toys.clause(max=50.0)
    terms = (
        toys.clause(max=0.25),
        toys.clause("parity", "nonfinite"),
        loose,
        toys.clause("invariance", "bitwise", under=("repeat",)),
    )
    small, finite, wide, again = search(toys.case(kernel, *terms), 100, 0)
    assert small.counterexample.recipe["values"] == [17]
    assert finite.counterexample.recipe["values"] == [40]
    assert wide.counterexample.recipe["values"] == [40]
    assert (again.verdict, again.examples, again.counterexample) == (HOLDS, 100, None)
    assert len({one.counterexample.token for one in (small, finite, wide)}) == 3


def test_the_same_seed_gives_the_same_inputs_and_another_seed_others():
    """Inputs and results are those of the seed, in one process after another run or before it."""

    def run(seed):
        seen = []
        found = search(toys.case(counted(fault_from(17), seen)), 20, seed)
        return seen, encode(found)

    first, other, again = run(1), run(2), run(1)
    assert first == again
    assert first[0] != other[0]


@pytest.mark.parametrize("amount", [0.0, 1.0])
def test_inputs_are_counted_as_generated_not_as_shrunk(amount):
    """While shrinking a kernel runs often; the count stays that of generated inputs."""
    seen = []
    (found,) = search(toys.case(counted(fault_from(3, amount), seen)), 20, 0)
    assert 1 <= found.examples <= 20
    if amount:
        assert len(seen) > found.examples
        assert found.counterexample.recipe["values"] == [3]
    else:
        assert len(seen) == found.examples == 20


def test_shrinking_stops_at_its_budget_with_the_smallest_so_far(monkeypatch):
    """With no budget to shrink, the input is reported as it was found."""
    monkeypatch.setattr(module, "SHRINK_EVALUATIONS", 0)
    seen = []
    (found,) = search(toys.case(counted(fault_from(17), seen)), 50, 0)
    assert found.verdict is VIOLATED
    assert found.counterexample.shrunk_from == ""
    assert found.counterexample.recipe["values"] == [int(value) for value in seen[-1]]


def test_no_promise_is_judged_twice_on_an_input():
    """What is known of an input is remembered across passes and while shrinking."""
    asked = []

    class Recording(toys.ToyCase):
        def assess(self, recipe, wanted):
            asked.extend((repr(recipe), position) for position in wanted)
            return super().assess(recipe, wanted)

    case = toys.case(fault_from(17), toys.clause(max=0.25), toys.clause(max=0.5), toys.clause(max=2.0))
    recording = Recording(**vars(case))
    found = search(recording, 30, 0)
    assert [one.verdict for one in found] == [VIOLATED, VIOLATED, HOLDS]
    assert len(asked) == len(set(asked)) > 60


def test_a_kept_recipe_is_tried_first():
    """A recipe that failed before is judged before anything is drawn, and ends the search where it still fails."""
    seen = []
    kept = {"values": [90, 30], "seed": 2}
    (found,) = search(toys.case(counted(fault_from(80), seen)), 20, 0, [kept])
    assert seen == [[90.0, 30.0]]
    assert (found.verdict, found.examples) == (VIOLATED, 1)
    assert found.counterexample.recipe == kept
    assert found.counterexample.shrunk_from == ""


def test_a_kept_recipe_that_is_mended_does_not_count():
    """Where it no longer fails the search goes on as without it."""
    kept = {"values": [90], "seed": 0}
    assert encode(search(toys.case(toys.train), 20, 0, [kept])) == encode(
        search(toys.case(toys.train), 20, 0)
    )


def test_a_kept_recipe_of_another_version_is_passed_over():
    """A recipe that no longer builds an input is no fault of the kernel."""
    (found,) = search(toys.case(toys.train), 20, 0, [{"rows": 3}])
    assert (found.verdict, found.examples) == (HOLDS, 20)


def test_a_kernel_that_raises_is_an_error_with_the_smallest_input():
    """The exception is the reason, and the input that raises is shrunk like any other."""

    def kernel(*, x, weight):
        if (x[:, 0] >= 30).any():
            raise ValueError("too large")
        return x * weight

    first, second = search(toys.case(kernel, toys.clause(), toys.clause("parity", "nonfinite")), 50, 0)
    for found in (first, second):
        assert (found.verdict, found.observed, found.reason) == (
            ERROR,
            None,
            "inf raised ValueError: too large",
        )
        assert found.counterexample.recipe == {"values": [30], "seed": 0}


def test_shrinking_keeps_to_the_kind_of_failure():
    """A wrong result does not shrink into an input for which the kernel raises, or the other way round."""

    def kernel(*, x, weight):
        if ((x[:, 0] >= 1) & (x[:, 0] <= 8)).any():
            raise ValueError("small")
        return fault_from(17)(x=x, weight=weight)

    smallest = {}
    for seed in range(8):
        (found,) = search(toys.case(kernel), 50, seed)
        smallest.setdefault(found.verdict, set()).add(tuple(found.counterexample.recipe["values"]))
    assert smallest.pop(VIOLATED) == {(17,)}  # 1 is smaller, and fails too, in the other way
    assert smallest in ({}, {ERROR: {(1,)}})


def test_inputs_that_say_nothing_are_no_evidence():
    """Transformations that admit no input, and outputs without elements, are INCONCLUSIVE with the reason."""
    (never,) = search(toys.case(toys.train, toys.clause("invariance", "bitwise", under=("pages",))), 10, 0)
    assert (never.verdict, never.observed) == (INCONCLUSIVE, None)
    assert never.reason == "none of the inputs drawn says anything of it (10 were asked for)"
    (empty,) = search(toys.case(toys.train, domain={"length": (0, 0)}), 10, 0)
    assert (empty.verdict, empty.observed, empty.reason) == (INCONCLUSIVE, None, "the output is empty")


def test_a_promise_without_a_limit_here_is_inconclusive():
    """A limit that is stated for another dtype says nothing of this one."""
    case = toys.case(toys.train)
    bare = replace(case, promises=(replace(case.promises[0], limit=None),))
    (found,) = search(bare, 5, 0)
    assert (found.verdict, found.reason) == (INCONCLUSIVE, "states no limit for float32 on cpu")


def test_what_is_broken_beside_the_kernel_is_raised():
    """A fault of the operator's own `build` is told as such, not as a kernel's."""

    def build(recipe, dtype, device):
        raise LookupError("no such layout")

    case = toys.case(toys.train, operator=replace(toys.SCALED, build=build))
    with pytest.raises(LookupError, match="no such layout"):
        search(case, 5, 0)


def test_a_strategy_with_one_input_is_searched_once():
    """Where the domain holds a single input, one example is all there is."""
    operator = replace(toys.SCALED, strategy=lambda *_: st.just({"values": [1], "seed": 0}))
    (found,) = search(toys.case(toys.train, operator=operator), 20, 0)
    assert (found.verdict, found.examples) == (HOLDS, 1)


def test_a_replay_judges_one_recipe_alone():
    """The recipe is run once, unshrunk; promises that it keeps hold, those it says nothing of are INCONCLUSIVE."""
    seen = []
    terms = (toys.clause(), toys.clause(max=2.0), toys.clause("invariance", "bitwise", under=("pages",)))
    case = toys.case(counted(fault_from(17), seen), *terms)
    broken, kept, silent = replay(case, {"values": [90, 95], "seed": 1})
    assert seen == [[90.0, 95.0]]
    assert (broken.verdict, broken.examples, broken.counterexample.recipe["values"]) == (
        VIOLATED,
        1,
        [90, 95],
    )
    assert (kept.verdict, kept.examples) == (HOLDS, 1)
    assert silent.verdict is INCONCLUSIVE
