"""The contract DSL: YAML in, frozen contracts out, and errors that say where and what is allowed."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernelpact.contract import Contract, Origin
from kernelpact.dsl.checks import check
from kernelpact.dsl.errors import ContractError, Problem, hint
from kernelpact.dsl.explain import explain, keys_at
from kernelpact.dsl.yaml import Document, parse, read
from kernelpact.suite_root import suite_root

__all__ = ["ContractError", "Problem", "find_contracts", "load_contract", "load_contracts", "parse_contract"]

SUFFIXES = (".yaml", ".yml")


def load_contract(source: str | Path) -> Contract:
    """Load one contract: a file, or YAML text, which is a `str` of several lines.

    Errors: ContractError, listing all that is wrong with it.
    """
    if isinstance(source, str) and "\n" in source:
        return parse_contract(source)
    return _contract(read(Path(source)))


def parse_contract(text: str, path: str = "<text>") -> Contract:
    """Load a contract from YAML text. Errors: ContractError."""
    return _contract(parse(text, path))


def load_contracts(asked: str | Path) -> list[Contract]:
    """Load the contracts of a file, a folder, a glob, or a name.

    A name is looked up among the suite's own contracts. Errors: ContractError, listing the problems of all files.
    """
    return _load_all(find_contracts(asked), str(asked))


def find_contracts(asked: str | Path) -> list[Path]:
    """Find the files that `asked` means: a file, a folder, a glob, or the name of a shipped contract."""
    path = Path(asked)
    try:
        return _files(path, str(asked))
    except (OSError, ValueError) as error:
        if isinstance(error, ContractError):
            raise
        raise _error(repr(str(asked)), f"cannot be looked up: {error}") from error


def _files(path: Path, asked: str) -> list[Path]:
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
        if not files:
            raise _error(str(path), f"no contracts (*{', *'.join(SUFFIXES)}) in this folder")
        return files
    if path.exists():
        return [path]
    if not glob.has_magic(asked):
        return [_by_name(asked)]
    found = [file for file in map(Path, glob.glob(asked, recursive=True)) if file.suffix in SUFFIXES]
    if not found:
        raise _error(asked, f"no such file: no contract (*{', *'.join(SUFFIXES)}) matches")
    return sorted(found)


def _by_name(name: str) -> Path:
    if Path(name).suffix in SUFFIXES or "/" in name:
        raise _error(name, "no such file")
    folder = suite_root() / "contracts"
    known: dict[str, Path] = {}
    for file in sorted(folder.glob("*.yaml")) if folder.is_dir() else []:
        known[load_contract(file).contract] = file
        known.setdefault(file.stem, file)
    if name not in known:
        names = sorted({load_contract(file).contract for file in set(known.values())})
        raise _error(
            name, f"no file, and no contract of this name; shipped: {', '.join(names)}{hint(name, known)}"
        )
    return known[name]


def _load_all(files: Iterable[Path], asked: str) -> list[Contract]:
    loaded: dict[str, Contract] = {}
    problems: list[Problem] = []
    for file in files:
        try:
            contract = load_contract(file)
        except ContractError as error:
            problems.extend(error.problems)
            continue
        if contract.contract in loaded:
            other = loaded[contract.contract].origin.path
            line = contract.origin.line("contract")
            problems.append(Problem(str(file), line, 1, f"contract {contract.contract!r} is also in {other}"))
        loaded[contract.contract] = contract
    if problems:
        raise ContractError(problems)
    if not loaded:
        raise _error(asked, "no contracts found")
    return list(loaded.values())


def _contract(document: Document) -> Contract:
    if not isinstance(document.data, dict):
        raise _error(document.path, f"a contract is a mapping, found {type(document.data).__name__}")
    data: dict[str, Any] = {key: value for key, value in document.data.items() if key != "origin"}
    extra = [key for key in document.data if key == "origin"]
    origin = Origin(document.path, document.lines)
    try:
        contract = Contract.model_validate(data, strict=False)
    except ValidationError as error:
        raise ContractError([*explain(error, document), *_unknown(extra, document)]) from None
    problems = [*check(contract, document), *_unknown(extra, document)]
    if problems:
        raise ContractError(problems)
    return contract.model_copy(update={"origin": origin})


def _unknown(keys: Iterable[str], document: Document) -> Iterator[Problem]:
    for key in keys:
        line, column = document.lines[(key,)]
        yield Problem(document.path, line, column, f"unknown key {key!r}; allowed: {', '.join(keys_at(()))}")


def _error(path: str, message: str) -> ContractError:
    return ContractError([Problem(path, 1, 1, message)])
