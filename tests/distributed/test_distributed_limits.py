"""What docs/limitations.md says about many processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import limit_programs as programs
import pytest
from ranks import records, run_ranks


def communication(folder: Path, rank: int = 0) -> list[str]:
    return [name for name in records(folder, rank) if name.startswith("Distributed.")]


def test_ddp_records_the_own_gradient_and_not_its_reduction(tmp_path: Path) -> None:
    for rank, norms in enumerate(run_ranks(2, programs.data_parallel, tmp_path)):
        (entry,) = records(tmp_path, rank)["Module.module.0.Linear.parameters_grad.0"]["weight"]
        assert entry["Norm"] == pytest.approx(norms["own"])
        assert entry["Norm"] != pytest.approx(norms["averaged"])
        assert communication(tmp_path, rank) == []


def test_a_collective_inside_an_operation_on_dtensors_is_no_record(tmp_path: Path) -> None:
    first, second = run_ranks(2, programs.inside_an_operation, tmp_path)
    assert first == second == pytest.approx(0.9640276)
    assert communication(tmp_path) == []
    (result,) = records(tmp_path, 0)["Torch.tanh.0.forward"]["output"]
    assert result["type"] == "torch.distributed.tensor.DTensor"


def test_a_method_of_a_process_group_is_not_recorded(tmp_path: Path) -> None:
    assert run_ranks(2, programs.group_method, tmp_path) == [2.0, 2.0]
    assert list(records(tmp_path, 1)) == ["Torch.tanh.0.forward"]


@pytest.mark.parametrize(
    "config",
    [
        {"level": "L2", "statistics": {"list": ["Torch.tanh.0.forward"]}},
        {"level": "L1", "task": "acc_check"},
        {"level": "debug"},
    ],
    ids=["L2", "acc_check", "debug"],
)
def test_settings_without_collectives_leave_torch_alone(tmp_path: Path, config: dict[str, Any]) -> None:
    assert run_ranks(2, programs.unrecorded_setting, tmp_path, config) == [False, False]


def test_a_recorded_work_is_a_work_of_a_class_of_its_own(tmp_path: Path) -> None:
    assert run_ranks(2, programs.kind_of_work, tmp_path) == [[True, True, True, False]] * 2
    (output, flag) = records(tmp_path, 0)["Distributed.all_reduce.0.forward"]["output"]
    assert output["Max"] == 4.0
    assert flag["value"] is True
