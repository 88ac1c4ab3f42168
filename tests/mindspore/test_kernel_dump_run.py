"""Level L2 end to end on the CPU target: what MindSpore dumps, and what becomes of it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kernel_dump_scenarios as scenarios
import numpy as np
import pytest

from msprobe.core.names import parse_name
from msprobe.store import Dump, read_dump

if TYPE_CHECKING:
    from forked_mindspore import ForkedMindSpore

MATMUL = "Kernel.Default/fc-Dense/MatMul-op0.MatMul"
RELU = "Kernel.Default/relu-ReLU/ReLU-op0.ReLU"
WEIGHT = (np.arange(12).reshape(3, 4) / 10).astype(np.float32)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder whose path MindSpore takes."""
    return str(tmp_path_factory.mktemp("kernels"))


def step_dump(folder: str, step: int = 0) -> Dump:
    (rank,) = (Path(folder) / "dump" / f"step{step}").iterdir()
    return read_dump(rank)


def dumped_files(folder: str, step: int = 0) -> list[str]:
    place = Path(folder) / "dump" / "rank_0" / "Net" / "0" / str(step)
    return sorted(file.name for file in place.glob("*.npy"))


def tensor(**keys: Any) -> dict[str, Any]:
    return {"task": "tensor", "tensor": keys}


def statistics(**keys: Any) -> dict[str, Any]:
    return {"task": "statistics", "statistics": keys}


def test_only_wanted_steps_are_dumped_and_their_numbers_are_ours(fresh_mindspore: ForkedMindSpore, folder: str) -> None:
    fresh_mindspore.value(scenarios.run_steps, folder, {**tensor(), "step": [1, 3]}, 5)
    dump = Path(folder) / "dump"
    assert sorted(path.name for path in dump.glob("step*")) == ["step1", "step3"]
    assert sorted(path.name for path in (dump / "rank_0/Net/0").iterdir()) == ["1", "3"]
    found = step_dump(folder, 3)
    assert found.complete
    assert [name for name in found.data if name.startswith(RELU)] == [f"{RELU}.0.forward", f"{RELU}.1.forward"]


def test_what_runs_outside_start_and_stop_is_not_dumped(fresh_mindspore: ForkedMindSpore, folder: str) -> None:
    fresh_mindspore.value(scenarios.run_steps, folder, tensor(list=["relu"]), 2)
    assert [len(dumped_files(folder, step)) for step in (0, 1)] == [4, 4]  # input and output of two launches
    assert sorted(path.name for path in (Path(folder) / "dump/rank_0/Net/0").iterdir()) == ["0", "1"]


def test_dumped_values_are_those_of_the_eager_run(fresh_mindspore: ForkedMindSpore, folder: str) -> None:
    result = fresh_mindspore.value(scenarios.run_steps, folder, tensor())
    eager = fresh_mindspore.value(scenarios.run_without, "eager")
    dump = step_dump(folder)
    assert dump.tensor_folder is not None
    for kind, values in eager.items():
        (record,) = (record for name, record in dump.data.items() if name.endswith(f".{kind}.0.forward"))
        entry = record["output"][0]
        array = np.load(dump.tensor_folder / entry["data_name"])
        np.testing.assert_array_equal(array, np.float32(values))
        assert (entry["type"], entry["dtype"], entry["shape"]) == ("mindspore.Tensor", "Float32", list(array.shape))
        assert (entry["Max"], entry["Min"]) == (float(array.max()), float(array.min()))
    np.testing.assert_array_equal(np.float32(result), np.float32(eager["ReLU"]))
    weight = dump.data[f"{MATMUL}.0.forward"]["input_args"][1]
    np.testing.assert_array_equal(np.load(dump.tensor_folder / weight["data_name"]), WEIGHT)


def test_records_come_in_the_order_of_execution_and_their_names_follow_the_grammar(
    fresh_mindspore: ForkedMindSpore, folder: str
) -> None:
    fresh_mindspore.value(scenarios.run_steps, folder, tensor())
    names = [name for name in step_dump(folder).data if ".Parameter." not in name]
    kinds = [name.split(".")[-3] for name in names]
    assert kinds == ["MatMul", "BiasAdd", "ReLU"] * 2
    for name in names:
        parsed = parse_name(name)
        assert parsed is not None
        assert str(parsed) == name


LISTS = [
    (["Default/fc-Dense/MatMul-op0"], {"MatMul"}),
    (["relu"], {"ReLU"}),
    (["name-regex(Default/fc.+)"], {"MatMul", "BiasAdd"}),
    (["name-regex(.*/BiasAdd-op.*)", "relu"], {"BiasAdd", "ReLU"}),
]


@pytest.mark.parametrize(("entries", "kinds"), LISTS)
def test_list_selects_by_scope_name_type_and_pattern(
    entries: list[str], kinds: set[str], fresh_mindspore: ForkedMindSpore, folder: str
) -> None:
    fresh_mindspore.value(scenarios.run_steps, folder, tensor(list=entries))
    assert {name.split(".")[-3] for name in step_dump(folder).data} == kinds


@pytest.mark.parametrize("side", ["input", "output"])
def test_data_mode_selects_a_side(side: str, fresh_mindspore: ForkedMindSpore, folder: str) -> None:
    fresh_mindspore.value(scenarios.run_steps, folder, tensor(data_mode=[side], list=["MatMul"]))
    assert {name.split(".")[5] for name in dumped_files(folder)} == {side}
    record = step_dump(folder).data[f"{MATMUL}.0.forward"]
    assert bool(record["input_args"]) == (side == "input")
    assert bool(record["output"]) == (side == "output")


def test_the_jit_parts_of_a_dynamic_graph_are_dumped(fresh_mindspore: ForkedMindSpore, folder: str) -> None:
    result = fresh_mindspore.value(scenarios.run_jit, folder, tensor())
    for step in (0, 1):
        dump = step_dump(folder, step)
        (record,) = (record for name, record in dump.data.items() if name.endswith("ReLU.0.forward"))
        assert dump.tensor_folder is not None
        array = np.load(dump.tensor_folder / record["output"][0]["data_name"])
        np.testing.assert_array_equal(array, np.float32(result))
        assert not [name for name in dump.data if "Add" in name]


def test_gradient_kernels_are_backward_records_and_the_training_is_unchanged(
    fresh_mindspore: ForkedMindSpore, folder: str
) -> None:
    seen = fresh_mindspore.value(scenarios.train, folder, tensor())
    assert seen == fresh_mindspore.value(scenarios.train, folder, None)
    backward = [name for name in step_dump(folder).data if name.startswith("Kernel.Gradients/")]
    assert backward
    assert all(name.endswith(".backward") for name in backward)
    assert set(step_dump(folder).data[backward[0]]) == {"input", "output"}


def test_statistics_on_cpu_are_those_of_the_tensors_which_are_gone(
    fresh_mindspore: ForkedMindSpore, folder: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = str(tmp_path_factory.mktemp("tensors"))
    fresh_mindspore.value(scenarios.run_steps, folder, {**statistics(), "precision": "high"})
    fresh_mindspore.value(scenarios.run_steps, other, {**tensor(), "precision": "high"})
    assert dumped_files(folder) == []
    ours, tensors = step_dump(folder).data, step_dump(other).data
    assert list(ours) == list(tensors)
    for name, record in tensors.items():
        for entry in [*record["input_args"], *record["output"]]:
            del entry["data_name"]
        assert ours[name] == record


def test_statistic_csv_has_the_columns_of_mindspore(fresh_mindspore: ForkedMindSpore, folder: str) -> None:
    wanted = ["max", "mean", "count", "negative zero count", "nan count", "md5", "hash"]
    fresh_mindspore.value(scenarios.run_steps, folder, statistics(summary_mode=wanted, list=["relu"]))
    with (Path(folder) / "dump/rank_0/Net/0/0/statistic.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert list(rows[0])[-7:] == ["Max Value", "Avg Value", "Count", "Negative Zero Count", "NaN Count", "MD5", "SHA1"]
    assert [(row["IO"], row["Shape"], row["Negative Zero Count"]) for row in rows[:2]] == [
        ("input", "(2,3)", "2"),
        ("output", "(2,3)", "0"),
    ]
    entry = step_dump(folder).data[f"{RELU}.0.forward"]["output"][0]
    assert (entry["md5"], entry["sha1"]) == (rows[1]["MD5"], rows[1]["SHA1"])
    assert (len(entry["md5"]), len(entry["sha1"])) == (32, 40)
    assert entry["Min"] is None
    assert "summary_mode" in entry["reason"]


def test_jit_level_o2_works_on_the_cpu_target_too(fresh_mindspore: ForkedMindSpore, folder: str) -> None:
    fresh_mindspore.value(scenarios.run_steps, folder, tensor(), 1, "O2")
    assert (Path(folder) / "dump/kernel_graph_dump.json").is_file()
    assert f"{MATMUL}.0.forward" in step_dump(folder).data


def test_what_an_earlier_run_left_is_moved_aside(fresh_mindspore: ForkedMindSpore, folder: str) -> None:
    fresh_mindspore.value(scenarios.run_twice, folder, tensor(list=["relu"]))
    assert not (Path(folder) / "dump/rank_0/Net/0/0/old.npy").exists()
    assert list((Path(folder) / "dump/earlier").glob("*/rank_0/Net/0/0/old.npy"))
    assert len(step_dump(folder).data) == 2


def test_a_graph_before_the_first_start_is_named_as_the_reason_of_an_empty_dump(
    fresh_mindspore: ForkedMindSpore, folder: str
) -> None:
    said = fresh_mindspore.value(scenarios.graph_before, folder, tensor())
    assert "recorded nothing" in said
    assert "before the first start()" in said


def test_a_context_set_too_late_is_refused(fresh_mindspore: ForkedMindSpore, folder: str) -> None:
    said = fresh_mindspore.value(scenarios.context_changed, folder)
    assert "kernel_kbyk_dump.json already" in said
    assert "set_context() before PrecisionDebugger" in said


def test_the_running_mode_refuses_what_it_cannot_do(fresh_mindspore: ForkedMindSpore, folder: str) -> None:
    said = fresh_mindspore.value(scenarios.refused, folder, {"task": "exception_dump"}, "O2")
    assert "jit_level O0/O1" in said
    said = fresh_mindspore.value(scenarios.refused, folder, {"task": "overflow_check"}, "O2")
    assert "no overflow detection" in said


def test_exception_dump_writes_its_file_and_says_that_the_cpu_keeps_nothing(
    fresh_mindspore: ForkedMindSpore, folder: str
) -> None:
    fresh_mindspore.value(scenarios.run_steps, folder, {"task": "exception_dump"})
    assert (Path(folder) / "dump/kernel_graph_exception_dump.json").is_file()
    coverage = step_dump(folder).coverage
    assert coverage is not None
    assert "Ascend kernels only" in str(coverage["notes"])


def test_tokens_cannot_be_chosen_at_this_level_and_the_training_goes_on(
    fresh_mindspore: ForkedMindSpore, folder: str
) -> None:
    said = fresh_mindspore.value(scenarios.other_calls, folder)
    assert any("token_range" in text for text in said)


def test_iterations_are_steps_on_targets_that_can_switch_too(fresh_mindspore: ForkedMindSpore, folder: str) -> None:
    fresh_mindspore.value(scenarios.switch_of_other_targets, folder)
    assert [len(dumped_files(folder, step)) for step in (0, 1, 2, 3, 4)] == [2, 2, 0, 2, 2]
