"""YAML 1.2, read safely: plain data with the position of every node, within stated limits.

No tag builds anything but plain data. Limits: 1 MiB of UTF-8, one document, 32 levels, 20,000 nodes after aliases are
followed, keys that are strings and occur once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent, DocumentStartEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from kernelpact.dsl.errors import ContractError, Problem, shorten

__all__ = ["MAX_BYTES", "MAX_DEPTH", "MAX_NODES", "Document", "parse", "read"]

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 20_000

_LONG_TAG = re.compile(r"[!%]\S{200}")  # ruamel.yaml decodes tags in quadratic time
_PLAIN = "tag:yaml.org,2002:"
_SCALARS = {"str", "int", "float", "bool", "null"}

Position = tuple[int, int]
Loc = tuple[str | int, ...]


@dataclass
class Document:
    """Plain data, and the line and column (from 1) of every node by its path of keys."""

    path: str
    data: Any = None
    lines: dict[Loc, Position] = field(default_factory=dict)


def read(path: Path) -> Document:
    """Read a file. Errors: ContractError."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise _error(str(path), f"the file has {size} bytes, allowed are {MAX_BYTES}")
        with path.open("rb") as stream:  # no more than that, whatever `stat` said: a device has size 0
            text = stream.read(MAX_BYTES + 1).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _error(
            str(path), f"not UTF-8: byte {error.start} is {error.object[error.start]:#04x}"
        ) from error
    except OSError as error:
        raise _error(str(path), f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        if isinstance(error, ContractError):
            raise
        # a NUL in the path
        raise _error(repr(str(path)), f"cannot be read: {error}") from error
    return parse(text, str(path))


def parse(text: str, path: str = "<text>") -> Document:
    """Parse YAML text. Errors: ContractError."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise _error(path, f"the text has more than {MAX_BYTES} bytes")
    yaml = YAML(typ="safe", pure=True)
    try:
        _check_events(text, path)
        yaml.composer.warn_double_anchors = False  # legal: the last one holds
        roots = list(yaml.compose_all(text))
    except ContractError:
        raise
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise _error(path, f"not YAML: {error.problem or error.context}", line, column) from error
    except (YAMLError, RecursionError, ValueError, IndexError, AttributeError, TypeError) as error:
        message = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _error(path, f"not YAML: {message}") from error
    if len(roots) != 1 or roots[0] is None:
        raise _error(path, f"found {len(roots) if roots != [None] else 0} YAML documents, expected one")
    return _Builder(yaml, path).build(roots[0])


def _check_events(text: str, path: str) -> None:
    """Refuse what is too deep or too long, or another YAML, before anything is built or recursed into."""
    if found := _LONG_TAG.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise _error(path, "more than 200 characters without a space after `!` or `%`", line)
    depth = 0
    for count, event in enumerate(_events(text)):
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        if depth > MAX_DEPTH:
            raise _error(path, f"nested deeper than {MAX_DEPTH} levels", line, column)
        if count > 2 * MAX_NODES:
            raise _error(path, f"more than {MAX_NODES} nodes", line, column)
        version = event.version if isinstance(event, DocumentStartEvent) else None
        if version not in (None, (1, 2)):
            raise _error(path, f"YAML {'.'.join(map(str, version or ()))}; allowed: 1.2", line, column)


def _events(text: str) -> Iterator[Any]:
    yield from YAML(typ="safe", pure=True).parse(text)


def _error(path: str, message: str, line: int = 1, column: int = 1) -> ContractError:
    return ContractError([Problem(path, line, column, message)])


class _Builder:
    def __init__(self, yaml: YAML, path: str) -> None:
        self.constructor = yaml.constructor
        self.document = Document(path)
        self.problems: list[Problem] = []
        self.count = 0

    def build(self, root: Node) -> Document:
        self.document.data = self._value(root, ())
        if self.problems:
            raise ContractError(self.problems)
        return self.document

    def _problem(self, node: Node, message: str) -> None:
        line, column = _position(node)
        self.problems.append(Problem(self.document.path, line, column, message))

    def _value(self, node: Node, loc: Loc) -> Any:
        self.count += 1
        if self.count > MAX_NODES:
            raise _error(
                self.document.path, f"more than {MAX_NODES} nodes once aliases are followed", *_position(node)
            )
        if len(loc) > MAX_DEPTH:
            raise _error(self.document.path, f"nested deeper than {MAX_DEPTH} levels", *_position(node))
        self.document.lines[loc] = _position(node)
        if isinstance(node, MappingNode):
            return self._mapping(node, loc)
        if isinstance(node, SequenceNode):
            self._plain(node, "seq")
            return [self._value(child, (*loc, index)) for index, child in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: MappingNode, loc: Loc) -> dict[str, Any]:
        self._plain(node, "map")
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if str(key_node.tag) == _PLAIN + "merge":
                self._problem(key_node, "`<<` is not YAML 1.2: repeat the keys, or alias the whole mapping")
                continue
            key = self._scalar(key_node) if isinstance(key_node, ScalarNode) else None
            if not isinstance(key, str):
                found_key = repr(key_node.value) if isinstance(key_node, ScalarNode) else "not a scalar"
                self._problem(key_node, f"a key is {shorten(found_key)}: keys are strings")
            elif key in found:
                self._problem(key_node, f"key {key!r} occurs twice")
            else:
                found[key] = self._value(value_node, (*loc, key))
                self.document.lines[(*loc, key)] = _position(key_node)
        return found

    def _plain(self, node: Node, kind: str) -> None:
        if str(node.tag) != _PLAIN + kind:
            self._problem(node, f"tag {shorten(str(node.tag))} is not allowed: plain data only")

    def _scalar(self, node: Node) -> Any:
        kind = str(node.tag).removeprefix(_PLAIN)
        if kind == "timestamp":
            return str(node.value)  # a date is a string here
        if not isinstance(node, ScalarNode) or kind not in _SCALARS:
            self._problem(node, f"tag {shorten(str(node.tag))} is not allowed: plain data only")
            return None
        if kind == "str":
            return str(node.value)
        try:
            return self.constructor.construct_object(node, deep=True)
        except (YAMLError, ValueError, OverflowError) as error:
            self._problem(node, f"{shorten(repr(node.value))} is not a {kind}: {str(error)[:100]}")
            return None


def _position(node: Node) -> Position:
    return node.start_mark.line + 1, node.start_mark.column + 1
