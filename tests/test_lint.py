"""Lint: names that exist, cells that have limits, rules that can fire, budgets that N implies."""

import json
import math
import re

import pytest
from click.testing import CliRunner
from test_dsl import GOOD, problems

from kernelpact.budgets import budget_value, largest_drift, vacuous
from kernelpact.cli import main
from kernelpact.contract import Assumptions, DerivedBudget
from kernelpact.dsl import ContractError, load_contract, load_contracts, parse_contract
from kernelpact.dsl.lint import declared_drift, implications

TV = "{quantity: tv, max: 0.01}"
DRIFT = '- {relation: policy, metric: logit_drift, max: 0.02, why: "spliced into the host"}'

REFUSED = {
    "a cell without a limit": ("max: 2e-2,", "max: {bfloat16: 1, float16: {cpu: 1}},", "16:71: no limit for sm_90"),
    "a cell outside the scope": ("max: 2e-2,", "max: {bfloat16: 1, float16: {cpu: 1, sm_90: 1, sm_80: 1}},", "sm_80, which scope.hardware"),
    "a limit for a glob": ("max: 2e-2,", "max: {bfloat16: 1, float16: {cpu: 1, sm_90: 1, sm_*: 1}},", "one hardware by its name"),
    "a limit wrong inside": ("max: 2e-2,", "max: {bfloat16: 1, float16: {cpu: -1, sm_90: 1}},", "16:81: .*cpu is -1; allowed: a number ≥ 0$"),
    "a limit for no dtype": ("max: 2e-2,", "max: {bfloat16: 1, float17: 1},", "16:71: .*unknown key 'float17'; allowed: float64.*did you mean 'float16'"),
    "a budget that is a word": (TV, "{quantity: tv, max: small}", "21:20: derived.0.max is 'small'; allowed: a number ≥ 0$"),
    "no such hardware": ("[cpu, sm_90]", "[cpu, sm90]", "7:19: .*'sm90'; allowed: cpu, sm_90, gfx942"),
    "a dtype twice": ("[bfloat16, float16]", "[bfloat16, float16, float16]", "6:31: 'float16' stands twice in dtypes"),
    "a transformation twice": ("[batch, pages]", "[batch, pages, batch]", "18:.*'batch' stands twice in under"),
    "a domain that is empty": ("head_dim: [64, 128]", "head_dim: [128, 64]", r"8:12: domain head_dim is \[128, 64\], which is empty"),
    "a domain without values": ("head_dim: [64, 128]", "head_dim: []", r"8:12: domain head_dim is \[\]"),
    "a domain with NaN": ("head_dim: [64, 128]", "head_dim: [64, .nan]", "8:27: domain head_dim holds nan"),
    "tis without a cap": ("cap: 2.0, ", "", "23:5: .*tis needs `cap`"),
    "a cap below 1": ("cap: 2.0", "cap: 0.5", "cap is 0.5; allowed: at least 1"),
    "a cap of tv": (TV, "{quantity: tv, cap: 2, max: 0.01}", "`cap` belongs to tis"),
    "a floor above 1": ("tis, cap: 2.0", "masked, floor: 2, cap: 2.0", "floor is 2; allowed: at most 1"),
    "an ESS above 1": (TV, "{quantity: ess, min: 2}", "min is 2; allowed: a share"),
    "a true rate": ("sample_rate: 0.01", "sample_rate: true", "34:3: .*sample_rate is True"),
    "a true version": ("kernelpact: 1", "kernelpact: true", "1:1: kernelpact is True; allowed: 1"),
    "more windows than there are": ("then: rollback}", "then: rollback, within: 5 of 3 windows}", "38:5: .*more windows"),
    "two stages": ("verdict: VIOLATED}, then: rollback}", "stage: canary}, then: rollback, stage: full}", "never both"),
    "a rule for no metric": ("{family: runtime,", "{metric: latncy,", "40:13: no metric is called 'latncy'.*did you mean 'latency'"),
    "YAML 1.1": ("kernelpact: 1", "%YAML 1.1\n---\nkernelpact: 1", "2:1: YAML 1.1; allowed: 1.2"),
    "a merge key": (TV, "&b " + TV + "\n  - {<<: *b}", "22:6: `<<` is not YAML 1.2"),
    "a clause that is a word": (DRIFT, "- nonsense", "19:5: numerical.3 is 'nonsense'; allowed: a mapping"),
    "a list that is a word": ("[attention_decode_paged/*]", "attention/*", "4:1: pairs is 'attention/\\*'; allowed: a list"),
    "a key called origin": ("runtime: ", "origin: x\nruntime: ", "30:1: unknown key 'origin'; allowed: kernelpact, "),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), REFUSED.values(), ids=REFUSED)
def test_each_fault_gives_one_message(old, new, message):
    """One fault, one message: where, what was found, what is allowed."""
    assert old in GOOD
    (found,) = problems(GOOD.replace(old, new, 1))
    assert re.search(message, found), found


ACCEPTED = {
    "cells with limits": ("max: 2e-2,", "max: {bfloat16: 1, float16: {cpu: 1, sm_90: 1}},"),
    "a glob of cells": ("[cpu, sm_90]", "[cpu, 'sm_*', gfx942]"),
    "a domain of one size": ("head_dim: [64, 128]", "head_dim: [64, 64]"),
    "a domain of choices": ("head_dim: [64, 128]", "head_dim: [128, 64, 32]"),
    "a cap of 1": ("cap: 2.0", "cap: 1"),
    "an ESS of 1": (TV, "{quantity: ess, min: 1}"),
    "all the windows": ("then: rollback}", "then: rollback, within: 3 of 3 windows}"),
    "one stage said twice": (
        "verdict: VIOLATED}, then: rollback}",
        "stage: full}, then: rollback, stage: full}",
    ),
    "YAML 1.2": ("kernelpact: 1", "%YAML 1.2\n---\nkernelpact: 1"),
    "an anchor used again": (TV, "&b " + TV + "\n  - &b {quantity: kl, max: 0.01}\n  - *b"),
}


@pytest.mark.parametrize(("old", "new"), ACCEPTED.values(), ids=ACCEPTED)
def test_the_other_side_of_each_limit_loads(old, new):
    """What is just allowed is a contract."""
    assert old in GOOD
    assert parse_contract(GOOD.replace(old, new, 1)).contract == "attention-decode"


RULES = "policy:                               # Π, first match wins\n"


@pytest.mark.parametrize(
    ("earlier", "later", "reachable"),
    [
        (
            "{when: {verdict: VIOLATED}, then: hold}",
            "{when: {verdict: VIOLATED, severity: minor}, then: log}",
            False,
        ),
        (
            "{when: {verdict: VIOLATED, severity: minor}, then: log}",
            "{when: {verdict: VIOLATED}, then: hold}",
            True,
        ),
        ("{when: {slice: '*'}, then: hold}", "{when: {slice: rare_token}, then: log}", False),
        ("{when: {}, then: hold, within: 3 of 5 windows}", "{when: {verdict: VIOLATED}, then: log}", True),
        ("{when: {stage: canary}, then: hold}", "{when: {}, then: log, stage: canary}", False),
        ("{when: {stage: canary}, then: hold}", "{when: {}, then: log, stage: full}", True),
    ],
)
def test_a_rule_behind_one_that_takes_all_is_refused(earlier, later, reachable):
    """The message names both lines; persistence and other stages let findings through."""
    text = f"{GOOD.split(RULES)[0]}{RULES}  - {earlier}\n  - {later}\n"
    if reachable:
        assert len(parse_contract(text).policy) == 2
    else:
        (found,) = problems(text)
        assert re.match(r"c\.yaml:39:5: this rule never fires: rule 1 \(line 38\)", found), found


@pytest.mark.parametrize("path", ["\0", "a\0.yaml", "x" * 5000, "x" * 5000 + ".yaml", "/dev/zero", "", "["])
@pytest.mark.parametrize("load", [load_contract, load_contracts])
def test_paths_that_are_no_files_are_refused(load, path):
    """NUL, names too long, devices, nothing: a ContractError each, and soon."""
    with pytest.raises(ContractError):
        load(path)


def test_a_link_to_nothing_is_refused(tmp_path):
    """A dangling link is named once, by path and by glob."""
    (tmp_path / "c.yaml").symlink_to(tmp_path / "gone")
    for asked in (tmp_path / "c.yaml", tmp_path / "*.yaml"):
        with pytest.raises(ContractError, match=r"c\.yaml"):
            load_contracts(asked)


def test_a_glob_takes_contracts_only(tmp_path):
    """A README beside the contracts is no contract."""
    (tmp_path / "a.yaml").write_text(GOOD)
    (tmp_path / "README.md").write_text("# not YAML: [")
    assert [one.contract for one in load_contracts(tmp_path / "*")] == ["attention-decode"]


def test_text_of_several_lines_is_read_as_text():
    """load_contract takes a path or the text itself."""
    assert load_contract(GOOD).hash == parse_contract(GOOD).hash


@pytest.mark.parametrize(
    "text", ["- a\n" * 200_000, "[" + "a," * 400_000, "!" * 900_000, "---\na\n" * 100_000]
)
def test_a_megabyte_of_anything_is_refused_before_it_is_built(text):
    """20,000 nodes, or 200 characters of a tag, and reading stops."""
    (found,) = problems(text)
    assert re.search("more than (20000 nodes|200 characters)", found)


def warned(text):
    """Give the warnings on a contract by quantity, without the rest of the message."""
    return {warning.message.split()[0]: warning for warning in implications(parse_contract(text))}


def test_only_what_compares_the_pair_bounds_it():
    """A drift against the oracle, between transformations, or of some pairs only, implies no budget."""
    assert declared_drift(parse_contract(GOOD)) == 0.02
    assert declared_drift(parse_contract(GOOD.replace("relation: policy", "relation: parity"))) == 0.02
    for other in (
        "relation: accuracy",
        "relation: policy, pairs: [a/b]",
        "relation: invariance, under: [batch]",
    ):
        assert declared_drift(parse_contract(GOOD.replace("relation: policy", other))) is None


def test_the_worst_cell_counts():
    """The largest limit of all dtypes and hardware is what N admits."""
    text = GOOD.replace("max: 0.02,", "max: {bfloat16: 0.02, float16: {cpu: 0.01, sm_90: 0.05}},")
    assert declared_drift(parse_contract(text)) == 0.05


def test_the_variance_implies_what_the_drift_alone_does_not():
    """ε = 0.25 allows TV 0.124; with σ = 0.01, Bennett's inequality gives 0.0055, within 0.01; σ = 0.03 does not."""
    text = GOOD.replace("max: 0.02,", "max: 0.25,")
    assert warned(text)["tv"].value == pytest.approx(math.tanh(0.125))
    rms = (
        DRIFT.replace("0.02", "0.25")
        + '\n  - {relation: policy, metric: logit_drift_rms, max: 0.01, why: "x"}'
    )
    assert "tv" not in warned(GOOD.replace(DRIFT, rms))
    assert (
        "logit_drift_rms 0.03"
        in warned(GOOD.replace(DRIFT, rms.replace("max: 0.01", "max: 0.03")))["tv"].message
    )
    hot = GOOD.replace(DRIFT, rms).replace("temperature: 1.0", "temperature: 0.9")
    assert warned(hot)["tv"].value == pytest.approx(math.tanh(0.125 / 0.9))


def test_a_budget_that_every_drift_meets_is_no_warning():
    """TV is at most 1 whatever N says."""
    text = GOOD.replace(TV, "{quantity: tv, max: 1}")
    assert "tv" not in warned(text.replace("metric: logit_drift,", "metric: max_abs,"))


def test_a_vacuous_bound_is_called_so(tmp_path):
    """ε = 900 allows all of the reward; JSON stays JSON where a bound is infinite."""
    text = GOOD.replace("max: 0.02,", "max: 900,").replace("quantity: tv", "quantity: chi2")
    assert "vacuous at horizon 1024" in warned(text)["reward_drift"].message
    assert "vacuous" not in warned(GOOD.replace("max: 0.35", "max: 0.2"))["reward_drift"].message
    (tmp_path / "c.yaml").write_text(text)
    done = CliRunner().invoke(main, ["lint", "--json", str(tmp_path / "c.yaml")])
    record = json.loads(done.output, parse_constant=lambda name: pytest.fail(name))
    assert done.exit_code == 0
    assert record["warnings"][0]["value"] is None


BUDGETS = [
    DerivedBudget(quantity="tv", max=0.01), DerivedBudget(quantity="kl", max=0.01),
    DerivedBudget(quantity="ess", min=0.9), DerivedBudget(quantity="sequence_ess", min=0.9),
    DerivedBudget(quantity="reward_drift", max=0.1), DerivedBudget(quantity="clip_budget", max=0.5),
    DerivedBudget(quantity="clip_budget", max=0.5, floor=0.9, cap=1.3),
    DerivedBudget(quantity="gradient_bias", estimator="tis", cap=1.5, max=0.1),
    DerivedBudget(quantity="gradient_bias", estimator="uncorrected", max=0.1),
]  # fmt: skip


@pytest.mark.parametrize(
    "budget", BUDGETS, ids=lambda budget: f"{budget.quantity}-{budget.estimator}-{budget.cap}"
)
def test_the_largest_drift_is_the_edge_of_the_budget(budget):
    """At the ε that would do the budget is met; a thousandth more breaks it. At τ = 2 the ε is twice that of τ = 1."""
    at = Assumptions(horizon=64, temperature=2.0)
    drift = largest_drift(budget, at)
    low, high = budget_value(budget, drift, at), budget_value(budget, drift * 1.001, at)
    if budget.min is not None:
        assert low >= budget.min > high
    else:
        assert low <= budget.max < high
    assert drift == pytest.approx(2 * largest_drift(budget, Assumptions(horizon=64)))
    assert not vacuous(budget, low, at)


def test_a_clip_range_is_the_one_that_the_budget_names():
    """2ε / min(ln 1.3, −ln 0.9): the nearer end counts; without a range it is PPO's 0.2."""
    named = DerivedBudget(quantity="clip_budget", max=1, floor=0.9, cap=1.3)
    assert budget_value(named, 0.01, Assumptions()) == pytest.approx(0.02 / -math.log(0.9))
    assert budget_value(DerivedBudget(quantity="clip_budget", max=1), 0.01, Assumptions()) == pytest.approx(
        0.02 / math.log(1.2)
    )
