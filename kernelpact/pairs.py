"""Kernel pairs: K_train and K_inf of one operator, as values, and the registry that holds them."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["KernelPair", "PairError", "Registry", "load_pairs", "register_pair", "registry"]

DTYPES = ("float64", "float32", "bfloat16", "float16")
DEVICES = ("cpu", "cuda")


class PairError(ValueError):
    """A pair, or the module that registers it, is at fault. The message says where and what is allowed."""


@dataclass(frozen=True)
class KernelPair:
    """K_train and K_inf of one operator.

    Both are called with keyword arguments named as the operator's inputs and return a tensor or a dict of
    outputs; `train` may be differentiated.

    name: unique, `operator/variant`. op: names the operator, whose input strategy and oracle are found by it.
    domain: optional narrowing of the operator's input domain, e.g. {"hidden": (1, 8192)}.
    edges: sizes at which the kernel changes its path, drawn around, e.g. {"kv_len": (16, 64)}.
    requires: importable packages without which the pair is skipped, named and counted.

    Errors: PairError for a bad name, dtype, device or callable.
    """

    name: str
    op: str
    train: Callable[..., Any]
    inf: Callable[..., Any]
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    devices: tuple[str, ...] = ("cpu", "cuda")
    domain: Mapping[str, Any] = field(default_factory=dict)
    edges: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    requires: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or self.name.count("/") != 1 or not all(self.name.split("/")):
            raise PairError(f"pair name {self.name!r}: expected `operator/variant`, e.g. 'rms_norm/triton'")
        for side in ("train", "inf"):
            if not callable(getattr(self, side)):
                raise PairError(f"pair {self.name}: {side} is {getattr(self, side)!r}, expected a callable")
        for what, given, allowed in (("dtypes", self.dtypes, DTYPES), ("devices", self.devices, DEVICES)):
            unknown = [value for value in given if value not in allowed]
            if isinstance(given, str) or not given or unknown:
                raise PairError(
                    f"pair {self.name}: {what}={given!r}, allowed: a non-empty tuple of {allowed}"
                )
        if isinstance(self.requires, str):
            raise PairError(
                f"pair {self.name}: requires={self.requires!r}, allowed: a tuple of package names"
            )

    def missing(self) -> tuple[str, ...]:
        """Name the packages of `requires` that cannot be found here."""
        return tuple(name for name in self.requires if not _importable(name))

    def fingerprint(self) -> dict[str, Any]:
        """Identify the code that is judged: source hash of each side, and versions of what it stands on."""
        versions = {name: _version(name) for name in ("torch", "triton", "numpy", *self.requires)}
        return {"train": _source_hash(self.train), "inf": _source_hash(self.inf), "versions": versions}


class Registry:
    """Pairs by name, each with the file that registered it."""

    def __init__(self) -> None:
        self._pairs: dict[str, KernelPair] = {}
        self._where: dict[str, str] = {}

    def add(self, pair: KernelPair, where: str) -> KernelPair:
        """Add a pair. Errors: PairError if the name is taken."""
        if pair.name in self._pairs:
            raise PairError(
                f"{where}: pair {pair.name!r} is already registered at {self._where[pair.name]}; names are unique"
            )
        self._pairs[pair.name] = pair
        self._where[pair.name] = where
        return pair

    def __iter__(self) -> Iterator[KernelPair]:
        return iter(sorted(self._pairs.values(), key=lambda pair: pair.name))

    def __getitem__(self, name: str) -> KernelPair:
        return self._pairs[name]

    def __contains__(self, name: object) -> bool:
        return name in self._pairs

    def __len__(self) -> int:
        return len(self._pairs)

    def where(self, name: str) -> str:
        """Give `file:line` of the registration."""
        return self._where[name]

    @contextmanager
    def isolated(self) -> Iterator[Registry]:
        """Start empty inside the block and put the pairs back after it."""
        saved = self._pairs, self._where
        self._pairs, self._where = {}, {}
        try:
            yield self
        finally:
            self._pairs, self._where = saved


registry = Registry()


def register_pair(pair: KernelPair) -> KernelPair:
    """Register a pair, so that contracts can name it. Errors: PairError if it is none, or its name is taken."""
    if not isinstance(pair, KernelPair):
        raise PairError(f"register_pair takes a KernelPair, found {type(pair).__name__}")
    caller = inspect.stack(context=0)[1]
    return registry.add(pair, f"{caller.filename}:{caller.lineno}")


def load_pairs(source: str | Path) -> None:
    """Import pairs from a folder (every module in it), a file, or a module by name.

    A pair module is code and is run as code. Errors: PairError naming the module, and what it raised.
    """
    path = Path(source)
    if path.is_dir():
        files = sorted(file for file in path.glob("*.py") if not file.name.startswith("_"))
        if not files:
            raise PairError(f"{path}: no pair modules (*.py) in this folder")
        for file in files:
            _import_file(file)
    elif path.suffix == ".py":
        if not path.is_file():
            raise PairError(f"{path}: no such file")
        _import_file(path)
    else:
        _import(str(source), lambda: importlib.import_module(str(source)))


def _import_file(path: Path) -> ModuleType:
    path = path.resolve()
    for module in list(sys.modules.values()):
        if (getattr(module, "__file__", None) or "") == str(path):
            return module
    package = path.parent / "__init__.py"
    if package.is_file():  # part of a package: import it by name, so that its relative imports work
        root = path.parent
        while (root / "__init__.py").is_file():
            root = root.parent
        if str(root) not in sys.path:
            sys.path.insert(0, str(root))
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        return _import(str(path), lambda: importlib.import_module(name))
    name = f"kernelpact_pairs_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    return _import(str(path), lambda: _execute(name, path))


def _execute(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PairError(f"{path}: not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import(what: str, load: Callable[[], ModuleType]) -> ModuleType:
    try:
        return load()
    except PairError:
        raise
    except (Exception, SystemExit) as error:  # a module that exits with 0 would end the run as a pass
        line = _line_in(what, error)
        raise PairError(f"{what}{line}: cannot import pairs: {type(error).__name__}: {error}") from error


def _line_in(what: str, error: BaseException) -> str:
    lines = (
        [frame.lineno for frame in inspect.getinnerframes(error.__traceback__) if frame.filename == what]
        if (error.__traceback__)
        else []
    )
    return f":{lines[-1]}" if lines else ""


def _source_hash(function: Callable[..., Any]) -> str:
    """Hash the source of the module that holds `function`: a kernel is more than its entry point."""
    target = inspect.unwrap(getattr(function, "func", function))
    try:
        source = inspect.getsource(inspect.getmodule(target) or target)
    except (OSError, TypeError):
        # Nothing to read: a built-in. Its name, and no address, so that equal runs give equal evidence.
        source = f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', type(target).__qualname__)}"
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of a parent package
        return False


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
