"""The debugger in dynamic graphs: life cycle, tasks, selection, and what it refuses."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dynamic_scenarios as scenarios
import numpy as np
import pytest

if TYPE_CHECKING:
    from forked_mindspore import ForkedMindSpore

MIX = {"level": "mix"}
CONFIGS: dict[str, dict[str, Any]] = {
    "statistics": MIX,
    "tensor md5": {**MIX, "task": "tensor", "tensor": {"summary_mode": "md5"}},
    "hash": {**MIX, "statistics": {"summary_mode": "hash"}},
    "asynchronous": {**MIX, "async_dump": True},
    "asynchronous tensors": {**MIX, "async_dump": True, "task": "tensor", "tensor": {"list": ["Cell.head"]}},
    "list": {**MIX, "statistics": {"list": ["Cell.head.Dense.forward.0", "add"]}},
    "scope": {**MIX, "statistics": {"scope": ["Cell.relu.ReLU.forward.0", "Cell.flatten.Flatten.forward.0"]}},
    "data_mode": {"level": "L0", "statistics": {"data_mode": ["forward", "output"]}},
    "tensor_list": {"level": "L0", "statistics": {"tensor_list": ["HEAD"]}},
    "structure": {"task": "structure", "level": "L1"},
    "no extra": {"level": "L0", "extra_info": False},
}


@pytest.fixture(scope="module")
def steps(fresh_mindspore: ForkedMindSpore, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One step of the same model under each configuration."""
    return fresh_mindspore.value(scenarios.tasks, str(tmp_path_factory.mktemp("tasks")), CONFIGS)


def data_of(steps: dict[str, Any], label: str) -> dict[str, Any]:
    return steps[label]["dump"]["data"]


def test_task_tensor_stores_what_was_measured(steps: dict[str, Any]) -> None:
    data, files = data_of(steps, "tensor md5"), steps["tensor md5"]["files"]
    entry = data["Cell.head.Dense.forward.0"]["output"][0]
    values = np.array(files[entry["data_name"]], np.float32)
    assert (list(values.shape), float(values.max())) == (entry["shape"], entry["Max"])
    assert entry["md5"] == f"{zlib.crc32(values.tobytes()):08x}"
    assert entry["data_name"] == "Cell.head.Dense.forward.0.output.0.npy"
    for suffix in ("parameters_grad.0.weight", "backward.0.input.0", "forward.0.parameters.bias"):
        assert f"Cell.head.Dense.{suffix}.npy" in files


def test_a_checksum_stands_for_statistics(steps: dict[str, Any]) -> None:
    entry = data_of(steps, "hash")["Cell.head.Dense.forward.0"]["output"][0]
    assert entry.keys() == {"type", "dtype", "shape", "md5"}
    assert len(entry["md5"]) == 18


def test_an_asynchronous_dump_holds_the_same(steps: dict[str, Any]) -> None:
    late, early = (
        {name: record for name, record in data_of(steps, label).items() if "BatchNorm." not in name}
        for label in ("asynchronous", "statistics")  # BatchNorm leaves some of its results as the memory was
    )
    assert late == early
    late, early = (data_of(steps, label) for label in ("asynchronous tensors", "tensor md5"))
    assert late
    assert all(
        steps["asynchronous tensors"]["files"][name] == steps["tensor md5"]["files"][name]
        for name in steps["asynchronous tensors"]["files"]
    )
    assert late.keys() < early.keys()


def test_a_list_selects_full_names_and_substrings_and_expands_cells(steps: dict[str, Any]) -> None:
    names = set(data_of(steps, "list"))
    assert "Primitive.matmul.MatMul.0.forward" in names  # inside the Cell
    assert {"Cell.head.Dense.forward.0", "Mint.add.0.forward", "Tensor.__add__.0.backward"} <= names
    assert not any("Conv2d" in name for name in names)


def test_a_scope_is_a_range_with_its_backward(steps: dict[str, Any]) -> None:
    names = set(data_of(steps, "scope"))
    assert {"Cell.relu.ReLU.forward.0", "Cell.pool.MaxPool2d.backward.0", "Cell.flatten.Flatten.forward.0"} <= names
    assert not any(name.startswith(("Cell.conv", "Cell.head")) for name in names)


def test_data_mode_leaves_passes_and_sides_out(steps: dict[str, Any]) -> None:
    data = data_of(steps, "data_mode")
    assert all(".forward." in name for name in data)
    assert data["Cell.head.Dense.forward.0"].keys() == {"output", "parameters"}


def test_tensor_list_adds_files_to_statistics(steps: dict[str, Any]) -> None:
    files = steps["tensor_list"]["files"]
    assert files
    assert all(".head." in name for name in files)


def test_structure_has_the_hierarchy_and_no_records(steps: dict[str, Any]) -> None:
    assert steps["structure"]["dump"]["data"] == {}
    assert steps["structure"]["construct"].keys() == steps["statistics"]["construct"].keys()


def test_without_extra_info_there_are_no_stacks(steps: dict[str, Any]) -> None:
    assert "stack" not in steps["no extra"]
    assert "construct" not in steps["no extra"]
    (names, frames) = next(iter(steps["statistics"]["stack"].values()))
    assert names
    assert "dynamic_models.py" in " ".join(frames)
    assert not any("/msprobe/ms_dynamic/" in frame for frame in frames)


def test_steps_that_are_not_wanted_leave_no_folder_and_calls_in_any_order_go_on(
    fresh_mindspore: ForkedMindSpore, tmp_path: Path
) -> None:
    found = fresh_mindspore.value(scenarios.steps_and_ranges, str(tmp_path))
    twice = ["Functional.relu.0.forward", "Functional.relu.1.forward"]
    assert found["wanted"] == {"step1": twice, "step3": twice, "step4": twice}
    assert found["out of order"] == [twice, twice[:1]]


@pytest.mark.parametrize("mode", ["dynamic", "graph"])
@pytest.mark.parametrize(("wanted", "folders"), [([1], ["rank9"]), ([0], []), ([9], [])])
def test_rank_counts_the_ranks_of_each_node_anew(
    wanted: list[int], folders: list[str], mode: str, fresh_mindspore: ForkedMindSpore, tmp_path: Path
) -> None:
    found = fresh_mindspore.value(scenarios.on_the_second_node, str(tmp_path), wanted, mode)
    assert found["folders"] == folders, found["said"]
    assert any("[9] do not exist, there are 8 ranks" in text for text in found["said"]) == (wanted == [9])


def test_what_cannot_be_carried_out_is_refused_with_what_would_work(
    fresh_mindspore: ForkedMindSpore, tmp_path: Path
) -> None:
    found = fresh_mindspore.value(scenarios.refusals, str(tmp_path))
    assert "nan_check" in found["pair"]
    assert '"statistics", "md5", "hash"' in found["xor"]
    assert "start(model=...)" in found["no model"]
    assert "not ndarray" in found["no cell"]
    assert "set_context(mode=...) before PrecisionDebugger" in found["mode changed"]
    assert '"L0" or "L2"' in found["L1 in graph mode"]


def test_saved_values_and_their_gradients(fresh_mindspore: ForkedMindSpore, tmp_path: Path) -> None:
    found = fresh_mindspore.value(scenarios.saved, str(tmp_path))
    data = found["debug"]["data"]
    assert found["gradient"] == [[8.0, 8.0], [8.0, 8.0]]
    assert data["point.0.debug"]["hidden"]["Max"] == 2.0
    assert data["point_grad.0.debug"]["hidden"]["Max"] == 4.0
    assert data["point_grad.0.debug"]["number"] is None
    assert data["array.0.debug"]["type"] == "numpy.ndarray"


def test_functions_that_the_user_names_are_recorded_until_they_are_put_back(
    fresh_mindspore: ForkedMindSpore, tmp_path: Path
) -> None:
    found = fresh_mindspore.value(scenarios.custom, str(tmp_path))
    assert found["restored"]
    assert {"Mine.fused.0.forward", "Mine.fused.0.backward"} <= found["dump"]["data"].keys()
    assert "Functional.relu.0.forward" not in found["dump"]["data"]


def test_the_callback_makes_a_step_of_each_training_step(fresh_mindspore: ForkedMindSpore, tmp_path: Path) -> None:
    found = fresh_mindspore.value(scenarios.trained_by_model, str(tmp_path))
    assert found["steps"] == ["step0", "step1", "step2"]
    assert "Cell.network._backbone.Dense.backward.0" in found["names"]
    assert found["restored"]


def test_seed_all_makes_runs_equal_and_removes_dropout(fresh_mindspore: ForkedMindSpore) -> None:
    found = fresh_mindspore.value(scenarios.seeded)
    assert found["equal"]
    assert found["kept"] == [16.0, 16.0, 16.0]
    assert "from 0 to 4294967295, not -1" in found["refused"]
