"""Metrics and verdicts of single values, above all where numbers are special."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.compare.judge import judge_metrics, judge_scalar, judge_statistics, noise_of
from msprobe.compare.metrics import compare_arrays
from msprobe.compare.rows import Entry
from msprobe.compare.thresholds import limits_for, measured_limits

FLOAT32 = limits_for("float32", "float32", "default")


def tensor(largest: float, smallest: float, mean: float, norm: float, dtype: str = "float32", **more: object) -> Entry:
    return Entry("tensor", dtype, (4,), largest, smallest, mean, norm, **more)  # type: ignore[arg-type]


def test_infinities_of_different_sign_differ_in_elements() -> None:
    metrics = compare_arrays(np.array([np.inf, 1, 2]), np.array([-np.inf, 1, 2]))
    assert metrics.nonfinite_mismatches == 1
    assert metrics.worst == (0,)
    assert judge_metrics(metrics, tensor(1, 1, 1, 1), FLOAT32).verdict == "error"


def test_infinities_of_different_sign_differ_in_statistics() -> None:
    target, golden = tensor(math.inf, 0, math.inf, math.inf), tensor(0, -math.inf, -math.inf, math.inf)
    assert judge_statistics(target, golden, FLOAT32).verdict == "error"


def test_nan_at_the_same_place_is_equal() -> None:
    values = np.array([np.nan, 1.0, np.inf])
    metrics = compare_arrays(values, values.copy())
    assert (metrics.nonfinite_mismatches, metrics.cosine, metrics.max_abs, metrics.thousandth) == (0, 1.0, 0.0, 1.0)


def test_nan_at_another_place_differs() -> None:
    metrics = compare_arrays(np.array([np.nan, 1.0]), np.array([1.0, np.nan]))
    assert metrics.nonfinite_mismatches == 2
    assert metrics.thousandth == 0.0


def test_nan_statistics_on_both_sides_pass_and_say_what_they_cannot_tell() -> None:
    nan = tensor(math.nan, math.nan, math.nan, math.nan)
    decision = judge_statistics(nan, nan, FLOAT32)
    assert decision.verdict == "pass"
    assert "NaN on both sides" in decision.message


def test_nan_on_one_side_is_an_error() -> None:
    nan = tensor(math.nan, math.nan, math.nan, math.nan)
    assert judge_statistics(nan, tensor(1, 0, 0.5, 2), FLOAT32).verdict == "error"
    assert judge_statistics(tensor(1, 0, 0.5, 2), nan, FLOAT32).verdict == "error"


def test_norm_that_overflows_on_one_side_only_is_judged_by_the_elements() -> None:
    target, golden = tensor(6e4, 0, 1, math.inf, "float16"), tensor(6e4, 0, 1, 1.2e5, "float16")
    assert judge_statistics(target, golden, limits_for("float16", "float16", "default")).verdict == "pass"


def test_half_precision_zeros_are_no_nan() -> None:
    zeros = np.zeros(5, np.float16)
    metrics = compare_arrays(zeros, zeros, ("float16", "float16"))
    assert (metrics.cosine, metrics.max_relative, metrics.relative_euclidean, metrics.max_ulp) == (1.0, 0.0, 0.0, 0.0)


def test_squares_of_tiny_half_precision_numbers_do_not_vanish() -> None:
    tiny = np.full(4, 6e-8, np.float16)
    assert compare_arrays(tiny, tiny, ("float16", "float16")).cosine == pytest.approx(1.0)


def test_one_zero_norm_has_no_direction() -> None:
    metrics = compare_arrays(np.ones(3), np.zeros(3))
    assert metrics.cosine == 0.0
    assert metrics.relative_euclidean == math.inf
    assert judge_metrics(metrics, tensor(0, 0, 0, 0), FLOAT32).verdict == "error"


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 4)])
def test_empty_tensors_pass(shape: tuple[int, ...]) -> None:
    metrics = compare_arrays(np.empty(shape), np.empty(shape))
    entry = Entry("tensor", "float32", shape)
    assert metrics.worst is None
    assert judge_metrics(metrics, entry, FLOAT32).verdict == "pass"
    assert judge_statistics(entry, entry, FLOAT32).verdict == "pass"


def test_zero_dimensional_tensors_have_distances_only() -> None:
    metrics = compare_arrays(np.array(2.0), np.array(1.0))
    assert (metrics.cosine, metrics.thousandth, metrics.max_abs, metrics.max_relative) == (None, None, 1.0, 1.0)
    assert metrics.worst == ()


def test_shapes_that_differ_are_refused_with_both() -> None:
    with pytest.raises(ValueError, match=r"\(2,\) and \(2, 1\)"):
        compare_arrays(np.ones(2), np.ones((2, 1)))


def test_worst_element_of_a_transposed_view_is_given_by_its_logical_index() -> None:
    golden = np.arange(12.0).reshape(3, 4).T
    target = golden.copy()
    target[3, 1] += 5
    metrics = compare_arrays(target, golden)
    assert metrics.worst == (3, 1)
    assert (metrics.worst_target, metrics.worst_golden) == (12.0, 7.0)


@pytest.mark.parametrize(("dtype", "step"), [("float32", 2**-23), ("float16", 2**-10), ("bfloat16", 2**-7)])
def test_ulp_counts_units_of_the_dtype(dtype: str, step: float) -> None:
    golden = np.array([1.0, -2.0], np.float32)
    target = golden * np.float32(1) + np.array([step, -2 * step * 3], np.float32)
    assert compare_arrays(target, golden, (dtype, dtype)).max_ulp == 3.0


def test_ulp_of_different_dtypes_is_that_of_the_coarser() -> None:
    golden, target = np.array([1.0]), np.array([1.0 + 2**-7])
    assert compare_arrays(target, golden, ("bfloat16", "float64")).max_ulp == 1.0
    assert compare_arrays(target, golden, ("int64", "float64")).max_ulp is None


@given(st.lists(st.floats(width=32), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_a_tensor_equals_itself_whatever_is_in_it(values: list[float]) -> None:
    array = np.array(values, np.float32)
    metrics = compare_arrays(array, array.copy(), ("float32", "float32"))
    assert metrics.nonfinite_mismatches == 0
    assert metrics.max_abs == metrics.euclidean == metrics.relative_euclidean == metrics.max_ulp == 0.0


@given(st.integers(1, 5), st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_pieces_add_up_to_what_numpy_gives_at_once(pieces: int, seed: int) -> None:
    import msprobe.compare.metrics as module

    random = np.random.default_rng(seed)
    target, golden = random.normal(size=50), random.normal(size=50)
    before, module._PIECE = module._PIECE, 50 // pieces
    try:
        metrics = compare_arrays(target, golden)
    finally:
        module._PIECE = before
    assert metrics.euclidean == pytest.approx(np.linalg.norm(target - golden))
    expected = target @ golden / np.linalg.norm(target) / np.linalg.norm(golden)
    assert metrics.cosine == pytest.approx(expected)
    assert metrics.max_relative == pytest.approx(np.max(np.abs(target - golden) / np.abs(golden)))


def test_min_near_zero_raises_no_alarm() -> None:
    assert judge_statistics(tensor(5, 1e-9, 1, 7), tensor(5, 2e-9, 1, 7), FLOAT32).verdict == "pass"


def test_verdict_has_number_threshold_and_source() -> None:
    decision = judge_statistics(tensor(5, 0, 1, 7.7), tensor(5, 0, 1, 7), FLOAT32)
    assert (decision.verdict, decision.measure) == ("error", "relative Norm difference")
    assert decision.number == pytest.approx(0.1)
    assert (decision.threshold, decision.source) == (2e-3, "default for float32")


def test_rounding_noise_beside_large_values_is_no_error() -> None:
    beside = [tensor(100, -100, 0, 500), tensor(1e-9, -1e-9, 0, 2e-9)]
    target = tensor(3e-9, -3e-9, 0, 6e-9)
    assert judge_statistics(target, beside[1], FLOAT32).verdict == "error"
    assert judge_statistics(target, beside[1], FLOAT32, noise_of(beside)).verdict == "pass"


def test_integers_are_exact_and_coarser_dtype_counts() -> None:
    assert limits_for("int64", "int64", "default").error == 0.0
    assert limits_for("float32", "bfloat16", "default").source == "default for bfloat16"


def test_measured_limits_name_their_origin_and_have_a_floor() -> None:
    assert measured_limits(1e-3, "float32", "run2").warning == pytest.approx(8e-3)
    assert "run2" in measured_limits(1e-3, "float32", "run2").source
    assert measured_limits(0.0, "bfloat16", "run2").warning == 4 * 2**-7


@pytest.mark.parametrize(
    ("target", "golden", "verdict"),
    [
        (0.1, 0.1, "pass"),
        (0.1, 0.5, "error"),
        (1, 2, "error"),
        (True, 1, "error"),
        ("sum", "mean", "error"),
        ("npu:0", "cuda:1", "pass"),
        (math.inf, -math.inf, "error"),
        ([1, None], [1, None], "pass"),
    ],
)
def test_scalars(target: object, golden: object, verdict: str) -> None:
    sides = [Entry("scalar", type(value).__name__, value=value) for value in (target, golden)]
    assert judge_scalar(*sides, "default").verdict == verdict


def test_nan_scalars_on_both_sides_are_equal() -> None:
    nan = Entry("scalar", "float", value=math.nan)
    assert judge_scalar(nan, Entry("scalar", "float", value=float("nan")), "default").verdict == "pass"
