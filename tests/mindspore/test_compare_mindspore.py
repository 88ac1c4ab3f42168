"""Real dumps of MindSpore against each other: equal runs are equal, and planted faults are named."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import compare_scenarios as scenarios
import pytest

from msprobe.compare.comparison import Request, compare_dumps
from msprobe.compare.rows import Summary

if TYPE_CHECKING:
    from forked_mindspore import ForkedMindSpore

TASKS: dict[str, dict[str, Any]] = {
    "statistics": {"task": "statistics", "level": "mix"},
    "tensor": {"task": "tensor", "level": "mix"},
    "md5": {"task": "statistics", "level": "mix", "statistics": {"summary_mode": "md5"}},
}


def compared(server: ForkedMindSpore, folder: Path, fault: str, task: str, **options: Any) -> Summary:
    """A run with a fault against one without."""
    runs = []
    for name in ("", fault):
        place = folder / ("target" if runs else "golden")
        place.mkdir()
        runs.append(Path(server.value(scenarios.recorded, str(place), name, TASKS[task])))
    return compare_dumps(Request(runs[1], runs[0], folder / "out", **options)).summary


def against_torch(server: ForkedMindSpore, folder: Path, fault: str) -> Summary:
    """A run of MindSpore against the recording of its twin in PyTorch (`torch_twin`)."""
    target = Path(server.value(scenarios.recorded, str(folder), fault, TASKS["statistics"]))
    golden = Path(__file__).with_name("torch_mlp")
    return compare_dumps(Request(target, golden, folder / "out")).summary


def test_run_of_mindspore_equals_its_twin_in_pytorch(fresh_mindspore: ForkedMindSpore, tmp_path: Path) -> None:
    summary = against_torch(fresh_mindspore, tmp_path, "")
    assert (summary.first_divergence, summary.records.get("error", 0)) == (None, 0), summary.first_divergence
    assert summary.records["pass"] > 8


@pytest.mark.parametrize(
    ("fault", "name", "causes"),
    [
        ("weight", "Cell.down.Dense", {"a parameter differs"}),
        ("operation", "tanh", {"operation differs"}),
        ("nan", "sqrt", {"an extra call", "an extra call with a non-finite output"}),
    ],
)
def test_fault_is_named_against_the_twin_in_pytorch(
    fresh_mindspore: ForkedMindSpore, tmp_path: Path, fault: str, name: str, causes: set[str]
) -> None:
    first = against_torch(fresh_mindspore, tmp_path, fault).first_divergence
    assert first is not None
    assert (name in str(first.record), first.cause in causes) == (True, True), (first.record, first.explanation)
    assert fault != "weight" or ("down.weight" in first.explanation and first.module == "down")


@pytest.mark.parametrize("task", TASKS)
def test_equal_runs_are_equal_to_the_bit(fresh_mindspore: ForkedMindSpore, tmp_path: Path, task: str) -> None:
    summary = compared(fresh_mindspore, tmp_path, "", task, exact=True)
    assert (summary.first_divergence, summary.exit_code) == (None, 0)
    assert summary.records["pass"] > 8
    assert task in summary.pairs[0].mode


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("fault", "name", "causes"),
    [
        ("weight", "MatMul.1", {"a parameter differs"}),
        ("operation", "tanh", {"operation differs"}),
        ("nan", "sqrt", {"an extra call", "an extra call with a non-finite output"}),
    ],
)
def test_fault_is_named_with_its_cause(
    fresh_mindspore: ForkedMindSpore, tmp_path: Path, fault: str, name: str, causes: set[str], task: str
) -> None:
    first = compared(fresh_mindspore, tmp_path, fault, task).first_divergence
    assert first is not None
    assert (name in str(first.record), first.cause in causes) == (True, True), (first.record, first.explanation)
    assert fault != "weight" or ("down.weight" in first.explanation and first.module == "down")
