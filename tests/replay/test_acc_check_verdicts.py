"""The table of verdicts, and what its numbers mean."""

from __future__ import annotations

import math

import pytest
import torch

from msprobe.replay.api_kinds import Kind
from msprobe.replay.errors import Rounding, count_different, measure
from msprobe.replay.judge import Demand, Runs, judge_runs
from msprobe.replay.verdicts import Result, judge_ratio, judge_units, worst

MANY = Result("torch.float32", 10**6, often=False)


def test_units_decide_by_dtype_class() -> None:
    assert judge_units((5.0, 20.0), MANY).verdict == "pass"
    assert judge_units((20.0, 20.0), MANY).verdict == "warning"
    assert judge_units((5.0, 200.0), MANY).verdict == "error"
    assert judge_units((5.0, 20.0), Result("torch.bfloat16", 10**6, often=False)).verdict == "error"
    assert judge_units((math.nan, 0.0), MANY).verdict == "error"


def test_a_device_is_judged_by_the_error_of_the_yardstick() -> None:
    assert judge_ratio((100.0, 400.0), (80.0, 300.0), MANY).verdict == "pass", "the CPU is no better"
    assert judge_ratio((100.0, 400.0), (30.0, 300.0), MANY).verdict == "warning"
    assert judge_ratio((100.0, 400.0), (0.0, 0.0), MANY).verdict == "error"
    assert judge_ratio((1.0, 2.0), (0.0, 0.0), MANY).verdict == "pass", "rounding explains it"
    assert "times the yardstick's error" in judge_ratio((100.0, 400.0), (30.0, 300.0), MANY).rule


def test_the_worst_verdict_counts() -> None:
    assert worst(["pass", "error", "warning"]) == "error"
    assert worst(["skip", "pass"]) == "pass"
    assert worst([]) == "skip"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_one_rounding_is_less_than_one_unit(dtype: torch.dtype) -> None:
    exact = torch.randn(1000, dtype=torch.float64)
    found = measure(exact.to(dtype), exact, Rounding(dtype, 1.0, False, None))
    assert 0.05 < found.rms_units < 0.6
    assert found.max_ulp <= 0.5
    assert found.misplaced == 0
    assert found.cosine == pytest.approx(1.0, abs=1e-4)


def test_errors_are_those_of_their_definitions() -> None:
    exact = torch.tensor([1.0, 2.0, -4.0], dtype=torch.float64)
    found = measure(torch.tensor([1.0, 2.0, -4.5]), exact, Rounding(torch.float32, 1.0, False, None))
    assert found.max_abs == 0.5
    assert found.max_rel == 0.125
    assert found.rms_rel == pytest.approx(0.5 / math.sqrt(21))
    assert found.max_ulp == 0.5 / (4 * 2.0**-23)


def test_nan_and_infinity_must_stand_where_the_reference_has_them() -> None:
    rounding = Rounding(torch.float16, 1.0, False, None)
    exact = torch.tensor([math.nan, math.inf, -math.inf, 1e6, 1.0], dtype=torch.float64)
    good = torch.tensor([math.nan, math.inf, -math.inf, math.inf, 1.0], dtype=torch.float16)  # 1e6 is inf in float16
    assert measure(good, exact, rounding).misplaced == 0
    bad = torch.tensor([1.0, -math.inf, -math.inf, math.inf, math.nan], dtype=torch.float16)
    assert measure(bad, exact, rounding).misplaced == 3


def test_equality_is_of_the_rounded_reference_and_nan_equals_nan() -> None:
    exact = torch.tensor([0.1, math.nan, 3.0], dtype=torch.float64)
    assert count_different(exact.to(torch.bfloat16), exact) == 0
    assert count_different(torch.tensor([0.1, math.nan, 3.1]), exact) == 1


def test_positions_of_equal_values_are_equally_right() -> None:
    source = torch.tensor([[1.0, 5.0, 5.0], [2.0, 0.0, 1.0]])
    demand = Demand(Kind.EXACT, None, [source], positions=True, often=False, narrow_sums=False)

    def verdict(found: list[int]) -> str:
        runs = Runs(
            "Torch.argmax.0",
            "forward",
            [("output.0", torch.tensor(found))],
            [("output.0", torch.tensor([1, 0]))],
            None,
            None,
        )
        return judge_runs(runs, demand)[0].verdict

    assert verdict([1, 0]) == "pass"
    assert verdict([2, 0]) == "pass"
    assert verdict([0, 0]) == "error"


def test_another_shape_is_an_error() -> None:
    demand = Demand(Kind.FLOAT, None, [], positions=False, often=False, narrow_sums=False)
    runs = Runs("Torch.f.0", "forward", [("output.0", torch.ones(2))], [("output.0", torch.ones(3))], None, None)
    (detail,) = judge_runs(runs, demand)
    assert detail.verdict == "error"
    assert detail.rule == "shape [2], the reference [3]"


def test_infinity_in_a_float16_gradient_is_a_warning_and_in_a_result_an_error() -> None:
    exact = [("gradient.0", torch.tensor([987.0, 1.0], dtype=torch.float64))]
    found = [("gradient.0", torch.tensor([math.inf, 1.0], dtype=torch.float16))]
    runs = Runs("Torch.exp.0", "backward", found, exact, None, None)
    for often, verdict in ((True, "warning"), (False, "error")):
        demand = Demand(Kind.FLOAT, None, [], positions=False, often=often, narrow_sums=False)
        assert judge_runs(runs, demand)[0].verdict == verdict


def test_beside_a_yardstick_the_ratio_is_told_and_decides() -> None:
    exact = torch.linspace(1, 2, 4096, dtype=torch.float64)
    demand = Demand(Kind.FLOAT, None, [], positions=False, often=False, narrow_sums=False)

    def judged(device: torch.Tensor, cpu: torch.Tensor) -> tuple[str, float | None]:
        runs = Runs("Torch.f.0", "forward", [("output.0", device)], [("output.0", exact)], None, [("output.0", cpu)])
        (detail,) = judge_runs(runs, demand)
        return detail.verdict, detail.ratio

    right, rough = exact.float(), (exact * (1 + 1e-4 * torch.randn_like(exact))).float()
    assert judged(right, right)[0] == "pass"
    verdict, ratio = judged(rough, right)
    assert verdict == "error"
    assert ratio is not None
    assert ratio > 100
    assert judged(rough, rough) == ("pass", 1.0), "no reference is better than what the CPU can do"
