"""Slice predicates: comparisons over a token's columns, parsed into a frozen tree; never evaluated as code.

predicate  = conjunction ("or" conjunction)*
conjunction = term ("and" term)*
term       = "not" term | "(" predicate ")" | column operator value | column "in" "[" value ("," value)* "]"
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelpact.dsl.errors import hint

__all__ = [
    "COLUMNS",
    "Comparison",
    "Logical",
    "Membership",
    "Not",
    "Predicate",
    "SliceError",
    "columns_of",
    "parse",
]

COLUMNS = (
    "run", "step", "sequence_id", "position", "token_id", "logp_inf", "logp_train", "loss_mask", "token_source",
    "policy_version", "entropy", "batch_size", "kv_len", "hardware", "length", "chunk",
)  # fmt: skip
MAX_LENGTH, MAX_DEPTH = 1000, 32

_OPERATORS: dict[str, Any] = {
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal,
}  # fmt: skip
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<word>[A-Za-z_]\w*)"
    r"|'(?P<single>[^'\\]*)'|\"(?P<double>[^\"\\]*)\"|(?P<mark><=|>=|==|!=|[<>()\[\],]))"
)


class SliceError(ValueError):
    """A predicate cannot be parsed; the message says where, what was found and what is allowed."""


@dataclass(frozen=True)
class Comparison:
    """`column operator value`."""

    column: str
    operator: str
    value: float | str

    def evaluate(self, columns: Mapping[str, Any]) -> Any:
        """Compare, elementwise over arrays; NaN satisfies nothing but `!=`."""
        return _OPERATORS[self.operator](_column(columns, self.column, self.value), self.value)

    def __str__(self) -> str:
        return f"{self.column} {self.operator} {_show(self.value)}"


@dataclass(frozen=True)
class Membership:
    """`column in [values]`."""

    column: str
    values: tuple[float | str, ...]

    def evaluate(self, columns: Mapping[str, Any]) -> Any:
        """Tell which elements are among the values."""
        return np.isin(_column(columns, self.column, self.values[0]), np.array(self.values))

    def __str__(self) -> str:
        return f"{self.column} in [{', '.join(map(_show, self.values))}]"


@dataclass(frozen=True)
class Not:
    """`not term`."""

    term: Predicate

    def evaluate(self, columns: Mapping[str, Any]) -> Any:
        """Negate, elementwise."""
        return np.logical_not(self.term.evaluate(columns))

    def __str__(self) -> str:
        return f"not ({self.term})" if isinstance(self.term, Logical) else f"not {self.term}"


@dataclass(frozen=True)
class Logical:
    """`term and term …`, or with `or`."""

    operator: str
    terms: tuple[Predicate, ...]

    def evaluate(self, columns: Mapping[str, Any]) -> Any:
        """Combine, elementwise."""
        combine = np.logical_and if self.operator == "and" else np.logical_or
        result = self.terms[0].evaluate(columns)
        for term in self.terms[1:]:
            result = combine(result, term.evaluate(columns))
        return result

    def __str__(self) -> str:
        return f" {self.operator} ".join(
            f"({term})" if isinstance(term, Logical) else str(term) for term in self.terms
        )


Predicate = Comparison | Membership | Not | Logical


def _column(columns: Mapping[str, Any], name: str, value: float | str) -> Any:
    """Give a column that can be compared with `value`. Errors: SliceError."""
    if name not in columns:
        raise SliceError(f"no column {name!r} in these data; found: {', '.join(columns) or 'none'}")
    array = np.asarray(columns[name])
    wanted = "UT" if isinstance(value, str) else "biuf"
    if array.dtype.kind not in wanted:
        kind = "strings" if isinstance(value, str) else "numbers"
        raise SliceError(f"column {name!r} has dtype {array.dtype}; {_show(value)} compares with {kind}")
    return array


def _show(value: float | str) -> str:
    if isinstance(value, str):
        return f'"{value}"' if "'" in value else f"'{value}'"
    return repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def parse(text: str) -> Predicate:
    """Parse a predicate. Errors: SliceError."""
    if len(text) > MAX_LENGTH:
        raise SliceError(f"the predicate has {len(text)} characters, allowed are {MAX_LENGTH}")
    return _Parser(text).parse()


def columns_of(predicate: Predicate) -> frozenset[str]:
    """Name the columns that a predicate reads."""
    if isinstance(predicate, Comparison | Membership):
        return frozenset([predicate.column])
    terms = (predicate.term,) if isinstance(predicate, Not) else predicate.terms
    return frozenset().union(*map(columns_of, terms))


@dataclass(frozen=True)
class _Token:
    kind: str
    value: Any
    place: int


def _tokens(text: str) -> Iterator[_Token]:
    place = 0
    while text[place:].strip():
        found = _TOKEN.match(text, place)
        if found is None:
            at = len(text) - len(text[place:].lstrip())
            raise SliceError(f"character {at + 1}: {text[at]!r} belongs to no predicate")
        kind = str(found.lastgroup)
        yield _Token(kind, found[kind], found.start(kind))
        place = found.end()
    yield _Token("end", "the end", len(text))


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens = list(_tokens(text))
        self.at = 0
        self.depth = 0

    def parse(self) -> Predicate:
        predicate = self._logical("or")
        if self._token.kind != "end":
            raise self._error("`and`, `or` or the end")
        return predicate

    @property
    def _token(self) -> _Token:
        return self.tokens[self.at]

    def _error(self, allowed: str) -> SliceError:
        return SliceError(
            f"character {self._token.place + 1}: found {self._token.value!r}, expected {allowed}"
        )

    def _take(self, *values: str) -> bool:
        if self._token.kind in ("word", "mark") and self._token.value in values:
            self.at += 1
            return True
        return False

    def _logical(self, operator: str) -> Predicate:
        terms = [self._operand(operator)]
        while self._take(operator):
            terms.append(self._operand(operator))
        return terms[0] if len(terms) == 1 else Logical(operator, tuple(terms))

    def _operand(self, operator: str) -> Predicate:
        return self._logical("and") if operator == "or" else self._term()

    def _term(self) -> Predicate:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise SliceError(f"nested deeper than {MAX_DEPTH} levels")
        try:
            if self._take("not"):
                return Not(self._term())
            if self._take("("):
                inside = self._logical("or")
                if not self._take(")"):
                    raise self._error("`)`")
                return inside
            return self._comparison()
        finally:
            self.depth -= 1

    def _comparison(self) -> Predicate:
        if self._token.kind != "word" or self._token.value in ("and", "or", "in"):
            raise self._error("a column, `not` or `(`")
        column = str(self._token.value)
        if column not in COLUMNS:
            raise SliceError(
                f"unknown column {column!r}; allowed: {', '.join(COLUMNS)}{hint(column, COLUMNS)}"
            )
        self.at += 1
        if self._take("in"):
            return Membership(column, self._list())
        operator = str(self._token.value)
        if self._token.kind != "mark" or operator not in _OPERATORS:
            raise self._error(f"one of {', '.join(_OPERATORS)}, in")
        self.at += 1
        return Comparison(column, operator, self._literal())

    def _list(self) -> tuple[float | str, ...]:
        if not self._take("["):
            raise self._error("`[`")
        values = [self._literal()]
        while self._take(","):
            values.append(self._literal())
        if not self._take("]"):
            raise self._error("`,` or `]`")
        if len({type(value) for value in values}) > 1:
            raise SliceError("a list mixes numbers and strings: one kind only")
        return tuple(values)

    def _literal(self) -> float | str:
        token = self._token
        if token.kind not in ("number", "single", "double"):
            raise self._error("a number or a quoted string")
        self.at += 1
        if token.kind != "number":
            return str(token.value)
        value = float(token.value)
        if not math.isfinite(value):
            raise SliceError(f"{token.value} is not a finite number")
        return value
