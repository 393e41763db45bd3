"""One input of one pair: what a kernel may return, and what it may not do to its inputs."""

import math

import pytest
import torch
import toys

from kernelpact.trial import KernelError


def wrong(change):
    """Give a kernel whose right result is passed through `change`."""
    return lambda *, x, weight: change(toys.train(x=x, weight=weight))


def raises(*, x, weight):
    """Raise with two lines of message."""
    raise RuntimeError("out of pages\nand much more")


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (wrong(lambda y: y[:1]), r"inf returns y with shape \[1, 2\], expected \[2, 2\]$"),
        (wrong(lambda y: y.T[None]), r"inf returns y with shape \[1, 2, 2\], expected \[2, 2\]$"),
        (wrong(torch.Tensor.double), "inf returns y with dtype torch.float64, expected torch.float32$"),
        (wrong(lambda y: y.to("meta")), "inf returns y with device meta, expected cpu$"),
        (wrong(lambda y: {"o": y}), r"inf returns \['o'\], without the tensors \['y'\]$"),
        (wrong(lambda y: {"y": y.tolist()}), r"inf returns \['y'\], without the tensors \['y'\]$"),
        (wrong(lambda y: [y]), r"inf returns list, expected a tensor or a dict of \['y'\]$"),
        (wrong(lambda y: None), r"inf returns NoneType, expected"),
        (raises, "inf raised RuntimeError: out of pages$"),
        (lambda *, x: x, "inf raised TypeError: .*unexpected keyword argument 'weight'"),
    ],
)
def test_a_breach_of_the_interface_is_an_error_that_says_what_was_expected(kernel, message):
    """Shape, dtype, device, names, type and exceptions: each names the side, what came and what should have."""
    with pytest.raises(KernelError, match=message):
        toys.trial(kernel).inf  # noqa: B018 - the property runs the kernel


def test_the_side_at_fault_is_named():
    """A fault of K_train is not told as one of K_inf."""
    trial = toys.trial(train=raises)
    with pytest.raises(KernelError, match=r"^train raised RuntimeError: out of pages$"):
        trial.train  # noqa: B018 - the property runs the kernel
    assert torch.equal(trial.inf["y"], trial.exact["y"].float())


@pytest.mark.parametrize("given", [lambda y: y, lambda y: {"y": y}, lambda y: {"y": y, "lse": None}])
def test_a_tensor_or_a_dict_with_more_is_taken(given):
    """A bare tensor is the first output; outputs that the operator does not have are left alone."""
    trial = toys.trial(wrong(given))
    assert set(trial.inf) == {"y"}
    assert trial.inf["y"].tolist() == [[3.0, 3.0], [1.0, 1.0]]


def changes_nan_bits(*, x, weight):
    """Write into an input what it already holds."""
    x[0, 0] = x[0, 0].clone()
    return x * weight


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("x", lambda x, weight: x.add_(1)),
        ("x", lambda x, weight: x[-1, -1:].neg_()),
        ("weight", lambda x, weight: weight[:1].zero_()),
        ("weight", lambda x, weight: weight.resize_(1)),
    ],
)
def test_a_kernel_that_mutates_an_input_is_named(name, change):
    """One element is enough, in any input, by value or by size."""

    def kernel(*, x, weight):
        y = toys.train(x=x, weight=weight)
        change(x, weight)
        return y

    with pytest.raises(KernelError, match=f"^inf mutates its input {name}$"):
        toys.trial(kernel).inf  # noqa: B018 - the property runs the kernel


def test_a_nan_in_an_input_is_no_mutation():
    """Inputs are compared by their bits, so a NaN that stays is unchanged and a changed sign of zero is not."""
    trial = toys.trial(changes_nan_bits)
    trial.inputs["x"][0, 0] = math.nan
    assert trial.inf["y"].isnan().sum() == 1

    def negates_zero(*, x, weight):
        y = x * weight
        x.neg_()
        return y

    with pytest.raises(KernelError, match="mutates its input x"):
        toys.trial(negates_zero, recipe={"values": [0], "seed": 0}).inf  # noqa: B018 - runs the kernel


def test_memory_left_unwritten_is_seen_as_nan():
    """An output that `torch.empty` gave and the kernel did not fill is NaN, not whatever was there before."""

    def kernel(*, x, weight):
        y = torch.empty_like(x)
        y[0] = x[0] * weight
        return y

    assert toys.trial(kernel).inf["y"].isnan().tolist() == [[False, False], [True, True]]


def test_the_loud_memory_ends_with_the_kernel():
    """What torch is set to outside stays as it was, also after a kernel that raises."""
    assert not torch.are_deterministic_algorithms_enabled()
    seen = []

    def kernel(*, x, weight):
        seen.append(torch.are_deterministic_algorithms_enabled())
        raise ValueError("no")

    with pytest.raises(KernelError, match="no"):
        toys.trial(kernel).inf  # noqa: B018 - the property runs the kernel
    assert seen == [True]
    assert not torch.are_deterministic_algorithms_enabled()


def test_outputs_are_copies():
    """A kernel that hands out one buffer again and again does not change what an earlier call gave."""
    buffer = torch.zeros(2, 2)
    trial = toys.trial(lambda *, x, weight: torch.mul(x, weight, out=buffer))
    first = trial.inf["y"]
    buffer.fill_(7.0)
    assert first.tolist() == [[3.0, 3.0], [1.0, 1.0]]


def test_each_side_runs_once():
    """However many clauses ask, a side is run once for an input."""
    calls = []

    def kernel(*, x, weight):
        calls.append(1)
        return x * weight

    trial = toys.trial(kernel)
    assert trial.inf is trial.inf
    assert len(calls) == 1


def test_the_oracle_is_float64_and_its_scale_defaults_to_the_output():
    """Outputs of the oracle are float64; without a `_scale` the magnitude is the output's own."""
    trial = toys.trial(recipe={"values": [4], "seed": 0}, dtype="float16")
    assert trial.exact["y"].dtype == torch.float64
    assert trial.scale("y").tolist() == [[4.0, 4.0]]
    trial.exact["y_scale"] = torch.tensor([[-9.0, 9.0]])
    assert trial.scale("y").tolist() == [[9.0, 9.0]]
