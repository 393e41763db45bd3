"""Relations: which tensors are set beside each other, and that each catches what it is for."""

import math
from dataclasses import replace

import pytest
import torch
import toys

from kernelpact import relations
from kernelpact.clauses import Finding
from kernelpact.contract import NumericalClause
from kernelpact.relations import RelationError, findings
from kernelpact.trial import KernelError
from kernelpact.verdict import Verdict

HOLDS, VIOLATED = Verdict.HOLDS, Verdict.VIOLATED


def judged(clause, trial):
    """Give {what: verdict} of a clause on a trial, at the clause's own limit."""
    limit = relations.limit_of(clause, trial.dtype, "cpu")
    return {name: finding.verdict for name, finding in findings(clause, trial, limit)}


def off_by(amount):
    """Give a kernel whose every element is `amount` too large."""
    return lambda *, x, weight: x * weight + amount


@pytest.mark.parametrize(("amount", "verdict"), [(0.25, HOLDS), (0.26, VIOLATED)])
def test_parity_sets_inf_beside_train(amount, verdict):
    """A difference at the limit holds, a larger one does not, whatever the oracle says."""
    both = toys.trial(off_by(9 + amount), train=off_by(9))
    assert judged(toys.clause("parity"), both) == {"y": verdict}


@pytest.mark.parametrize(("side", "amount", "verdict"), [
    ("inf", 0.25, HOLDS), ("inf", 0.26, VIOLATED), ("train", 0.25, HOLDS), ("train", 0.26, VIOLATED),
])  # fmt: skip
def test_accuracy_sets_the_named_side_beside_the_oracle(side, amount, verdict):
    """`of: train` judges K_train, otherwise K_inf; the other side's error does not count."""
    kernels = {"inf": off_by(50), "train": off_by(50)} | {side: off_by(amount)}
    clause = toys.clause("accuracy", of=side)
    assert judged(clause, toys.trial(**kernels)) == {"y": verdict}


def test_accuracy_is_of_inf_unless_it_says_otherwise():
    """A clause without `of` is about the serving kernel."""
    assert judged(toys.clause("accuracy"), toys.trial(off_by(1))) == {"y": VIOLATED}
    assert judged(toys.clause("accuracy"), toys.trial(train=off_by(1))) == {"y": HOLDS}


@pytest.mark.parametrize(("limit", "verdict"), [(1.99, VIOLATED), (2.01, HOLDS)])
def test_error_ratio_is_measured_by_train(limit, verdict):
    """K_inf's error is held against K_train's on the same input."""
    clause = toys.clause("accuracy", "error_ratio", max=limit)
    assert judged(clause, toys.trial(off_by(0.5), train=off_by(0.25))) == {"y": verdict}


@pytest.mark.parametrize(
    ("relation", "metric", "more", "message"),
    [
        ("accuracy", "bitwise", {}, "bitwise belongs to parity and invariance"),
        ("gradient", "bitwise", {}, "bitwise belongs to parity and invariance"),
        ("accuracy", "error_ratio", {"of": "train", "max": 2.0}, "error_ratio belongs to accuracy of inf"),
        ("parity", "error_ratio", {"max": 2.0}, "error_ratio belongs to accuracy of inf"),
        (
            "invariance",
            "error_ratio",
            {"max": 2.0, "under": ("repeat",)},
            "error_ratio belongs to accuracy of inf",
        ),
    ],
)
def test_promises_that_cannot_be_measured_or_broken_are_refused(relation, metric, more, message):
    """The oracle's dtype is no kernel's, and a kernel measured by itself would always pass."""
    with pytest.raises(ValueError, match=message):
        NumericalClause(relation=relation, metric=metric, why="a test", **more)


def counting(change, buffer=None):
    """Give a kernel whose result passes through `change(y, call)`, into one buffer if there is one."""
    calls = []

    def kernel(*, x, weight):
        calls.append(1)
        y = change(x * weight, len(calls))
        return y if buffer is None else buffer.copy_(y)

    return kernel


@pytest.mark.parametrize("buffer", [None, torch.zeros(2, 2)], ids=["fresh", "reused"])
def test_state_between_calls_breaks_invariance_under_repeat(buffer):
    """A second call that differs is found, also where both calls return the same buffer."""
    clause = toys.clause("invariance", "bitwise", under=("repeat",))
    drifting = counting(lambda y, call: y + (call - 1) * 1e-6, buffer)
    assert judged(clause, toys.trial(drifting)) == {"y under repeat": VIOLATED}
    assert judged(clause, toys.trial(counting(lambda y, call: y, buffer))) == {"y under repeat": HOLDS}


def test_a_row_that_depends_on_its_batch_breaks_invariance():
    """A kernel that divides by the number of rows is found by the row alone, not by a repeated call."""
    clause = toys.clause("invariance", "bitwise", under=("repeat", "batch"))
    shared = toys.trial(lambda *, x, weight: x * weight * (1 + 1e-6 * len(x)))
    assert judged(clause, shared) == {"y under repeat": HOLDS, "y under batch": VIOLATED}


def test_invariance_within_a_limit():
    """An invariance may allow a difference; it is judged on both sides of it."""
    rows = toys.trial(lambda *, x, weight: x * weight + 0.25 * len(x))  # 0.25 for a row more
    assert judged(toys.clause("invariance", under=("batch",), max=0.25), rows) == {"y under batch": HOLDS}
    assert judged(toys.clause("invariance", under=("batch",), max=0.24), rows) == {"y under batch": VIOLATED}


def test_a_transformation_that_an_input_does_not_admit_says_nothing():
    """No variant, no finding: neither a pass nor a failure."""
    clause = toys.clause("invariance", "bitwise", under=("pages",))
    assert findings(clause, toys.trial(), 0.0) == []
    assert relations.worst([], higher_is_better=False) is None


def test_a_variant_that_breaks_the_kernel_is_the_kernels_fault():
    """A kernel that raises for the transformed input alone is an error, not a skipped check."""

    def kernel(*, x, weight):
        if len(x) == 1:
            raise ValueError("one row only")
        return x * weight

    clause = toys.clause("invariance", "bitwise", under=("batch",))
    with pytest.raises(KernelError, match="inf raised ValueError: one row only"):
        findings(clause, toys.trial(kernel), 0.0)


@pytest.mark.parametrize(
    ("clause", "message"),
    [
        (toys.clause(output="z"), r"operator scaled has outputs \['y'\], not 'z'"),
        (toys.clause("accuracy", output="z"), r"operator scaled has outputs \['y'\], not 'z'"),
        (toys.clause("invariance", under=("padding",)), r"operator scaled knows \['batch', 'pages', 'repeat'\], not 'padding'"),
        (toys.clause("gradient", output="y"), r"differentiable in \['x', 'weight'\], not in 'y'"),
    ],
)  # fmt: skip
def test_an_unknown_output_or_transformation_is_refused(clause, message):
    """What is known is listed."""
    with pytest.raises(RelationError, match=message):
        findings(clause, toys.trial(), 0.25)


class HalfBackward(torch.autograd.Function):
    """x · weight, whose gradient in x is half of what it should be."""

    @staticmethod
    def forward(ctx, x, weight):
        """Multiply."""
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        """Halve the gradient in x."""
        x, weight = ctx.saved_tensors
        return grad * weight * 0.5, (grad * x).sum(0)


class BrokenBackward(HalfBackward):
    """x · weight, which cannot be differentiated after all."""

    @staticmethod
    def backward(ctx, grad):
        """Raise."""
        raise ValueError("no backward")


GRADIENT = toys.clause("gradient", "rel_rms", max=0.1)


def test_a_right_backward_holds():
    """K_train's own gradient in every differentiable input agrees with the oracle's."""
    assert judged(GRADIENT, toys.trial()) == {"d/d x": HOLDS, "d/d weight": HOLDS}


def test_a_wrong_backward_is_found_in_its_input_alone():
    """Half a gradient is found, though the forward is right; the other input's holds."""
    wrong = toys.trial(train=lambda *, x, weight: HalfBackward.apply(x, weight))
    assert judged(toys.clause("parity"), wrong) == {"y": HOLDS}
    assert judged(GRADIENT, wrong) == {"d/d x": VIOLATED, "d/d weight": HOLDS}
    assert judged(toys.clause("gradient", "rel_rms", max=0.1, output="weight"), wrong) == {
        "d/d weight": HOLDS
    }


def test_an_input_that_autograd_does_not_reach_has_a_zero_gradient():
    """A K_train that detaches an input is wrong there, not unjudged."""
    detached = toys.trial(train=lambda *, x, weight: x * weight.detach())
    assert judged(GRADIENT, detached) == {"d/d x": HOLDS, "d/d weight": VIOLATED}


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (lambda *, x, weight: (x * weight).detach(), "train gives outputs that do not depend on"),
        (lambda *, x, weight: BrokenBackward.apply(x, weight), "train raised ValueError in its backward: no backward"),
        (lambda *, x, weight: 1 / 0, "train raised ZeroDivisionError under autograd: division by zero"),
        (lambda *, x, weight: (x * weight)[:1], r"train returns y with shape \[1, 2\], expected \[2, 2\]"),
    ],
)  # fmt: skip
def test_a_train_kernel_that_cannot_be_differentiated_is_an_error(train, message):
    """Detached, raising forwards or backwards, or of a shape that would broadcast: the kernel is named."""
    with pytest.raises(KernelError, match=message):
        findings(GRADIENT, toys.trial(train=train), 0.1)


def test_an_empty_input_has_no_gradient_to_judge():
    """No output, no finding."""
    assert findings(GRADIENT, toys.trial(recipe={"values": [], "seed": 0}), 0.1) == []


def test_a_clauses_limit_is_that_of_its_cell():
    """Limits by dtype and hardware resolve; a promise that is its own limit allows 0; none stated is None."""
    clause = toys.clause(max={"float16": {"cpu": 0.5, "sm_90": 0.75}, "bfloat16": 2.0})
    found = [
        relations.limit_of(clause, *cell)
        for cell in (("float16", "sm_90"), ("bfloat16", "cpu"), ("float32", "cpu"))
    ]
    assert found == [0.75, 2.0, None]
    assert relations.limit_of(toys.clause("parity", "bitwise"), "float32", "cpu") == 0.0


def finding(verdict, observed):
    """Give a finding at a limit of 1."""
    return Finding(verdict, observed, 1.0)


def test_the_finding_that_decides_is_the_worst():
    """A violated one before one that holds, then the figure nearest its limit, NaN before all, none before nothing."""
    small, large = ("small", finding(HOLDS, 0.2)), ("large", finding(HOLDS, 0.9))
    broken = ("broken", finding(VIOLATED, 0.1))
    nan = ("nan", finding(HOLDS, math.nan))
    empty = ("empty", replace(finding(Verdict.INCONCLUSIVE, None), reason="empty"))
    assert relations.worst([small, large], higher_is_better=False) is large
    assert relations.worst([small, large], higher_is_better=True) is small
    assert relations.worst([large, broken, small], higher_is_better=False) is broken
    assert relations.worst([large, nan], higher_is_better=False) is nan
    assert relations.worst([empty, small], higher_is_better=False) is small
    assert relations.worst([empty], higher_is_better=False) is empty


def test_a_place_is_written_with_its_index():
    """An index where there is one, the name alone where the finding is of the whole."""
    assert relations.describe_index("y", replace(finding(HOLDS, 0.0), index=(1, 0))) == "y[1, 0]"
    assert relations.describe_index("y", finding(HOLDS, 0.0)) == "y"
