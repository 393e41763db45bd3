"""Slice predicates: parsed into a tree, evaluated over columns, never run as code."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelpact.dsl.slices import COLUMNS, Comparison, Logical, Membership, Not, SliceError, columns_of, parse

numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**40), 2**40).map(float)
words = st.text(st.characters(exclude_characters="'\\", codec="utf-8"), max_size=8)
literals = numbers | words
columns = st.sampled_from(COLUMNS)
leaves = st.builds(
    Comparison, columns, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), literals
) | st.builds(
    Membership,
    columns,
    st.lists(numbers, min_size=1, max_size=3).map(tuple) | st.lists(words, min_size=1, max_size=3).map(tuple),
)
predicates = st.recursive(
    leaves,
    lambda inner: (
        st.builds(Not, inner)
        | st.builds(
            Logical, st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3).map(tuple)
        )
    ),
    max_leaves=6,
)

TOKENS = {
    "position": np.array([0, 4095, 4096, 9000]),
    "logp_inf": np.array([-1.0, -8.0, -9.0, np.nan]),
    "hardware": np.array(["cpu", "sm_90", "sm_90", "cpu"]),
}


@given(predicates)
def test_a_printed_predicate_parses_to_itself(predicate):
    """str and parse are inverse, up to parentheses that change nothing."""
    text = str(predicate)
    if len(text) <= 1000:
        assert str(parse(text)) == text
        assert columns_of(parse(text)) == columns_of(predicate)


@given(
    st.text(max_size=60) | st.text(st.sampled_from("()[]<>=!'\", .andornotin0123eE+-position"), max_size=60)
)
def test_hostile_text_raises_only_slice_errors(text):
    """Whatever the text, it is a predicate or a SliceError, and evaluates to truth values or a SliceError."""
    try:
        found = parse(text).evaluate(TOKENS)
    except SliceError as error:
        found, said = np.True_, str(error)
    else:
        said = "evaluated"
    assert said
    assert np.asarray(found).dtype == bool


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("position >= 4096", [False, False, True, True]),
        ("position > 4096", [False, False, False, True]),
        ("logp_inf < -8", [False, False, True, False]),
        ("not logp_inf >= -8", [False, False, True, True]),
        ("position in [0, 9000]", [True, False, False, True]),
        ("hardware == 'sm_90' and position < 4096", [False, True, False, False]),
        ("position == 0 or position == 4095 and hardware == 'cpu'", [True, False, False, False]),
        ("(position == 0 or position == 4095) and hardware != 'cpu'", [False, True, False, False]),
    ],
)
def test_predicates_select_the_tokens_they_name(text, expected):
    """Both sides of each limit; `and` binds closer than `or`; NaN satisfies no comparison."""
    assert parse(text).evaluate(TOKENS).tolist() == expected


def test_scalars_are_evaluated_too():
    """One token is a column of rank 0."""
    assert bool(parse("position >= 4096").evaluate({"position": 4096})) is True
    assert bool(parse("position >= 4096").evaluate({"position": 4095})) is False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("positon > 1", "unknown column 'positon'; allowed: .*did you mean 'position'"),
        ("__import__('os')", "unknown column '__import__'"),
        ("position", "found 'the end', expected one of <"),
        ("position > ", "expected a number or a quoted string"),
        ("position > 1 position", "character 14: found 'position', expected `and`, `or` or the end"),
        ("position > 1e999", "1e999 is not a finite number"),
        ("position in [1, 'a']", "mixes numbers and strings"),
        ("position in []", "expected a number or a quoted string"),
        ("position ; 1", "character 10: ';' belongs to no predicate"),
        ("(position > 1", "expected `\\)`"),
        ("position > 'a\\'b'", "belongs to no predicate"),
        ("", "found 'the end', expected a column"),
        ("not " * 33 + "position > 1", "nested deeper than 32 levels"),
        ("position > 1 or " * 70 + "position > 1", "characters, allowed are 1000"),
    ],
)
def test_what_is_no_predicate_is_named(text, message):
    """Where, what was found, what is allowed."""
    with pytest.raises(SliceError, match=message):
        parse(text)


def test_nesting_up_to_the_limit_parses():
    """32 levels of parentheses or of `not` are allowed: the comparison is the last of them."""
    assert str(parse("(" * 31 + "position > 1" + ")" * 31)) == "position > 1"
    assert str(parse("not " * 31 + "position > 1")).count("not") == 31
    with pytest.raises(SliceError, match="nested deeper"):
        parse("(" * 32 + "position > 1" + ")" * 32)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hardware < 3", "column 'hardware' has dtype <U5; 3 compares with numbers"),
        ("position == 'cpu'", "column 'position' has dtype int64; 'cpu' compares with strings"),
        ("position in ['0']", "compares with strings"),
        ("entropy > 1", "no column 'entropy' in these data; found: position, logp_inf, hardware"),
    ],
)
def test_columns_of_another_kind_are_refused(text, message):
    """A string is never compared with a number, nor a column taken for empty that the data lack."""
    with pytest.raises(SliceError, match=message):
        parse(text).evaluate(TOKENS)
