"""Contract errors: where, what was found, what is allowed; all of a file's at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

__all__ = ["ContractError", "Problem", "hint", "shorten"]


@dataclass(frozen=True, order=True)
class Problem:
    """One thing wrong with a contract. line, column: from 1."""

    path: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.message}"


class ContractError(ValueError):
    """A contract cannot be used. `problems` lists all that is wrong with it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: Sequence[Problem] = tuple(sorted(set(problems)))
        super().__init__("\n".join(map(str, self.problems)))


def shorten(text: str) -> str:
    """Give the text, or its beginning where it would fill the screen."""
    return text if len(text) <= 60 else text[:57] + "..."


def hint(found: str, allowed: Iterable[str]) -> str:
    """Give `; did you mean 'x'?` for the nearest spelling, or nothing."""
    close = get_close_matches(found, list(allowed), 1)
    return f"; did you mean {close[0]!r}?" if close else ""
