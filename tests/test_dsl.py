"""Contracts are read, or refused with every problem, its place, and what is allowed."""

import json
import re
import textwrap

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from kernelpact.cli import main
from kernelpact.contract import Contract
from kernelpact.dsl import ContractError, load_contract, load_contracts, parse_contract
from kernelpact.dsl.lint import implications
from kernelpact.dsl.schema import json_schema
from kernelpact.dsl.yaml import MAX_BYTES

GOOD = textwrap.dedent("""\
    kernelpact: 1
    contract: attention-decode
    why: Rollouts decode through the paged kernel; the trainer recomputes through SDPA.
    pairs: [attention_decode_paged/*]
    scope:
      dtypes: [bfloat16, float16]
      hardware: [cpu, sm_90]              # a cell never run is reported "unproven"
      domain: {head_dim: [64, 128], kv_len: [1, 32768], page: [16, 64]}
    assumptions:                          # what the derived bounds rest on
      horizon: 1024
      reward: [0, 1]
      advantage_max: 4
      score_norm_max: 10
      temperature: 1.0
    numerical:                            # N
      - {relation: parity, output: o, metric: rel_rms, max: 2e-2, why: "two bf16 roundings, fp32 accumulation"}
      - {relation: accuracy, of: inf, metric: error_ratio, max: 2.0, why: "at most twice what eager bf16 loses"}
      - {relation: invariance, under: [batch, pages], metric: bitwise, why: "one reduction order per row"}
      - {relation: policy, metric: logit_drift, max: 0.02, why: "spliced into the host"}
    derived:                              # budgets that N must imply; checked at lint, tested at run
      - {quantity: tv, max: 0.01}
      - {quantity: reward_drift, max: 0.35, why: "horizon 1024"}
      - {quantity: gradient_bias, estimator: tis, cap: 2.0, max: 0.1}
    statistical:                          # S
      - {metric: tv, statistic: mean, max: 2e-3, confidence: 0.99, min_tokens: 20000, why: "..."}
      - {metric: dlogp, statistic: p99, max: 0.1, confidence: 0.99, slices: [rare_token, long_context], why: "..."}
    slices:
      rare_token: "logp_inf < -8"
      long_context: "position >= 4096"
    runtime:                              # R
      - {metric: latency, statistic: median, against: train, max_ratio: 0.8, why: "..."}
      - {metric: peak_memory, against: baseline, max_ratio: 1.05, why: "..."}
    observability:                        # O
      sample_rate: 0.01
      require: [tv, dlogp, ess, verdict, kernel_id, contract_hash]
      evidence_max_age: 14d
    policy:                               # Π, first match wins
      - {when: {family: numerical, verdict: VIOLATED}, then: rollback}
      - {when: {family: statistical, slice: "*", verdict: VIOLATED}, then: reroute, to: train, for: 15m}
      - {when: {family: runtime, verdict: VIOLATED}, then: alert}
      - {when: {verdict: INCONCLUSIVE}, then: hold}
""")


def problems(text):
    """Give the messages that a text is refused with."""
    with pytest.raises(ContractError) as caught:
        parse_contract(text, "c.yaml")
    return [str(problem) for problem in caught.value.problems]


def test_the_whole_grammar_loads():
    """Every part of the DSL becomes a frozen value of the stated type."""
    contract = parse_contract(GOOD)
    assert contract.numerical[0].limit("bfloat16", "cpu") == 0.02
    assert contract.policy[1].duration == "15m"
    assert contract.observability.sample_rate == 0.01
    assert contract.origin.line("numerical", 1) == 17
    with pytest.raises(ValueError, match="frozen"):
        contract.contract = "other"


def test_numbers_are_those_of_yaml_1_2():
    """`1e-3` is a number, `on` and `yes` are strings."""
    contract = parse_contract(GOOD.replace('"..."', "on", 1).replace("max: 2e-3", "max: 1e-3"))
    assert (contract.statistical[0].max, contract.statistical[0].why) == (1e-3, "on")


def test_the_hash_is_of_the_meaning_not_the_text():
    """Comments, order of keys and anchors change nothing; a limit does."""
    same = "# another comment\n" + GOOD.replace("max: 0.01}", "max: 1e-2}")
    assert parse_contract(same).hash == parse_contract(GOOD).hash
    assert parse_contract(GOOD.replace("max: 0.01}", "max: 0.011}")).hash != parse_contract(GOOD).hash


def test_anchors_reuse_a_clause():
    """A clause or a scope may be reused by an alias."""
    text = GOOD.replace("- {quantity: tv, max: 0.01}", "- &b {quantity: tv, max: 0.01}\n  - *b")
    assert parse_contract(text).derived[1] == parse_contract(text).derived[0]


def test_a_limit_may_depend_on_dtype_and_hardware():
    """A mapping by dtype, then by hardware, resolves to one number, or to none where it says nothing."""
    text = GOOD.replace("max: 2e-2,", "max: {bfloat16: 2e-2, float16: {cpu: 3e-3, sm_90: 4e-3}},")
    limit = parse_contract(text).numerical[0].limit
    assert [limit("bfloat16", "x"), limit("float16", "sm_90"), limit("float16", "x")] == [0.02, 0.004, None]


REFUSED = {
    "a negative limit": ("max: 2e-2,", "max: -1,", "16:52: .*max is -1; allowed: a number ≥ 0"),
    "a NaN limit": ("max: 2e-2,", "max: .nan,", "16:52: .*max is nan; allowed: a number ≥ 0"),
    "an infinite limit": ("max: 2e-2,", "max: .inf,", "16:52: .*max is inf; allowed: a number ≥ 0"),
    "a string for a limit": ("max: 2e-2,", "max: small,", "16:52: .*max is 'small'; allowed: a number ≥ 0"),
    "a boolean for a limit": ("max: 2e-2,", "max: true,", "16:52: .*max is True; allowed: a number ≥ 0"),
    "no limit": ("max: 2e-2, ", "", "16:.*rel_rms takes"),
    "an empty limit": ("max: 2e-2,", "max: {},", "16:52: the limit is an empty mapping"),
    "a limit that lacks a dtype": ("max: 2e-2,", "max: {bfloat16: 1},", "no limit for float16"),
    "a limit outside the scope": ("max: 2e-2,", "max: {bfloat16: 1, float16: 1, float32: 1},", "float32, which scope"),
    "a missing why": (', why: "two bf16 roundings, fp32 accumulation"', "", "16:5: numerical.0.why is missing"),
    "an empty why": ('"one reduction order per row"', '" "', "18:.*why"),
    "an unknown key": ("assumptions:", "asumptions:", "9:1: unknown key 'asumptions'.*did you mean 'assumptions'"),
    "an unknown inner key": ("temperature: 1.0", "temprature: 1.0", "14:3: unknown key 'temprature'.*'temperature'"),
    "an unknown metric": ("metric: rel_rms", "metric: rel_rsm", "'rel_rsm'; allowed: .*did you mean 'rel_rms'"),
    "an empty scope": ("dtypes: [bfloat16, float16]", "dtypes: []", "6:3: scope.dtypes is"),
    "an unknown dtype": ("[bfloat16, float16]", "[bfloat16, float17]", "'float17'; allowed: .*'float16'"),
    "a reversed reward": ("reward: [0, 1]", "reward: [1, 0]", r"reward must be \[low, high\]"),
    "an undeclared slice": ("[rare_token, long", "[rare_tokn, long", "'rare_tokn' is not declared.*'rare_token'"),
    "a slice of no column": ("logp_inf < -8", "logp_in < -8", "28:3: .*unknown column 'logp_in'.*'logp_inf'"),
    "a slice that calls": ("logp_inf < -8", "__import__('os')", "unknown column '__import__'"),
    "a rule that never fires": (
        "- {when: {family: runtime, verdict: VIOLATED}", "- {when: {family: numerical, verdict: VIOLATED}",
        "never fires",
    ),
    "a reroute to nowhere": ("then: reroute, to: train,", "then: reroute,", "`to` belongs to reroute"),
    "a key twice": ("contract: attention", "why: x\ncontract: attention", "4:1: key 'why' occurs twice"),
    "a tag": ("horizon: 1024", "horizon: !!python/object:os.system 1024", "10:12: tag .* is not allowed"),
    "two documents": ("kernelpact: 1", "a: 1\n---\nkernelpact: 1", "found 2 YAML documents"),
    "another version": ("kernelpact: 1\n", "kernelpact: 2\n", "1:1: kernelpact is 2; allowed: 1"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_wrong_is_named_with_its_place(old, new, message):
    """Each fault is refused, with the file, the line, what was found and what is allowed."""
    assert old in GOOD
    found = problems(GOOD.replace(old, new, 1))
    assert any(re.search(message, problem) for problem in found), found
    assert all(problem.startswith("c.yaml:") for problem in found)


def test_all_problems_of_a_file_are_reported_at_once():
    """Three faults give three messages."""
    text = (
        GOOD.replace("max: 2e-2,", "max: -1,")
        .replace("horizon: 1024", "horizon: 0")
        .replace("why: Roll", "wy: Roll")
    )
    assert len(problems(text)) >= 3


def test_a_contract_that_promises_nothing_is_refused():
    """No clause, no contract."""
    head = GOOD.split("assumptions:")[0]
    assert any("promises nothing" in problem for problem in problems(head))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"a: " + b"x" * (10 << 20), f"allowed are {MAX_BYTES}"),
        (b"[" * 5000 + b"]" * 5000, "nested deeper than 32 levels"),
        (b"".join(b" " * i + b"a:\n" for i in range(900)), "nested deeper than 32 levels"),
        (b"", "found 0 YAML documents"),
        (b"- 1\n", "a contract is a mapping, found list"),
        (b"a: [1\n", "not YAML"),
    ],
)
def test_hostile_files_are_refused(tmp_path, content, message):
    """Too large, too deep, not text, not YAML: one message that names the file."""
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(ContractError, match=message) as caught:
        load_contract(path)
    assert str(caught.value).startswith(str(path))


def test_an_alias_bomb_is_refused():
    """Nested aliases that would expand to 10^9 nodes stop at the stated number."""
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    for i in range(1, 10):
        bomb += f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n"
    assert any("once aliases are followed" in problem for problem in problems(bomb))


@given(st.text(max_size=300))
def test_no_text_raises_anything_else(text):
    """Whatever the text, it is a contract or a ContractError."""
    with pytest.raises(ContractError):
        parse_contract(text)


@given(st.integers(0, len(GOOD)), st.integers(0, 30), st.text(max_size=12))
def test_no_damage_raises_anything_else(at, cut, patch):
    """A good contract with a piece replaced loads, or is refused with places."""
    damaged = GOOD[:at] + patch + GOOD[at + cut :]
    try:
        lines = [parse_contract(damaged, "c.yaml").origin.line("contract")]
    except ContractError as error:
        lines = [problem.line for problem in error.problems]
    assert lines
    assert min(lines) >= 1


def test_a_folder_a_glob_a_name_and_a_file_are_found(tmp_path):
    """Each way of naming contracts finds them; two of one name are refused."""
    (tmp_path / "a.yaml").write_text(GOOD)
    assert [one.contract for one in load_contracts(tmp_path)] == ["attention-decode"]
    assert load_contracts(str(tmp_path / "*.yaml")) == load_contracts(tmp_path / "a.yaml")
    assert load_contracts("rms-norm")[0].pairs == ("rms_norm/*",)
    (tmp_path / "b.yaml").write_text(GOOD)
    with pytest.raises(ContractError, match=r"b\.yaml:2:1: contract 'attention-decode' is also in .*a\.yaml"):
        load_contracts(tmp_path)


@pytest.mark.parametrize(
    ("asked", "message"),
    [("rms-nrom", "did you mean 'rms-norm'"), ("no/such.yaml", "no such file"), (".", "no contracts")],
)
def test_contracts_that_are_not_there_are_named(tmp_path, monkeypatch, asked, message):
    """A name nearly right, a path that is not there, a folder without contracts."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ContractError, match=message):
        load_contracts(asked)


def lint(*arguments):
    """Run `kernelpact lint`."""
    return CliRunner().invoke(main, ["lint", *map(str, arguments)])


def test_lint_passes_what_is_shipped():
    """The shipped contracts can be used: exit 0."""
    done = lint("contracts/")
    assert done.exit_code == 0, done.output
    assert "0 errors" in done.output


def test_lint_fails_on_what_cannot_be_used(tmp_path):
    """Exit 1, with the same errors in text and JSON."""
    path = tmp_path / "bad.yaml"
    path.write_text(GOOD.replace("max: 2e-2,", "max: -1,"))
    assert (lint(path).exit_code, lint(tmp_path / "none.yaml").exit_code) == (1, 1)
    record = json.loads(lint(path, "--json").output)
    assert [(error["line"], error["column"]) for error in record["errors"]] == [(16, 52)]


def test_lint_says_by_how_much_a_budget_is_missed():
    """ε = 0.02 allows reward drift 0.312 at T = 1024: within 0.35, beyond 0.2; and the ε that would do is said."""
    assert [warned for warned in implications(parse_contract(GOOD)) if "reward" in warned.message] == []
    (warned,) = [
        w
        for w in implications(parse_contract(GOOD.replace("max: 0.35", "max: 0.2")))
        if "reward" in w.message
    ]
    assert warned.line == 22
    assert warned.value == pytest.approx(0.311978, abs=1e-6)
    text = GOOD.replace("max: 0.35", "max: 0.2").replace("max: 0.02,", f"max: {warned.needed:.17g},")
    assert [w for w in implications(parse_contract(text)) if "reward" in w.message] == []


def test_a_budget_without_a_drift_is_measured_only():
    """Where N limits no drift, lint says so and which one would imply the budget."""
    text = GOOD.replace("metric: logit_drift,", "metric: max_abs,")
    assert all("measured only" in warned.message for warned in implications(parse_contract(text)))


def test_the_schema_knows_every_key():
    """Editors are told of every key of a contract, and of nothing else."""
    schema = json_schema()
    assert set(schema["properties"]) == set(Contract.model_fields) - {"origin"}
    assert schema["additionalProperties"] is False
    assert json.loads(CliRunner().invoke(main, ["schema"]).output) == schema
