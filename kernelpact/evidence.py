"""Evidence: what was measured of each clause, as immutable JSON.

Same inputs, same record, apart from times. `SCHEMA` grows when a reader of old records would misread new ones.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kernelpact.verdict import Verdict

__all__ = [
    "SCHEMA",
    "Counterexample",
    "Item",
    "Result",
    "encode",
    "known_tokens",
    "load_counterexample",
    "write_json",
]

SCHEMA = 1


@dataclass(frozen=True)
class Counterexample:
    """A failing input, shrunk.

    recipe: builds the input. text: the recipe for people. shrunk_from: the input as first found.
    domain: what the inputs were drawn from; None in records that do not say.
    """

    contract: str
    pair: str
    dtype: str
    device: str
    relation: str
    clause: str
    recipe: Mapping[str, Any]
    text: str
    shrunk_from: str = ""
    domain: Mapping[str, Any] | None = None

    @property
    def token(self) -> str:
        """Name the counterexample by what it is: 8 hex digits."""
        identity = asdict(self)
        del identity["shrunk_from"], identity["text"], identity["domain"]
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]

    def save(self, folder: Path) -> None:
        """Keep the counterexample in `folder`, under its token."""
        write_json(folder / f"{self.token}.json", asdict(self))


def load_counterexample(path: Path) -> Counterexample | None:
    """Read a counterexample; None where the file is not one (of another version, or cut short)."""
    try:
        return Counterexample(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def known_tokens(folder: Path) -> list[str]:
    """List the tokens kept in `folder`."""
    return sorted(path.stem for path in folder.glob("*.json"))


@dataclass(frozen=True)
class Result:
    """What the evidence says of one clause for one pair, dtype and device.

    observed, allowed, bound: in the clause's unit; the worst over `examples` inputs. margin: the share of the
    limit that is left; negative when violated. where: the output and index. line: of the clause in its file.
    """

    clause: str
    family: str
    metric: str
    severity: str
    verdict: Verdict
    why: str
    line: int
    observed: float | None = None
    allowed: float | None = None
    bound: float | None = None
    higher_is_better: bool = False
    where: str = ""
    examples: int = 0
    reason: str = ""
    candidate: str = ""
    reference: str = ""
    counterexample: Counterexample | None = None

    @property
    def margin(self) -> float | None:
        """Give the share of the limit that is left: 1 untouched, 0 at the limit, negative beyond."""
        if self.observed is None or self.allowed is None:
            return None
        room = self.observed - self.allowed if self.higher_is_better else self.allowed - self.observed
        if self.allowed == 0:
            return 0.0 if room == 0 else math.copysign(math.inf, room)
        return room / self.allowed


@dataclass(frozen=True)
class Item:
    """The results of one test item: contract × pair × dtype × device × relation."""

    id: str
    contract: str
    contract_hash: str
    path: str
    pair: str
    dtype: str
    device: str
    hardware: str
    relation: str
    fingerprint: Mapping[str, Any]
    seed: int
    results: Sequence[Result] = field(default=())
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """The worst of the results; of none, INCONCLUSIVE."""
        return Verdict.worst(result.verdict for result in self.results)


def encode(value: Any) -> Any:
    """Turn evidence into plain JSON values; non-finite numbers become the strings "inf", "-inf", "nan"."""
    if isinstance(value, Item | Result | Counterexample):
        plain = {name: getattr(value, name) for name in value.__dataclass_fields__}
        derived = {Item: ("verdict",), Result: ("margin",), Counterexample: ("token",)}[type(value)]
        return encode(plain | {name: getattr(value, name) for name in derived})
    if isinstance(value, Mapping):
        return {str(key): encode(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [encode(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return str(value) if isinstance(value, Verdict) else value


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees the old file or the new one, never a part. Errors: OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(encode(value), file, indent=1, allow_nan=False)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
