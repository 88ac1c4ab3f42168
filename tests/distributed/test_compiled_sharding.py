"""FSDP2 and tensor parallelism of compiled blocks: the records of the eager run, from the compiled program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import compiled_shard_programs as programs
import pytest
from ranks import coverage, records, run_ranks

SHARDED, CHECKPOINTED, SPLIT = "eager, sharded", "eager, checkpointed", "eager, tensor parallel"

VALUES = ("Max", "Min", "Mean", "Norm")


def dumps(folder: Path, kinds: tuple[str, str], **config: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Records of the eager and the compiled run, and coverage of the latter, of rank 1 in the first step of each."""
    assert run_ranks(2, programs.compared, folder, kinds, config) == [True, True]  # bitwise neutral
    told = dict(coverage(folder, 1, 2))
    assert told["failures"] == []
    return dict(records(folder, 1, 0)), dict(records(folder, 1, 2)), told


def of_the_model(data: dict[str, Any]) -> dict[str, Any]:
    """Records without communication, and without what checkpointing computes again in an eager run."""
    return {name: record for name, record in data.items() if name[:11] != "Distributed" and "#recompute" not in name}


def assert_same(expected: Any, found: Any, where: str) -> None:
    """Compare two values; what an eager run could not read, a tensor that was still on its way, is left out."""
    if isinstance(expected, list):
        assert len(expected) == len(found), where
        for at, pair in enumerate(zip(expected, found, strict=True)):
            assert_same(*pair, f"{where}[{at}]")
    elif isinstance(expected, dict) and "reason" not in expected:
        assert expected.keys() == found.keys() - {"fx"}, where
        for key, value in expected.items():
            assert_same(value, found[key], f"{where}.{key}")
    elif not isinstance(expected, dict):
        assert found == (pytest.approx(expected, rel=1e-5, abs=1e-6) if type(expected) is float else expected), where


@pytest.mark.parametrize(
    ("alike", "kind", "level"),
    [
        (SHARDED, "sharded, then compiled", "L0"),
        (CHECKPOINTED, "checkpointed", "mix"),
        (SPLIT, "tensor parallel", "mix"),
    ],
)
def test_sharded_compiled_blocks_have_the_records_of_the_eager_run(
    tmp_path: Path, alike: str, kind: str, level: str
) -> None:
    *both, told = dumps(tmp_path, (alike, kind), level=level)
    eager, compiled = map(of_the_model, both)
    calls = [[name for name in data if "parameters_grad" not in name] for data in (eager, compiled)]
    assert calls[0] == calls[1]
    assert_same(eager, compiled, "")
    layers = [record for name, record in compiled.items() if "linear" in name or ".up.Linear." in name]
    assert any("fx" in record for record in layers)
    assert len(told["notes"]["compiled"]["graphs"]) == 1  # both blocks share it


def test_kernels_of_compiled_blocks_with_distributed_tensors_are_recorded(tmp_path: Path) -> None:
    eager, compiled, told = dumps(tmp_path, (SPLIT, "tensor parallel"), level="L2", statistics={"list": ["Aten."]})
    layers = [name for name, record in compiled.items() if name.startswith("Aten.addmm") and "fx" in record]
    assert layers == [f"Aten.addmm.default.{index}.forward" for index in range(4)]
    for name in layers:
        (expected,), (found,) = eager[name]["output"], compiled[name]["output"]
        assert [expected[key] for key in ("shape", "dtype")] == [found[key] for key in ("shape", "dtype")]
        assert [found[key] for key in VALUES] == pytest.approx([expected[key] for key in VALUES], rel=1e-5)
    assert not any("fused" in reason for reason in told["not_recorded"])
