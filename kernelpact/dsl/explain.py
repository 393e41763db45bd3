"""Turns what the model says of a contract into errors with a place, what was found and what is allowed."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from kernelpact.contract import Contract, Dtype
from kernelpact.dsl.errors import Problem, hint, shorten
from kernelpact.dsl.yaml import Document, Loc

__all__ = ["explain", "keys_at"]

_LIMIT = "a number ≥ 0, or a mapping from dtype (and then from hardware) to one"
_LIMITED = {"max", "min"}
_SAID = {
    "tuple_type": "a list",
    "model_type": "a mapping of keys",
    "dict_type": "a mapping of keys",
    "too_short": "at least one entry",
}


def explain(error: ValidationError, document: Document) -> Iterator[Problem]:
    """Give one problem for each place at fault; a union that fails in several ways is one problem."""
    located = [(_real(details["loc"], document), details) for details in error.errors()]
    locs = {loc for loc, _ in located}
    seen: set[Loc] = set()
    for loc, details in located:
        if loc in seen and details["type"] != "extra_forbidden":
            continue
        if _limit_at(loc) and any(len(other) > len(loc) and other[: len(loc)] == loc for other in locs):
            continue  # a mapping is a fine limit: what is wrong is inside it
        seen.add(loc)
        line, column = _place(loc, document)
        yield Problem(document.path, line, column, _message(details, loc))


def _real(loc: tuple[str | int, ...], document: Document) -> Loc:
    """Drop what pydantic adds to a location (names of union branches) and keep the path of keys."""
    real: list[str | int] = []
    for part in loc:
        if (*real, part) in document.lines:
            real.append(part)
    limit = next((i for i, part in enumerate(real) if part in _LIMITED), None)
    if limit is None and loc and loc[-1] not in real and isinstance(loc[-1], str):
        return (*real, loc[-1])  # a key that is missing
    return tuple(real)


def _place(loc: Loc, document: Document) -> tuple[int, int]:
    while loc not in document.lines and loc:
        loc = loc[:-1]
    return document.lines.get(loc, (1, 1))


def _message(details: Any, loc: Loc) -> str:
    kind, found = details["type"], details.get("input")
    name = ".".join(map(str, loc)) or "the contract"
    if kind == "missing":
        return f"{name} is missing"
    if kind == "extra_forbidden":
        allowed = keys_at(loc[:-1])
        return f"unknown key {loc[-1]!r}; allowed: {', '.join(allowed)}{hint(str(loc[-1]), allowed)}"
    if details["loc"][-1] == "[key]":
        allowed = list(get_args(Dtype)) if kind == "literal_error" else []
        said = ", ".join(allowed) or f"{details['msg'][0].lower()}{details['msg'][1:]}"
        return f"{name}: unknown key {shorten(repr(found))}; allowed: {said}{hint(str(found), allowed)}"
    if _limit_at(loc) and kind != "value_error":
        inner = len(loc) - next(i for i, part in enumerate(loc) if part in _LIMITED) - 1
        said = "a number ≥ 0" if loc[0] == "derived" or inner > 1 else _LIMIT
        return f"{name} is {shorten(repr(found))}; allowed: {said}"
    if kind == "literal_error":
        allowed = [word.strip("' ") for word in details["ctx"]["expected"].replace(" or ", ", ").split(", ")]
        return f"{name} is {shorten(repr(found))}; allowed: {', '.join(allowed)}{hint(str(found), allowed)}"
    if kind == "value_error":
        return f"{name}: {details['ctx']['error']}"
    if kind == "string_pattern_mismatch" and "hardware" in loc:
        return (
            f"{name} is {shorten(repr(found))}; allowed: cpu, sm_90, gfx942 and the like, or a glob of them"
        )
    said = f"allowed: {_SAID[kind]}" if kind in _SAID else f"{details['msg'][0].lower()}{details['msg'][1:]}"
    return f"{name} is {shorten(repr(found))}; {said}"


def _limit_at(loc: Loc) -> bool:
    """Whether a place is a clause's limit, or inside one."""
    return loc[:1] in [("numerical",), ("derived",), ("statistical",)] and any(
        part in _LIMITED for part in loc
    )


def keys_at(loc: Loc) -> list[str]:
    """List the keys that the model allows at a place."""
    model: Any = Contract
    for part in loc:
        if isinstance(part, str) and isinstance(model, type) and issubclass(model, BaseModel):
            by_alias = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
            model = _model_in(by_alias.get(part))
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return []
    return [field.alias or name for name, field in model.model_fields.items() if not field.exclude]


def _model_in(annotation: Any) -> Any:
    """Find the model inside an annotation such as `tuple[Model, ...]` or `Model | None`."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation
    for argument in get_args(annotation) if get_origin(annotation) in (tuple, Union, types.UnionType) else ():
        found = _model_in(argument)
        if isinstance(found, type) and issubclass(found, BaseModel):
            return found
    return None
