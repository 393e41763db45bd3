"""Pairs and the modules that register them: what is refused, and what identifies a kernel."""

import os
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError
from functools import partial

import pytest

from kernelpact.pairs import KernelPair, PairError, load_pairs, register_pair, registry


def kernel(*, x):
    """Give the input back."""
    return x


def make(**changes):
    """Give a pair that is right but for `changes`."""
    return KernelPair(**{"name": "op/x", "op": "op", "train": kernel, "inf": kernel} | changes)


@pytest.fixture(autouse=True)
def pairs():
    """Start each test with no pair registered."""
    with registry.isolated() as empty:
        yield empty


@pytest.fixture
def module(tmp_path):
    """Write a pair module; give its path."""

    def write(source, name="mine.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        return path

    return write


GOOD = """\
from kernelpact import KernelPair, register_pair

def kernel(*, x):
    return x

register_pair(KernelPair("op/good", "op", kernel, kernel))
"""


@pytest.mark.parametrize("name", ["op", "op/", "/x", "op/x/y", "", 3, None])
def test_a_name_is_operator_and_variant(name):
    """Two parts, neither empty."""
    with pytest.raises(PairError, match=rf"pair name {re.escape(repr(name))}: expected `operator/variant`"):
        make(name=name)


@pytest.mark.parametrize("side", ["train", "inf"])
def test_both_sides_are_callable(side):
    """What cannot be called is named with its side."""
    with pytest.raises(PairError, match=f"pair op/x: {side} is 3, expected a callable"):
        make(**{side: 3})


@pytest.mark.parametrize(
    ("what", "given"),
    [
        ("dtypes", ("float8",)), ("dtypes", ()), ("dtypes", "float32"), ("dtypes", ("float32", "int8")),
        ("devices", ("tpu",)), ("devices", ()), ("devices", "cpu"), ("devices", ("cpu", "")),
    ],
)  # fmt: skip
def test_dtypes_and_devices_are_known(what, given):
    """Unknown, none, or a bare string: the message says what was given and what is allowed."""
    with pytest.raises(
        PairError, match=rf"op/x: {what}={re.escape(repr(given))}, allowed: a non-empty tuple of"
    ):
        make(**{what: given})


def test_a_required_package_is_no_bare_string():
    """A string would be taken for the packages of its letters."""
    with pytest.raises(PairError, match="requires='scipy', allowed: a tuple of package names"):
        make(requires="scipy")


def test_what_is_missing_here_is_named():
    """Packages that can be imported are left out; a module of an absent package is absent too."""
    assert make(requires=("json", "no_such_kernels", "no_such.ops", "json.decoder")).missing() == (
        "no_such_kernels",
        "no_such.ops",
    )
    assert make().missing() == ()


def test_a_pair_is_a_value():
    """Equal facts make equal pairs, and none can be changed."""
    assert make() == make()
    assert make() != make(name="op/y")
    with pytest.raises(FrozenInstanceError, match="name"):
        make().name = "op/z"


@pytest.mark.parametrize(
    ("thing", "found"), [({"name": "op/x"}, "dict"), (kernel, "function"), (None, "NoneType")]
)
def test_only_a_pair_can_be_registered(thing, found):
    """What was found is named by its type."""
    with pytest.raises(PairError, match=f"register_pair takes a KernelPair, found {found}"):
        register_pair(thing)


def test_a_registered_pair_is_found_by_name_with_its_place(pairs):
    """The registry is sorted, and says which line registered a pair."""
    register_pair(make(name="op/y"))
    assert register_pair(make()) == make()
    assert [pair.name for pair in pairs] == ["op/x", "op/y"]
    assert pairs["op/x"] == make()
    assert "op/x" in pairs
    assert "op/z" not in pairs
    assert len(pairs) == 2
    assert re.search(r"test_pairs\.py:\d+$", pairs.where("op/y"))


def test_an_isolated_registry_is_put_back_whatever_happens(pairs):
    """Inside it is empty; after it, also after an error, the pairs are there again."""
    register_pair(make())
    with pytest.raises(RuntimeError, match="stop"), pairs.isolated() as inner:  # noqa: PT012 - the block is the subject
        assert len(inner) == 0
        register_pair(make(name="op/other"))
        raise RuntimeError("stop")
    assert [pair.name for pair in pairs] == ["op/x"]


def test_a_name_taken_twice_names_both_places(module, tmp_path):
    """The second registration is refused with its own line and the first one's."""
    module(GOOD, "a.py")
    module("# moved down\n" + GOOD, "b.py")
    with pytest.raises(
        PairError, match=r"b\.py:7: pair 'op/good' is already registered at .*a\.py:6; names are unique"
    ):
        load_pairs(tmp_path)


def test_a_folder_a_file_and_a_module_load_alike(module, tmp_path, pairs, monkeypatch):
    """Each way registers the pair once; a file that was loaded before is not run again."""
    path = module(GOOD, "kernels_by_name.py")
    monkeypatch.syspath_prepend(tmp_path)
    for source in (tmp_path, path, str(path), "kernels_by_name"):
        with pairs.isolated():
            sys.modules.pop("kernels_by_name", None)
            for name in [name for name in sys.modules if name.startswith("kernelpact_pairs_kernels_by_name")]:
                del sys.modules[name]
            load_pairs(source)
            load_pairs(source)
            assert [pair.name for pair in pairs] == ["op/good"]
    sys.modules.pop("kernels_by_name", None)


def test_a_module_within_a_package_is_imported_as_part_of_it(module, pairs):
    """Relative imports work, and modules whose name starts with an underscore are helpers."""
    module("", "pack_of_pairs/__init__.py")
    module("NAME = 'op/relative'\n", "pack_of_pairs/_names.py")
    path = module(
        GOOD.replace('"op/good"', "NAME").replace("\n\ndef", "\nfrom ._names import NAME\n\ndef", 1),
        "pack_of_pairs/one.py",
    )
    load_pairs(path.parent)
    assert [pair.name for pair in pairs] == ["op/relative"]
    assert "pack_of_pairs.one" in sys.modules


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\nimport no_such_module\n", r"mine\.py:2: cannot import pairs: ModuleNotFoundError: No module named 'no_such_module'"),
        ("x = (\n", r"mine\.py.*: cannot import pairs: SyntaxError"),
        ("def f():\n    1 / 0\n\nf()\n", r"mine\.py:2: cannot import pairs: ZeroDivisionError"),
        ("\nraise SystemExit(0)\n", r"mine\.py:2: cannot import pairs: SystemExit: 0"),
        ("b = '\x00'\n", r"mine\.py.*: cannot import pairs: SyntaxError"),
    ],
)  # fmt: skip
def test_a_module_that_fails_to_import_names_its_line(module, source, message):
    """Whatever it raises, a call to `exit` too, is told with file and line; and nothing of it stays loaded."""
    path = module(source)
    before = set(sys.modules)
    with pytest.raises(PairError, match=message):
        load_pairs(path)
    assert not [name for name in set(sys.modules) - before if name.startswith("kernelpact_pairs")]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("absent.py", "absent.py: no such file"),
        ("no_such_package.kernels", "no_such_package.kernels: cannot import pairs: ModuleNotFoundError"),
        (".", "no pair modules"),
    ],
)
def test_a_source_that_holds_nothing_is_refused(tmp_path, monkeypatch, source, message):
    """An absent file, an unknown module, a folder without modules."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PairError, match=message):
        load_pairs(source)


def load(path, name="op/good"):
    """Load a module anew; give its pair."""
    with registry.isolated():
        load_pairs(path)
        return registry[name]


def test_a_changed_kernel_has_another_fingerprint(module):
    """The same source gives the same hash, wherever it lies; a change anywhere in the module gives another."""
    first = load(module(GOOD, "one.py")).fingerprint()
    assert first == load(module(GOOD, "two.py")).fingerprint()
    changed = load(module(GOOD.replace("return x", "return x + 0"), "three.py")).fingerprint()
    assert changed["inf"] != first["inf"]
    helper = load(module(GOOD + "\nBLOCK = 128\n", "four.py")).fingerprint()
    assert helper["inf"] not in (first["inf"], changed["inf"])
    assert first["versions"] == changed["versions"]
    assert re.fullmatch("[0-9a-f]{16}", first["inf"])


class Callable:
    """A kernel that is an object."""

    def __call__(self, *, x):
        """Give the input back."""
        return x


@pytest.mark.parametrize(
    "inf", [partial(kernel), Callable(), lambda *, x: x], ids=["partial", "object", "lambda"]
)
def test_a_kernel_of_any_kind_is_identified_by_its_module(inf):
    """Partials, callable objects and lambdas hash as the module that holds them."""
    assert make(inf=inf).fingerprint()["inf"] == make().fingerprint()["inf"]


def test_fingerprints_are_the_same_in_every_process():
    """A built-in has no source to read; its name stands for it, and no address."""
    code = (
        "from kernelpact import KernelPair\nimport math, operator\n"
        "pair = KernelPair('op/x', 'op', operator.neg, math.sin)\nprint(pair.fingerprint())\n"
        "print(KernelPair('op/x', 'op', math.sin, math.cos).fingerprint())"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert len(set(re.findall(r"'(?:train|inf)': '([0-9a-f]{16})'", outputs[0]))) == 3


def test_versions_name_what_the_kernels_stand_on():
    """torch, triton, numpy and every required package; one that is absent has an empty version."""
    versions = make(requires=("pytest", "no_such_kernels")).fingerprint()["versions"]
    assert set(versions) == {"torch", "triton", "numpy", "pytest", "no_such_kernels"}
    assert versions["pytest"] == pytest.__version__
    assert versions["no_such_kernels"] == ""
