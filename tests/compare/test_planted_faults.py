"""Faults planted into real training runs are named as the first divergence, and nothing is where there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from planted_model import Fault, record, remembered

from msprobe.compare.comparison import Request, compare_dumps
from msprobe.compare.rows import Summary

TASKS = {
    "statistics": {"task": "statistics"},
    "tensor": {"task": "tensor"},
    "md5": {"task": "statistics", "statistics": {"summary_mode": "md5"}},
}
RUNS = [(task, level) for task in TASKS for level in ("L1", "mix")]

SOURCE, PARAMETER, ARGUMENT = "outputs differ from equal inputs", "a parameter differs", "an argument differs"
REWIRED, MISSING = "an input comes from another record", "a missing call"
NONFINITE, OUTSIDE = "an extra call with a non-finite output", "an input from outside the capture differs"

#: Fault -> (record of the target, cause, module), where APIs are recorded; of a missing call the record of golden.
EXPECTED = {
    "weight": ("Functional.linear.7.forward", PARAMETER, "blocks.1.down"),
    "changed op": ("Torch.relu.0.forward", "operation differs", "blocks.1"),
    "half precision": ("Tensor.to.2.forward", "an extra call", "blocks.1"),
    "nan": ("Torch.sqrt.0.forward", NONFINITE, "blocks.1"),
    "swapped sub": ("Torch.sub.1.forward", "arguments in another order", "blocks.1"),
    "wired": ("Torch.sub.1.forward", REWIRED, "blocks.1"),
    "missing norm": ("Functional.layer_norm.3.forward", MISSING, ""),
    "reseeded": ("Functional.dropout.1.forward", SOURCE, "blocks.1.dropout"),
    "dropout p": ("Functional.dropout.1.forward", ARGUMENT, "blocks.1.dropout"),
    "eps": ("Functional.layer_norm.3.forward", ARGUMENT, "blocks.1.norm2"),
    "norm weight": ("Functional.layer_norm.2.forward", PARAMETER, "blocks.1.norm1"),
    "swapped qk": ("Tensor.transpose.2.forward", REWIRED, "blocks.1.attention"),
}
#: Of a module that is left out its own record is named, where there is one.
EXPECTED_AT_MIX = {
    **EXPECTED,
    "missing norm": ("Module.blocks.1.norm2.LayerNorm.forward.0", MISSING, "blocks.1.norm2"),
}
#: Where only modules are recorded: the module, or the first one that gets the wrong value.
EXPECTED_AT_L0 = {
    "weight": ("Module.blocks.1.down.Linear.forward.0", PARAMETER),
    "changed op": ("Module.blocks.1.down.Linear.forward.0", OUTSIDE),
    "half precision": ("Module.blocks.1.down.Linear.forward.0", OUTSIDE),
    "nan": ("Module.blocks.1.down.Linear.forward.0", OUTSIDE),
    "swapped sub": ("Module.blocks.1.Block.forward.0", SOURCE),
    "wired": ("Module.blocks.1.Block.forward.0", SOURCE),
    "missing norm": ("Module.blocks.1.norm2.LayerNorm.forward.0", MISSING),
    "reseeded": ("Module.blocks.1.dropout.Dropout.forward.0", SOURCE),
    "dropout p": ("Module.blocks.1.dropout.Dropout.forward.0", SOURCE),
    "eps": ("Module.blocks.1.norm2.LayerNorm.forward.0", SOURCE),
    "norm weight": ("Module.blocks.1.norm1.LayerNorm.forward.0", PARAMETER),
    "swapped qk": ("Module.blocks.1.attention.out.Linear.forward.0", OUTSIDE),
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Runs without a fault, one for each configuration: many faults are compared with each."""
    return remembered(tmp_path_factory.mktemp("golden"))


def compare(target: Path, golden: Path, out: Path, **options: Any) -> Summary:
    return compare_dumps(Request(target, golden, out, **options)).summary


@pytest.mark.parametrize(("task", "level"), RUNS)
@pytest.mark.parametrize("fault", EXPECTED)
def test_fault_is_named_with_its_cause(
    debugger: Callable[..., Any], recorded: Callable[..., Path], tmp_path: Path, fault: str, task: str, level: str
) -> None:
    config = {"level": level, "risk_level": "ALL", **TASKS[task]}
    golden = recorded(debugger, **config)
    target = record(debugger, tmp_path / "target", Fault(fault), **config)
    summary = compare(target, golden, tmp_path / "out")
    first = summary.first_divergence
    assert first is not None
    if level == "mix":
        assert (first.record or first.golden_record, first.cause, first.module) == EXPECTED_AT_MIX[fault]
    else:
        assert (first.record or first.golden_record, first.cause) == EXPECTED[fault][:2]
    assert summary.exit_code == 1


@pytest.mark.parametrize("fault", EXPECTED_AT_L0)
def test_module_is_named_where_only_modules_are_recorded(
    debugger: Callable[..., Any], recorded: Callable[..., Path], tmp_path: Path, fault: str
) -> None:
    golden = recorded(debugger, level="L0")
    target = record(debugger, tmp_path / "target", Fault(fault), level="L0")
    first = compare(target, golden, tmp_path / "out").first_divergence
    assert first is not None
    assert (first.record or first.golden_record, first.cause) == EXPECTED_AT_L0[fault]


@pytest.mark.parametrize(("task", "level"), RUNS)
def test_equal_runs_have_no_divergence(debugger: Callable[..., Any], tmp_path: Path, task: str, level: str) -> None:
    config = {"level": level, **TASKS[task]}
    golden = record(debugger, tmp_path / "golden", steps=2, **config)
    target = record(debugger, tmp_path / "target", steps=2, **config)
    summary = compare(target, golden, tmp_path / "out", exact=True)
    assert summary.first_divergence is None
    assert summary.exit_code == 0
    assert set(summary.records) <= {"pass", "uncompared"}
    assert len(summary.pairs) == 2


@pytest.mark.parametrize(("task", "level"), RUNS)
def test_extra_harmless_call_shifts_nothing_and_is_never_a_pass(
    debugger: Callable[..., Any], recorded: Callable[..., Path], tmp_path: Path, task: str, level: str
) -> None:
    config = {"level": level, "risk_level": "ALL", **TASKS[task]}
    golden = recorded(debugger, **config)
    target = record(debugger, tmp_path / "target", Fault("harmless"), **config)
    summary = compare(target, golden, tmp_path / "out")
    assert summary.first_divergence is None
    assert summary.only_golden == 0
    assert all("relu" in name or "detach" in name for name in summary.pairs[0].only_target_names)
    assert summary.only_target == summary.records["unmatched"] > 0


@pytest.mark.parametrize("task", TASKS)
def test_fault_of_one_rank_among_four(debugger: Callable[..., Any], tmp_path: Path, task: str) -> None:
    config = {"level": "mix", **TASKS[task]}
    for rank in range(4):
        record(debugger, tmp_path / "golden", rank=rank, **config)
        record(debugger, tmp_path / "target", Fault("weight" if rank == 2 else "none"), rank=rank, **config)
    summary = compare(tmp_path / "target", tmp_path / "golden", tmp_path / "out")
    assert summary.first_divergence is not None
    assert summary.first_divergence.rank == "rank2"
    assert summary.rank_only == ("rank2",)
    assert [pair.divergence is None for pair in summary.pairs] == [True, True, False, True]


def test_killed_run_is_compared_with_a_complete_one(debugger: Callable[..., Any], tmp_path: Path) -> None:
    golden = record(debugger, tmp_path / "golden")
    target = record(debugger, tmp_path / "target")
    folder = next((target / "step0").iterdir())
    text = (folder / "dump.json").read_bytes()
    (folder / "dump.json").write_bytes(text[: len(text) // 2])
    (folder / "coverage.json").unlink()
    summary = compare(target, golden, tmp_path / "out", exact=True)
    assert summary.first_divergence is None
    assert summary.records["pass"] > 20
    assert summary.only_golden > 20
    assert "ends in the middle" in summary.pairs[0].notes[0]


def test_saved_values_are_compared(debugger: Callable[..., Any], tmp_path: Path) -> None:
    def save(folder: Path, value: float) -> Path:
        made = debugger(dump_path=str(folder), task="statistics", level="debug")
        made.save({"a": torch.full((2,), value), "b": [value]}, "kept")
        made.step()
        made._session.close()
        return folder

    golden, same, other = (save(tmp_path / name, value) for name, value in (("g", 1.0), ("s", 1.0), ("o", 2.0)))
    assert compare(same, golden, tmp_path / "out").exit_code == 0
    first = compare(other, golden, tmp_path / "out").first_divergence
    assert first is not None
    assert first.record == "kept.0.debug"
