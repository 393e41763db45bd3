"""Evidence on disk: plain JSON, whole or not at all, under names that do not change."""

import json
import math
from dataclasses import replace

import pytest

from kernelpact import evidence
from kernelpact.cases import within
from kernelpact.evidence import (
    Counterexample,
    Item,
    Result,
    encode,
    known_tokens,
    load_counterexample,
    write_json,
)
from kernelpact.verdict import Verdict

FOUND = Counterexample(
    "mine", "softmax/x", "float32", "cpu", "parity", "parity.max_abs", {"vocab": 9, "rows": [["flat", 0]]},
    "V=9", "V=30", {"vocab": [1, 40]},
)  # fmt: skip


def result(**facts):
    """Give a result that holds at half its limit unless `facts` say otherwise."""
    terms = {"verdict": Verdict.HOLDS, "observed": 0.5, "allowed": 1.0} | facts
    return Result("parity.max_abs", "numerical", "max_abs", "major", why="a test", line=7, **terms)


def item(*results):
    """Give an item of these results."""
    return Item(
        "id", "mine", "0" * 16, "mine.yaml", "softmax/x", "float32", "cpu", "cpu", "parity", {}, 0, results
    )


@pytest.mark.parametrize(
    ("observed", "allowed", "floor", "margin"),
    [
        (0.0, 2.0, False, 1.0),
        (0.5, 2.0, False, 0.75),
        (2.0, 2.0, False, 0.0),
        (6.0, 2.0, False, -2.0),
        (math.inf, 2.0, False, -math.inf),
        (0.0, 0.0, False, 0.0),
        (3.0, 0.0, False, -math.inf),
        (0.75, 0.5, True, 0.5),
        (0.25, 0.5, True, -0.5),
        (0.25, 0.0, True, math.inf),
        (None, 2.0, False, None),
        (0.5, None, False, None),
    ],
)
def test_the_margin_is_the_share_of_the_limit_that_is_left(observed, allowed, floor, margin):
    """1 untouched, 0 at the limit, negative beyond; a floor counts upwards; nothing measured, no margin."""
    assert result(observed=observed, allowed=allowed, higher_is_better=floor).margin == margin


def test_non_finite_figures_are_words_in_json():
    """JSON has no infinity and no NaN, so they are strings, at any depth, and the rest stays as it is."""
    plain = encode(
        {"a": [math.inf, -math.inf, (math.nan, 1.5)], "b": {"c": None}, 3: True, "v": Verdict.HOLDS}
    )
    assert plain == {"a": ["inf", "-inf", ["nan", 1.5]], "b": {"c": None}, "3": True, "v": "HOLDS"}
    assert type(plain["v"]) is str
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_an_item_is_written_with_what_follows_from_it():
    """Verdict, margin and token are in the record, so that a reader need not compute them."""
    broken = result(verdict=Verdict.VIOLATED, observed=math.inf, counterexample=FOUND)
    plain = encode(item(result(), broken))
    assert plain["verdict"] == "VIOLATED"
    assert [one["margin"] for one in plain["results"]] == [0.5, "-inf"]
    assert plain["results"][1]["counterexample"]["token"] == FOUND.token
    assert plain["results"][0]["counterexample"] is None


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [
        ([], "INCONCLUSIVE"),
        (["HOLDS", "HOLDS"], "HOLDS"),
        (["HOLDS", "INCONCLUSIVE"], "INCONCLUSIVE"),
        (["ERROR", "INCONCLUSIVE", "HOLDS"], "ERROR"),
        (["HOLDS", "VIOLATED", "ERROR"], "VIOLATED"),
    ],
)
def test_the_verdict_of_an_item_is_its_worst(verdicts, whole):
    """No evidence is no pass, whatever else holds; of nothing, INCONCLUSIVE."""
    assert item(*(result(verdict=Verdict(one)) for one in verdicts)).verdict == whole


def test_a_counterexample_comes_back_as_it_was_kept(tmp_path):
    """What is saved under its token is loaded equal, with the same token."""
    FOUND.save(tmp_path / "kept")
    assert known_tokens(tmp_path / "kept") == [FOUND.token]
    assert load_counterexample(tmp_path / "kept" / f"{FOUND.token}.json") == FOUND


def test_the_token_is_of_the_input_and_the_promise_it_breaks():
    """It is the same on every machine and release; words do not change it, any fact does."""
    assert FOUND.token == "9a6fc232"  # noqa: S105 - the name of a file
    assert replace(FOUND, text="other", shrunk_from="", domain=None).token == FOUND.token
    reordered = dict(reversed(FOUND.recipe.items()))
    assert replace(FOUND, recipe=reordered).token == FOUND.token
    changes = (
        {"recipe": {"vocab": 10, "rows": []}}, {"pair": "softmax/y"}, {"dtype": "float16"}, {"clause": "parity.ulp"},
        {"contract": "other"}, {"device": "cuda"}, {"relation": "accuracy"},
    )  # fmt: skip
    tokens = {replace(FOUND, **change).token for change in changes}
    assert len(tokens | {FOUND.token}) == 1 + len(changes)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b'{"contract": "mine"', b"[]", b"null", b'{"contract": "mine"}', b"\xff\xfe",
        json.dumps({"unknown": 1, **dict.fromkeys(Counterexample.__dataclass_fields__, "x")}).encode(),
    ],
)  # fmt: skip
def test_a_file_that_is_no_counterexample_is_none(tmp_path, content):
    """Cut short, of another kind or another version: it is passed over."""
    (tmp_path / "x.json").write_bytes(content)
    assert load_counterexample(tmp_path / "x.json") is None


def test_a_missing_file_is_no_counterexample(tmp_path):
    """What was deleted meanwhile is passed over too, and an absent folder holds none."""
    assert load_counterexample(tmp_path / "x.json") is None
    assert known_tokens(tmp_path / "absent") == []


def test_a_counterexample_of_an_older_record_still_loads(tmp_path):
    """A record that does not say its domain is taken; its domain is unknown."""
    old = {name: value for name, value in encode(FOUND).items() if name not in ("token", "domain")}
    (tmp_path / "x.json").write_text(json.dumps(old))
    assert load_counterexample(tmp_path / "x.json") == replace(FOUND, domain=None)


def test_writing_replaces_the_file_whole(tmp_path):
    """A new record takes the old one's place, folders are made, and nothing else is left behind."""
    path = tmp_path / "deep" / "er" / "r.json"
    write_json(path, {"n": 1})
    write_json(path, {"n": 2})
    assert json.loads(path.read_text()) == {"n": 2}
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("stage", ["encoding", "replacing"])
def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch, stage):
    """A value that is no JSON, or a disk that refuses: the old record stays, and no part of the new one."""
    path = tmp_path / "r.json"
    write_json(path, {"n": 1})

    def refuse(*_):
        raise OSError("disk full")

    if stage == "replacing":
        monkeypatch.setattr(evidence.os, "replace", refuse)
    value = {"n": object()} if stage == "encoding" else {"n": 2}
    with pytest.raises((TypeError, OSError), match=r"not JSON serializable|disk full"):
        write_json(path, value)
    assert json.loads(path.read_text()) == {"n": 1}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("domain", "wider", "inside"),
    [
        ({"n": [1, 8]}, {"n": [1, 8]}, True),
        ({"n": (2, 8)}, {"n": [1, 9]}, True),
        ({"n": [1, 8]}, {"n": [2, 9]}, False),
        ({"n": [1, 8]}, {"n": [9, 12]}, False),
        ({"n": [1, 8]}, {}, True),
        ({}, {"n": [1, 8]}, False),
        ({"d": [64, 128, 256]}, {"d": [64, 128]}, False),
        ({"d": [4, 6, 8]}, {"d": [1, 8]}, True),
        ({"kind": ["a"]}, {"kind": ["a", "b"]}, True),
        ({"kind": ["a", "b"]}, {"kind": ["a"]}, False),
    ],
)
def test_a_domain_lies_within_another(domain, wider, inside):
    """Every range and every value must be admitted; a key that one lacks is unbounded there."""
    assert within(domain, wider) is inside
