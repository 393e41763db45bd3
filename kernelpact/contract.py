"""The contract model: C = (N, S, R, O, Π) as frozen values. `kernelpact.dsl` reads them from YAML."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    StringConstraints,
    model_validator,
)
from pydantic_core import PydanticCustomError

__all__ = [
    "Assumptions",
    "Contract",
    "DerivedBudget",
    "Limit",
    "NumericalClause",
    "Observability",
    "Origin",
    "PolicyRule",
    "RuntimeClause",
    "Scope",
    "StatisticalClause",
]

Dtype = Literal["float64", "float32", "bfloat16", "float16"]
Relation = Literal["parity", "accuracy", "invariance", "gradient", "policy"]
NumericalMetric = Literal[
    "max_abs", "max_rel", "rel_rms", "ulp", "cosine", "sqnr_db", "bitwise", "error_ratio", "logit_drift",
    "logit_drift_rms", "head_drift", "nonfinite",
]  # fmt: skip
Transformation = Literal["batch", "permutation", "padding", "chunking", "pages", "repeat"]
StatisticalMetric = Literal[
    "tv", "kl", "reverse_kl", "js", "hellinger", "chi2", "ess", "ratio", "dlogp", "top1_agreement",
    "entropy_shift", "calibration_drift", "reward_drift",
]  # fmt: skip
RuntimeMetric = Literal["latency", "throughput", "peak_memory", "compile_time"]
Action = Literal["log", "alert", "sample_more", "hold", "reroute", "quarantine", "rollback"]
Family = Literal["numerical", "derived", "statistical", "runtime", "observability"]
Severity = Literal["critical", "major", "minor"]

HIGHER_IS_BETTER = frozenset({"cosine", "sqnr_db", "ess", "top1_agreement", "throughput"})
LIMITLESS = frozenset({"bitwise", "nonfinite"})  # the promise is the limit

Name = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=200)]
Slug = Annotated[str, StringConstraints(strict=True, pattern=r"^[a-z0-9][a-z0-9_-]{0,99}$")]
Why = Annotated[str, StringConstraints(strict=True, strip_whitespace=True, min_length=1)]
Duration = Annotated[str, StringConstraints(strict=True, pattern=r"^[1-9][0-9]*(s|m|h|d)$")]


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("float_type", "input should be a valid number")
    return value


_NotBoolean = BeforeValidator(_no_boolean)  # `true` is no 1.0
Number = Annotated[float, Field(strict=True, allow_inf_nan=False), _NotBoolean]
NonNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False), _NotBoolean]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False), _NotBoolean]
Fraction = Annotated[float, Field(strict=True, gt=0, le=1), _NotBoolean]
Confidence = Annotated[float, Field(strict=True, gt=0.5, lt=1), _NotBoolean]
# A cell: cpu, a compute capability, an AMD target; `*` and `?` match as in a shell.
Hardware = Annotated[
    str, StringConstraints(strict=True, pattern=r"^(cpu|\*|sm_[0-9*?]{1,4}[af]?|gfx[0-9a-f*?]{1,5})$")
]


def _no_boolean_format(value: Any) -> Any:
    if isinstance(value, bool):  # True == 1, which a literal would take
        raise PydanticCustomError("literal_error", "input should be 1", {"expected": "1"})
    return value


Format = Annotated[Literal[1], BeforeValidator(_no_boolean_format)]


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


HardwareLimit = dict[Hardware, NonNegative]
DtypeLimit = dict[Dtype, NonNegative | HardwareLimit]
Limit = NonNegative | DtypeLimit


def limit_at(limit: Limit | None, dtype: str, hardware: str) -> float | None:
    """Resolve a limit for one dtype and one hardware cell; None where it says nothing of them."""
    found: Any = limit
    for key in (dtype, hardware):
        if isinstance(found, Mapping):
            found = found.get(key)
    return None if found is None else float(found)


@dataclass(frozen=True)
class Origin:
    """Where a contract was read: its file, and the line and column of every node by its path of keys."""

    path: str
    lines: Mapping[tuple[str | int, ...], tuple[int, int]] = field(default_factory=dict)

    def line(self, *loc: str | int) -> int:
        """Give the line of the node at `loc`, or of its closest known parent."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return self.lines.get(loc, (1, 1))[0]


class Scope(_Frozen):
    """The cells a contract speaks of. A cell that is never run is reported "unproven"."""

    dtypes: Annotated[tuple[Dtype, ...], Field(min_length=1)]
    hardware: Annotated[tuple[Hardware, ...], Field(min_length=1)] = ("cpu",)
    domain: dict[Name, Any] = Field(default_factory=dict)


class Assumptions(_Frozen):
    """What the derived bounds rest on. horizon: tokens. temperature: of the softmax."""

    horizon: Annotated[StrictInt, Field(ge=1)] = 1
    reward: tuple[Number, Number] = (0.0, 1.0)
    advantage_max: Positive = 1.0
    score_norm_max: Positive = 1.0
    temperature: Positive = 1.0

    @model_validator(mode="after")
    def _ordered(self) -> Assumptions:
        if self.reward[0] >= self.reward[1]:
            raise ValueError(f"reward must be [low, high] with low < high, not {list(self.reward)}")
        return self


class _Clause(_Frozen):
    why: Why
    severity: Severity = "major"


class NumericalClause(_Clause):
    """N: one promise of one relation, judged on the worst case a search finds.

    of: whose accuracy (`inf` by default). under: the transformations an invariance is promised for.
    max is the limit; metrics for which more is better (cosine, sqnr_db) take `min`.
    """

    relation: Relation
    metric: NumericalMetric
    output: Name | None = None
    of: Literal["inf", "train"] | None = None
    under: tuple[Transformation, ...] = ()
    pairs: tuple[Name, ...] = ()
    max: Limit | None = None
    min: Limit | None = None

    @model_validator(mode="after")
    def _consistent(self) -> NumericalClause:
        limits = [name for name in ("max", "min") if getattr(self, name) is not None]
        wanted = [] if self.metric in LIMITLESS else ["min" if self.metric in HIGHER_IS_BETTER else "max"]
        if limits != wanted:
            raise ValueError(f"{self.metric} takes {wanted or 'no limit'}, found {limits or 'none'}")
        if (self.relation == "invariance") != bool(self.under):
            raise ValueError("`under` belongs to relation invariance, which needs it")
        if self.of is not None and self.relation != "accuracy":
            raise ValueError("`of` belongs to relation accuracy")
        if self.metric == "bitwise" and self.relation not in {"parity", "invariance"}:
            raise ValueError("bitwise belongs to parity and invariance: the oracle is float64")
        if self.metric == "error_ratio" and (self.relation, self.of or "inf") != ("accuracy", "inf"):
            raise ValueError("error_ratio belongs to accuracy of inf: train is what it is measured by")
        return self

    def limit(self, dtype: str, hardware: str) -> float | None:
        """Give the limit for a dtype and a hardware cell; None: none is stated."""
        return limit_at(self.max if self.max is not None else self.min, dtype, hardware)

    def label(self) -> str:
        """Name the promise for people: `parity(o).rel_rms`."""
        inside = ",".join(
            [*([self.of] if self.of else []), *self.under, *([self.output] if self.output else [])]
        )
        return f"{self.relation}({inside}).{self.metric}" if inside else f"{self.relation}.{self.metric}"


class DerivedBudget(_Frozen):
    """A budget that N must imply: checked at lint, tested at run.

    cap, floor: the largest and least weight of a gradient's estimator, or of the PPO range of a clip_budget.
    """

    quantity: Literal[
        "tv", "kl", "chi2", "ess", "importance_ratio", "sequence_tv", "sequence_ess", "reward_drift",
        "gradient_bias", "clip_budget",
    ]  # fmt: skip
    max: NonNegative | None = None
    min: NonNegative | None = None
    why: Why | None = None
    severity: Severity = "major"
    estimator: Literal["uncorrected", "importance_weighted", "tis", "clipped", "masked"] | None = None
    cap: Positive | None = None
    floor: Positive | None = None

    @model_validator(mode="after")
    def _consistent(self) -> DerivedBudget:
        wanted = "min" if self.quantity in {"ess", "sequence_ess"} else "max"
        if [n for n in ("max", "min") if getattr(self, n) is not None] != [wanted]:
            raise ValueError(f"a budget of {self.quantity} takes exactly `{wanted}`")
        if (self.quantity == "gradient_bias") != (self.estimator is not None):
            raise ValueError("`estimator` belongs to quantity gradient_bias, which needs it")
        if wanted == "min" and self.min is not None and self.min > 1:
            raise ValueError(f"min is {self.min:g}; allowed: a share of the samples, 0 to 1")
        self._weights_in_range()
        return self

    def _weights_in_range(self) -> None:
        use = self.estimator or self.quantity
        if self.cap is None and use in {"tis", "clipped", "masked"}:
            raise ValueError(f"{use} needs `cap`, the largest weight, at least 1")
        if self.cap is not None and use not in {"tis", "clipped", "masked", "clip_budget"}:
            raise ValueError(f"`cap` belongs to tis, clipped, masked and clip_budget, not to {use}")
        if self.floor is not None and use not in {"clipped", "masked", "clip_budget"}:
            raise ValueError(f"`floor` belongs to clipped, masked and clip_budget, not to {use}")
        strict = use == "clip_budget"  # a range of no width has no share
        if self.cap is not None and (self.cap < 1 or (strict and self.cap == 1)):
            raise ValueError(f"cap is {self.cap:g}; allowed: {'above' if strict else 'at least'} 1")
        if self.floor is not None and (self.floor > 1 or (strict and self.floor == 1)):
            raise ValueError(f"floor is {self.floor:g}; allowed: {'below' if strict else 'at most'} 1")


class StatisticalClause(_Clause):
    """S: a statistic over sampled tokens, with finite-sample confidence."""

    metric: StatisticalMetric
    statistic: Literal["mean", "max", "p50", "p90", "p95", "p99", "p999"] = "mean"
    max: Limit | None = None
    min: Limit | None = None
    confidence: Confidence = 0.99
    min_tokens: Annotated[StrictInt, Field(ge=1)] = 1
    slices: tuple[Name, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> StatisticalClause:
        wanted = "min" if self.metric in HIGHER_IS_BETTER else "max"
        if [n for n in ("max", "min") if getattr(self, n) is not None] != [wanted]:
            raise ValueError(f"{self.metric} takes exactly `{wanted}`")
        return self


class RuntimeClause(_Clause):
    """R: a ratio measured within one run, never an absolute time across machines."""

    metric: RuntimeMetric
    statistic: Literal["mean", "median", "p90", "p99", "max"] = "median"
    against: Literal["train", "baseline"]
    max_ratio: Positive | None = None
    min_ratio: Positive | None = None

    @model_validator(mode="after")
    def _consistent(self) -> RuntimeClause:
        wanted = "min_ratio" if self.metric in HIGHER_IS_BETTER else "max_ratio"
        if [n for n in ("max_ratio", "min_ratio") if getattr(self, n) is not None] != [wanted]:
            raise ValueError(f"{self.metric} takes exactly `{wanted}`")
        return self


class Observability(_Frozen):
    """O: what serving must report, how often, and how old evidence may be."""

    sample_rate: Fraction
    require: tuple[Name, ...] = ()
    evidence_max_age: Duration = "14d"


class Condition(_Frozen):
    """What a policy rule matches; a field left out matches everything, so does `*`."""

    family: Family | None = None
    metric: Name | None = None
    slice: Name | None = None
    severity: Severity | None = None
    verdict: Literal["HOLDS", "VIOLATED", "INCONCLUSIVE", "ERROR"] | None = None
    stage: Literal["offline", "shadow", "canary", "full"] | None = None


class PolicyRule(_Frozen):
    """Π: one rule. The first that matches wins. within: persistence, e.g. `3 of 5 windows`."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    when: Condition
    then: Action
    to: Name | None = None
    duration: Duration | None = Field(default=None, alias="for")
    rate: Fraction | None = None
    within: Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]* of [1-9][0-9]* windows$")] | None = None
    stage: Literal["offline", "shadow", "canary", "full"] | None = None
    why: Why | None = None

    @model_validator(mode="after")
    def _can_fire(self) -> PolicyRule:
        if self.within is not None:
            wanted, _, windows, _ = self.within.split()
            if int(wanted) > int(windows):
                raise ValueError(f"within is {self.within!r}: more windows than there are")
        if self.stage is not None and self.when.stage not in (None, self.stage):
            raise ValueError(f"stage is {self.stage} and when.stage is {self.when.stage}: never both")
        return self


class Contract(_Frozen):
    """One contract: C = (N, S, R, O, Π) for the pairs that `pairs` names by glob."""

    kernelpact: Format
    contract: Slug
    version: Annotated[StrictInt, Field(ge=1)] = 1
    why: Why
    pairs: Annotated[tuple[Name, ...], Field(min_length=1)]
    scope: Scope
    assumptions: Assumptions = Field(default_factory=Assumptions)
    numerical: tuple[NumericalClause, ...] = ()
    derived: tuple[DerivedBudget, ...] = ()
    statistical: tuple[StatisticalClause, ...] = ()
    slices: dict[Slug, Name] = Field(default_factory=dict)
    runtime: tuple[RuntimeClause, ...] = ()
    observability: Observability | None = None
    policy: tuple[PolicyRule, ...] = ()
    origin: Origin = Field(default=Origin("<memory>"), exclude=True, repr=False)

    @property
    def hash(self) -> str:
        """Identify the contract by its resolved form, not its text: 16 hex digits of SHA-256."""
        resolved = self.model_dump(mode="json", by_alias=True, exclude={"origin"})
        return hashlib.sha256(json.dumps(resolved, sort_keys=True).encode()).hexdigest()[:16]

    def covers(self, pair_name: str) -> bool:
        """Whether `pairs` names this pair."""
        return any(fnmatchcase(pair_name, pattern) for pattern in self.pairs)


NUMERICAL_METRICS: tuple[str, ...] = get_args(NumericalMetric)
