"""Values that comparisons stumble over, from real recordings in both modes of reading them to the verdict."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from msprobe.compare.comparison import Request, compare_dumps
from msprobe.compare.rows import Summary

INF, NAN = float("inf"), float("nan")
HALF = torch.float16
TASKS: dict[str, dict[str, Any]] = {
    "statistics": {"task": "statistics"},
    "tensor": {"task": "tensor"},
    "md5": {"task": "statistics", "statistics": {"summary_mode": "md5"}},
}


def values(*numbers: Any, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(numbers, dtype=dtype)


#: What -> (target, golden, verdicts by statistics, by elements and by checksum).
CASES: dict[str, tuple[Any, Any, str, str, str]] = {
    "+inf against -inf": (values(INF, 1, 2), values(-INF, 1, 2), "error", "error", "error"),
    "+inf on both sides": (values(INF, 1, 2), values(INF, 1, 2), "pass", "pass", "pass"),
    "infinity against a large number": (values(INF, 1), values(3e38, 1), "error", "error", "error"),
    "NaN on both sides": (values(NAN, 1, 2), values(NAN, 1, 2), "pass", "pass", "pass"),
    "NaN at another place": (values(NAN, 1, 2), values(1, NAN, 2), "pass", "error", "error"),
    "NaN on one side": (values(NAN, 1, 2), values(0, 1, 2), "error", "error", "error"),
    "NaN beside another number": (values(NAN, 1, 2), values(NAN, 5, 2), "pass", "error", "error"),
    "half precision, one unit": (values(1 + 2**-10, 2, dtype=HALF), values(1, 2, dtype=HALF), "pass", "pass", "error"),
    "half precision, fifty units": (values(1.05, 1, dtype=HALF), values(1, 1, dtype=HALF), "error", "error", "error"),
    "smallest half precision against zero": (values(6e-8, dtype=HALF), values(0, dtype=HALF), *["error"] * 3),
    "zeros": (values(0, 0), values(0, 0), "pass", "pass", "pass"),
    "negative zero": (values(-0.0, 0), values(0, 0), "pass", "pass", "error"),
    "zero norm in golden": (values(0, 1e-20), values(0, 0), "error", "error", "error"),
    "zero norm in the target": (values(0, 0), values(0, 1e-20), "error", "error", "error"),
    "empty": (torch.empty(0, 3), torch.empty(0, 3), "pass", "pass", "pass"),
    "empty on one side": (torch.empty(0, 3), torch.ones(2, 3), "error", "error", "error"),
    "shape": (torch.ones(2, 3), torch.ones(3, 2), "error", "error", "error"),
    "dtype": (values(1, 2), values(1, 2, dtype=torch.float64), "error", "error", "error"),
    "0-dim": (torch.tensor(-2.5), torch.tensor(-2.5), "pass", "pass", "pass"),
    "0-dim that differs": (torch.tensor(-2.5), torch.tensor(-2.0), "error", "error", "error"),
    "0-dim against one element": (torch.tensor(2.5), values(2.5), "error", "error", "error"),
    "64-bit integers apart by one": (torch.tensor([2**60 + 1]), torch.tensor([2**60]), "error", "error", "error"),
    "booleans": (
        values(True, False, dtype=torch.bool),
        values(False, True, dtype=torch.bool),
        "pass",
        "error",
        "error",
    ),
    "complex phase": (values(1j, dtype=torch.complex64), values(-1j, dtype=torch.complex64), "pass", "error", "error"),
    "missing in the target": ([values(1)], [values(1), values(2)], "unmatched", "unmatched", "unmatched"),
    "a number against a tensor": (2.5, torch.tensor(2.5), "error", "error", "error"),
}


@pytest.fixture(scope="module")
def summaries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Summary]:
    """All cases recorded by ``save()`` in one run for each task and side."""
    from msprobe.pytorch import PrecisionDebugger

    def recorded(folder: Path, task: str, side: int) -> Path:
        PrecisionDebugger._instance = None
        config = folder.with_suffix(".json")
        config.write_text(json.dumps({"dump_path": str(folder), "level": "debug", **TASKS[task]}))
        tool = PrecisionDebugger(config_path=config)
        for number, case in enumerate(CASES.values()):
            tool.save({"value": case[side]}, f"case{number}")
        tool.step()
        tool._session.close()
        PrecisionDebugger._instance = None
        return folder

    found = {}
    for task in TASKS:
        root = tmp_path_factory.mktemp(task)
        sides = [recorded(root / name, task, side) for side, name in enumerate(("target", "golden"))]
        found[task] = compare_dumps(Request(*sides, root / "out")).summary
    return found


def verdict_of(summary: Summary, name: str) -> str:
    """Read the verdict of a case in the table beside the summary."""
    table = Path(summary.target).parent / "out" / "compare_result.csv"
    gravity = ["pass", "uncompared", "warning", "unmatched", "error"]
    with table.open(newline="", encoding="utf-8") as file:
        rows = [
            row["Result"] for row in csv.DictReader(file) if f"{name}.0.debug" in row["NPU Name"] + row["Bench Name"]
        ]
    return max(rows, key=gravity.index)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("case", CASES)
def test_value_gets_its_verdict(summaries: dict[str, Summary], case: str, task: str) -> None:
    name = f"case{list(CASES).index(case)}"
    assert verdict_of(summaries[task], name) == CASES[case][2 + list(TASKS).index(task)]
