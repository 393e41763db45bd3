"""A tiny operator for tests of the engine: y = weight * x, with recipes of a few integers.

Nothing here enters the global registries, so no test sees another's.
"""

from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st

from kernelpact.cases import Case, Cell, Promise
from kernelpact.contract import Contract, NumericalClause
from kernelpact.operators import Operator, Variant
from kernelpact.pairs import KernelPair
from kernelpact.trial import Trial

RECIPE = {"values": [3, 1], "seed": 0}


def recipes(dtype, domain, edges):
    """Draw {values: [int], seed: int}; the smallest is {values: [], seed: 0}."""
    least, most = domain.get("length", (0, 8))
    values = st.lists(st.integers(0, 100), min_size=least, max_size=most)
    return st.fixed_dictionaries({"values": values, "seed": st.integers(0, 3)})


def build(recipe, dtype, device):
    """Build x[T, 2], whose row t holds values[t] and its half, and weight[2]."""
    column = torch.tensor(recipe["values"], dtype=torch.float64).reshape(-1, 1)
    x = torch.cat([column, column / 2], -1).to(device, getattr(torch, dtype))
    return {"x": x, "weight": torch.tensor([1.0, 2.0], dtype=x.dtype, device=device)}


def repeat(inputs, recipe):
    """Call again with the same inputs."""
    return Variant(dict(inputs), lambda outputs: outputs)


def batch(inputs, recipe):
    """Give the first row alone; an input without rows admits none."""
    if not len(inputs["x"]):
        return None
    return Variant(
        {**inputs, "x": inputs["x"][:1].clone()},
        lambda outputs: outputs,
        lambda outputs: {name: value[:1] for name, value in outputs.items()},
    )


SCALED = Operator(
    name="scaled",
    outputs=("y",),
    strategy=recipes,
    build=build,
    shapes=lambda inputs: {"y": tuple(inputs["x"].shape)},
    dtypes=lambda inputs, dtype: {"y": inputs["x"].dtype},
    variants={"repeat": repeat, "batch": batch, "pages": lambda inputs, recipe: None},
    differentiable=("x", "weight"),
    describe=lambda recipe: f"values={recipe['values']} seed={recipe['seed']}",
)


def oracle(*, x, weight):
    """Compute y[T, 2] in float64."""
    return {"y": x.double() * weight.double()}


def train(*, x, weight):
    """K_train: the product, in the input's own dtype."""
    return x * weight


def pair(inf=train, train=train, dtypes=("float32",)):
    """Give a pair that is not registered."""
    return KernelPair("scaled/toy", "scaled", train, inf, dtypes=dtypes, devices=("cpu",))


def trial(inf=train, train=train, recipe=None, operator=SCALED, dtype="float32"):
    """Give one input of a toy pair; x is [[3, 1.5], [1, 0.5]] unless a recipe says otherwise."""
    return Trial(pair(inf, train), operator, oracle, RECIPE if recipe is None else recipe, dtype, "cpu")


def clause(relation="parity", metric="max_abs", **terms):
    """Give a numerical clause; its limit is 0.25 unless `terms` or the metric say otherwise."""
    if metric not in ("bitwise", "nonfinite") and not {"max", "min"} & set(terms):
        terms["max"] = 0.25
    return NumericalClause(relation=relation, metric=metric, why="a test", **terms)


@dataclass(frozen=True)
class ToyCase(Case):
    """A case of the toy operator, which is in no registry. narrowed: the domain of its recipes."""

    narrowed: dict = field(default_factory=dict)
    toy: Operator = SCALED

    @property
    def operator(self):
        """The toy operator."""
        return self.toy

    @property
    def oracle(self):
        """The toy operator's oracle."""
        return oracle

    def strategy(self):
        """Give the toy's recipes."""
        return self.toy.strategy(self.dtype, self.narrowed, {})


def case(inf, *terms, domain=None, operator=SCALED):
    """Give a case that judges `terms` (a parity within 0.25 if none) of a toy kernel."""
    chosen = terms or (clause(),)
    promises = tuple(
        Promise(one.label(), "numerical", one, one.limit("float32", "cpu") or 0.0, line)
        for line, one in enumerate(chosen, start=1)
    )
    contract = Contract.model_validate(
        {
            "kernelpact": 1,
            "contract": "toys",
            "why": "a test",
            "pairs": ["scaled/*"],
            "scope": {"dtypes": ["float32"]},
        }
    )
    return ToyCase(
        contract, pair(inf), "float32", Cell("cpu", "cpu"), "parity", promises, "", domain or {}, operator
    )
