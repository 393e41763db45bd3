"""What a run says to a person: failure blocks, the table of clauses, the closing lines."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelpact.evidence import Item, Result
from kernelpact.verdict import Verdict

__all__ = ["closing", "failure", "table"]

_ORDER = {"VIOLATED": 0, "ERROR": 1, "INCONCLUSIVE": 2, "HOLDS": 3}
_HEADER = ("pair", "clause", "dtype", "observed", "allowed", "margin", "examples", "verdict")


def failure(item: Item, result: Result, replay_options: str = "") -> str:
    """Write one promise that does not hold: what, by how much, where, on what input, how to see it again."""
    path = _short(item.path)
    lines = [
        f"{result.verdict}  "
        + " · ".join((item.contract, result.clause, item.pair, item.dtype, item.hardware))
    ]
    rule = f"{path}:{result.line}" + (f', "{result.why}"' if result.why else "")
    if result.observed is not None:
        values = f" ({result.candidate} against {result.reference})" if result.candidate else ""
        lines.append(f"  observed  {_figure(result.observed)} at {result.where or 'the whole'}{values}")
        floor = "at least " if result.higher_is_better else ""
        lines.append(f"  allowed   {floor}{_figure(result.allowed)} ({rule})")
    if result.bound is not None:
        lines.append(f"  bound     {_figure(result.bound)} at the measured drift")
    if result.reason:
        lines.append(f"  reason    {result.reason}" + ("" if result.observed is not None else f" ({rule})"))
    if result.counterexample is not None:
        shrunk = result.counterexample.shrunk_from
        lines.append(
            f"  input     {result.counterexample.text}" + (f"   (shrunk from {shrunk})" if shrunk else "")
        )
        token = result.counterexample.token
        lines.append(f"  replay    pytest --contract={path}{replay_options} --contract-replay={token}")
    return "\n".join(lines)


def table(items: Sequence[Mapping[str, Any]], *, each_dtype: bool = False) -> list[str]:
    """Lay out the clauses, a row each; of several dtypes the one with the least margin, unless `each_dtype`."""
    chosen: dict[tuple[str, ...], tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
    for item in items:
        for result in item["results"]:
            key: tuple[str, ...] = (
                item["pair"],
                item["contract"],
                item["relation"],
                result["clause"],
                str(result["line"]),
            )
            key += (item["dtype"],) if each_dtype else ()
            if key not in chosen or _rank(result) < _rank(chosen[key][1]):
                chosen[key] = (item, result)
    rows = [_HEADER, *(_row(*chosen[key]) for key in sorted(chosen))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return ["  ".join(row).rstrip() for row in padded]


def closing(items: Sequence[Mapping[str, Any]], cells: Sequence[str]) -> Iterator[str]:
    """Count the verdicts, give each reason for INCONCLUSIVE once, and name the cells never run."""
    results = [result for item in items for result in item["results"]]
    counts = Counter(result["verdict"] for result in results)
    yield ""
    yield "clauses: " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in _ORDER if counts[verdict])
    reasons = Counter(result["reason"] for result in results if result["verdict"] == Verdict.INCONCLUSIVE)
    for reason, count in sorted(reasons.items()):
        yield f"INCONCLUSIVE × {count}: {reason}"
    if cells:
        yield f"unproven (never run here): {', '.join(cells)}"


def _rank(result: Mapping[str, Any]) -> tuple[int, float]:
    margin = result["margin"]
    return _ORDER[result["verdict"]], float("inf") if margin is None else float(margin)


def _row(item: Mapping[str, Any], result: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        item["pair"],
        result["clause"],
        item["dtype"],
        _figure(result["observed"]),
        _figure(result["allowed"]),
        _margin(result["margin"]),
        str(result["examples"]),
        result["verdict"],
    )


def _margin(margin: Any) -> str:
    if margin is None:
        return "-"
    return f"{float(margin):.0%}" if float(margin) >= -1 else f"{-float(margin):.3g}x over"


def _figure(value: Any) -> str:
    return "-" if value is None else f"{float(value):.3g}"


def _short(path: str) -> str:
    """Give a path relative to the working folder where it lies below it."""
    absolute = Path(path).absolute()
    return os.path.relpath(absolute) if absolute.is_relative_to(Path.cwd()) else path
