"""Every clause on both sides of a limit that is not a default, and on values that are not numbers."""

import math

import pytest
import torch

from kernelpact.clauses import Sample, clauses, make
from kernelpact.clauses.base import ShapeMismatch, clause, ulp_size
from kernelpact.clauses.elementwise import Ulp
from kernelpact.verdict import Verdict

HOLDS, VIOLATED, INCONCLUSIVE = Verdict.HOLDS, Verdict.VIOLATED, Verdict.INCONCLUSIVE


def nudged(value, ulps, dtype=torch.float32):
    """Give a sample whose only element is `ulps` units in the last place above its reference."""
    reference = torch.tensor([value], dtype=torch.float64)
    candidate = (reference + ulps * ulp_size(reference, dtype)).to(dtype)
    return Sample(candidate, reference)


def pair(candidate, reference, **more):
    """Give a sample of float32 values."""
    return Sample(
        torch.tensor(candidate, dtype=torch.float32), torch.tensor(reference, dtype=torch.float64), **more
    )


def judge(metric, limit, sample):
    """Give the verdict of a metric at a limit."""
    return make(metric, output="y", limit=limit, why="boundary").judge(sample).verdict


@pytest.mark.parametrize(("gap", "verdict"), [(2, HOLDS), (3, VIOLATED)])
def test_ulp_decides_at_its_limit(gap, verdict):
    """The limit itself is allowed; one ulp more is not."""
    assert Ulp(output="y", max=2, why="boundary").judge(nudged(1.0, ulps=gap)).verdict is verdict


@pytest.mark.parametrize(
    ("metric", "candidate", "reference", "observed"),
    [
        ("max_abs", [1.0, 2.5], [1.0, 2.0], 0.5),
        ("max_rel", [1.0, 2.5], [1.0, 2.0], 0.25),
        ("rel_rms", [[3.0, 4.0], [3.0, 4.5]], [[3.0, 4.0], [3.0, 4.0]], 0.1),
        ("logit_drift", [[0.0, 1.0]], [[0.0, 2.0]], 0.5),
        ("logit_drift_rms", [[0.0, 0.0]], [[0.0, 2.0]], 1.0),
        ("head_drift", [[0.0, 0.0, -30.0]], [[0.0, 2.0, 50.0]], 1.0),
        ("nonfinite", [1.0, math.inf], [1.0, 1.0], 1.0),
    ],
)
def test_each_metric_measures_what_it_says(metric, candidate, reference, observed):
    """The observed figure is the known one; a limit just above holds, just below is violated."""
    sample = pair(candidate, reference)
    found = make(metric, output="y", limit=observed * 1.001, why="boundary").judge(sample)
    assert found.observed == pytest.approx(observed, rel=1e-6)
    assert found.verdict is HOLDS
    assert judge(metric, observed * 0.999, sample) is VIOLATED


@pytest.mark.parametrize(("limit", "verdict"), [(0.8, HOLDS), (0.81, VIOLATED)])
def test_cosine_is_a_floor(limit, verdict):
    """A cosine of 0.8 satisfies 0.8 and not 0.81."""
    assert judge("cosine", limit, pair([[3.0, 4.0]], [[0.0, 1.0]])) is verdict


@pytest.mark.parametrize(("limit", "verdict"), [(19.9, HOLDS), (20.1, VIOLATED)])
def test_sqnr_is_a_floor_in_decibels(limit, verdict):
    """An error of a tenth of the signal is 20 dB."""
    assert judge("sqnr_db", limit, pair([[1.1, 1.1]], [[1.0, 1.0]])) is verdict


def test_error_ratio_compares_with_eager_and_with_one_rounding():
    """Twice eager's error is 2; an eager row that is exact by luck counts as one rounding's noise."""
    reference = torch.ones(1, 4, dtype=torch.float64)
    candidate = torch.full((1, 4), 1.2)
    found = make("error_ratio", output="y", limit=9, why="x").judge(
        Sample(candidate, reference, None, candidate / 1.2 * 1.1)
    )
    assert found.observed == pytest.approx(2.0, rel=1e-5)
    lucky = make("error_ratio", output="y", limit=9, why="x").judge(
        Sample(torch.ones(1, 4) * (1 + 2**-23), reference, None, torch.ones(1, 4))
    )
    assert lucky.observed == pytest.approx(12**0.5, rel=1e-6)
    with pytest.raises(ValueError, match="needs what eager PyTorch gives"):
        judge("error_ratio", 1.0, pair([1.0], [1.0]))


@pytest.mark.parametrize("metric", sorted(set(clauses) - {"error_ratio", "bitwise", "nonfinite"}))
def test_nan_on_one_side_is_violated(metric):
    """A NaN that the reference does not have breaks every promise, however wide."""
    limit = -2.0 if clauses[metric].higher_is_better else 1e30
    assert judge(metric, limit, pair([[1.0, math.nan]], [[1.0, 2.0]])) is VIOLATED
    assert judge(metric, limit, pair([[1.0, 2.0]], [[1.0, math.nan]])) is VIOLATED


def test_error_ratio_and_nonfinite_see_a_nan():
    """A NaN is beyond any ratio, also where eager has it not; where both sides have one nothing is lost."""
    nan, number = torch.tensor([[1.0, math.nan]]), torch.tensor([[1.0, 2.0]])
    assert judge("error_ratio", 1e30, Sample(nan, number.double(), None, number)) is VIOLATED
    assert judge("nonfinite", 0.5, Sample(nan, number.double())) is VIOLATED
    assert judge("nonfinite", 0.5, Sample(nan, nan.double())) is HOLDS


@pytest.mark.parametrize("metric", ["max_abs", "max_rel", "ulp"])
def test_nan_and_infinity_on_both_sides_agree(metric):
    """Where both sides are NaN, or the same infinity, nothing differs; opposite infinities do."""
    both = pair([math.nan, math.inf, -math.inf, 1.0], [math.nan, math.inf, -math.inf, 1.0])
    assert judge(metric, 0.0, both) is HOLDS
    assert judge(metric, 1e6, pair([math.inf], [-math.inf])) is VIOLATED


def test_infinity_is_the_value_past_the_largest():
    """fp16's 65504 and infinity are one step apart, and a reference of 70000 rounds to infinity."""
    infinite = torch.tensor([math.inf], dtype=torch.float16)
    assert judge("ulp", 1.0, Sample(infinite, torch.tensor([65504.0], dtype=torch.float64))) is HOLDS
    assert judge("ulp", 0.0, Sample(infinite, torch.tensor([70000.0], dtype=torch.float64))) is HOLDS
    assert judge("ulp", 100.0, Sample(infinite, torch.tensor([60000.0], dtype=torch.float64))) is VIOLATED


def test_a_masked_logit_does_not_drown_its_row():
    """An infinite reference has no magnitude, so an error elsewhere in the row still shows."""
    assert judge("rel_rms", 0.1, pair([[-math.inf, 1.5]], [[-math.inf, 1.0]])) is VIOLATED


@pytest.mark.parametrize("metric", ["logit_drift", "logit_drift_rms", "head_drift"])
def test_a_mask_on_both_sides_is_no_drift_and_on_one_side_is_infinite(metric):
    """Equal supports are compared; a token that either side masks alone is VIOLATED, however wide the limit."""
    masked, seen = [[0.0, -math.inf, 1.0]], [[0.0, 2.0, 1.0]]
    assert judge(metric, 1e-6, pair(masked, masked)) is HOLDS
    assert judge(metric, 1e30, pair(seen, masked)) is VIOLATED
    assert judge(metric, 1e30, pair(masked, seen)) is VIOLATED


@pytest.mark.parametrize("metric", ["logit_drift", "logit_drift_rms", "head_drift"])
def test_drift_is_of_rows_of_logits(metric):
    """The token of a tensor of any rank is named by its leading index; a vector holds no logits."""
    reference = torch.zeros(2, 3, 4, dtype=torch.float64)
    candidate = torch.zeros(2, 3, 4)
    candidate[1, 2, 1] = 3.0
    assert make(metric, output="y", limit=0.1, why="x").judge(Sample(candidate, reference)).index == (1, 2)
    with pytest.raises(ShapeMismatch, match=r"logits are \[T, V\], found \[2\]"):
        judge(metric, 0.1, pair([1.0, 5.0], [1.0, 2.0]))


@pytest.mark.parametrize("metric", ["rel_rms", "cosine", "sqnr_db", "error_ratio"])
def test_each_element_of_a_vector_is_a_row(metric):
    """A wrong sign in one of a thousand elements is found, at that element."""
    reference = torch.ones(1000, dtype=torch.float64)
    candidate = torch.ones(1000)
    candidate[700] = -1.0
    found = make(metric, output="y", limit=0.9, why="x").judge(
        Sample(candidate, reference, None, torch.ones(1000))
    )
    assert (found.verdict, found.index) == (VIOLATED, (700,))


@pytest.mark.parametrize("metric", ["rel_rms", "cosine", "sqnr_db"])
def test_one_wrong_row_does_not_hide_among_right_ones(metric):
    """A figure is the worst row's, with that row's leading index."""
    reference = torch.ones(3, 50, 4, dtype=torch.float64)
    candidate = torch.ones(3, 50, 4)
    candidate[2, 31] = torch.tensor([1.0, -1.0, 1.0, -1.0])
    found = make(metric, output="y", limit=0.9, why="x").judge(Sample(candidate, reference))
    assert (found.verdict, found.index) == (VIOLATED, (2, 31))


@pytest.mark.parametrize(
    ("metric", "candidate", "reference", "limit", "verdict"),
    [
        ("cosine", [0.0, 0.0], [0.0, 0.0], 1.0, HOLDS),
        ("cosine", [0.0, 0.0], [1.0, 0.0], 0.1, VIOLATED),
        ("cosine", [1.0, 0.0], [0.0, 0.0], 0.1, VIOLATED),
        ("sqnr_db", [0.0, 0.0], [0.0, 0.0], 300.0, HOLDS),
        ("sqnr_db", [1e-30, 0.0], [0.0, 0.0], -300.0, VIOLATED),
        ("rel_rms", [0.0, 0.0], [0.0, 0.0], 0.0, HOLDS),
        ("rel_rms", [1e-30, 0.0], [0.0, 0.0], 1e-3, VIOLATED),
    ],
)
def test_rows_of_zeros_agree_with_themselves_alone(metric, candidate, reference, limit, verdict):
    """0 against 0 is exact; anything against 0 is not, and neither is a division by zero."""
    assert judge(metric, limit, pair([candidate], [reference])) is verdict


@pytest.mark.parametrize("metric", sorted(set(clauses) - {"bitwise", "nonfinite"}))
def test_what_overflows_fp16_on_one_side_is_seen(metric):
    """An fp16 infinity where the reference is 1 breaks every promise."""
    candidate = torch.tensor([[1.0, math.inf]], dtype=torch.float16)
    reference = torch.ones(1, 2, dtype=torch.float64)
    limit = 0.9 if clauses[metric].higher_is_better else 3.0
    assert judge(metric, limit, Sample(candidate, reference, None, torch.ones(1, 2).half())) is VIOLATED


@pytest.mark.parametrize(("limit", "verdict"), [(2.0, HOLDS), (1.0, VIOLATED)])
def test_nonfinite_counts_what_the_dtype_could_hold(limit, verdict):
    """An infinity past the dtype's range is right; one within it is at fault, and each is counted."""
    candidate = torch.tensor([math.inf, math.inf, -math.inf, 1.0], dtype=torch.float16)
    reference = torch.tensor([70000.0, 65504.0, 1.0, 1.0], dtype=torch.float64)
    assert judge("nonfinite", limit, Sample(candidate, reference)) is verdict


def test_bitwise_compares_equal_dtypes():
    """A comparison across dtypes has no bits to compare."""
    with pytest.raises(
        TypeError, match=r"bitwise compares equal dtypes, found torch.float32 and torch.float64"
    ):
        judge("bitwise", 0.0, pair([1.0], [1.0]))


def test_a_metric_has_one_clause_and_an_unknown_one_none():
    """A second class for a metric is refused, and a metric without a class is a KeyError."""
    with pytest.raises(ValueError, match="metric 'ulp' already has a clause: Ulp"):
        clause("ulp")(Ulp)
    with pytest.raises(KeyError, match="speed"):
        make("speed", output=None, limit=1.0, why="x")


def test_bitwise_tells_zeros_apart_and_takes_nan_for_nan():
    """−0 is not 0; NaN is NaN; one differing element is counted and found."""
    same = torch.tensor([math.nan, 0.0, 1.0])
    assert judge("bitwise", 0.0, Sample(same, same.clone())) is HOLDS
    found = make("bitwise", output="y", limit=0.0, why="x").judge(
        Sample(same, torch.tensor([math.nan, -0.0, 1.0]))
    )
    assert (found.verdict, found.observed, found.index) == (VIOLATED, 1.0, (1,))


def test_a_scale_allows_for_cancellation():
    """An error of 1e-6 beside terms of size 1 that cancel to 1e-6 is 1e-6 of the scale, not 1."""
    scale = torch.tensor([1.0], dtype=torch.float64)
    assert judge("max_rel", 1e-3, pair([2e-6], [1e-6], scale=scale)) is HOLDS
    assert judge("max_rel", 1e-3, pair([2e-6], [1e-6])) is VIOLATED


def test_subnormals_share_one_ulp():
    """Below the smallest normal number the spacing stays what it is there."""
    tiny = torch.finfo(torch.float16).tiny
    assert float(ulp_size(torch.tensor([tiny / 8]), torch.float16)) == tiny * 2**-10


@pytest.mark.parametrize("metric", sorted(clauses))
def test_an_empty_output_is_no_evidence(metric):
    """Zero elements are INCONCLUSIVE, never a pass."""
    empty = torch.zeros(0, 3)
    assert judge(metric, 1.0, Sample(empty, empty.double())) is INCONCLUSIVE


def test_shapes_must_agree():
    """A candidate of another shape is an error, not a broadcast."""
    with pytest.raises(ShapeMismatch, match=r"reference has shape \[2\], candidate \[1\]"):
        Sample(torch.zeros(1), torch.zeros(2))
