"""Level L0 in graph mode on the CPU target: taps in compiled Cells see what an eager run computes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cell_tap_scenarios as scenarios
import numpy as np
import pytest

from msprobe.store import Dump, read_dump

if TYPE_CHECKING:
    from forked_mindspore import ForkedMindSpore

STATISTICS = {"task": "statistics"}


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cells"))


def step_dump(folder: str, step: int = 0) -> Dump:
    (rank,) = (Path(folder) / "dump" / f"step{step}").iterdir()
    return read_dump(rank)


@dataclass(frozen=True, slots=True)
class Trained:
    """Two training steps."""

    results: dict[str, Any]
    folder: str


@pytest.fixture(scope="module")
def trained(fresh_mindspore: ForkedMindSpore, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """With task tensor, which is statistics and files."""
    folder = str(tmp_path_factory.mktemp("trained"))
    return Trained(fresh_mindspore.value(scenarios.train, folder, {"task": "tensor"}), folder)


def test_values_are_those_of_the_dynamic_graph_record_by_record(
    fresh_mindspore: ForkedMindSpore, trained: Trained
) -> None:
    eager = fresh_mindspore.value(scenarios.eager_records)
    data = step_dump(trained.folder).data
    assert {name for name in data if ".backward." not in name} == set(eager)
    for name, record in eager.items():
        assert without_files(data[name]) == record, name


def without_files(value: Any) -> Any:
    if isinstance(value, list):
        return [without_files(item) for item in value]
    if isinstance(value, dict):
        return {key: without_files(item) for key, item in value.items() if key != "data_name"}
    return value


def test_gradients_have_the_index_of_their_call_and_the_order_of_arguments(trained: Trained) -> None:
    data = without_files(step_dump(trained.folder).data)
    names = list(data)
    assert names.index("Cell.first.Dense.backward.1") < names.index("Cell.first.Dense.backward.0")
    assert names.index("Cell.halved.Halved.forward.0") < names.index("Cell.halved.Halved.backward.0")
    # What leaves the last call of a shared Cell backwards is what arrives at the Cell before it.
    assert data["Cell.first.Dense.backward.1"]["output"] == data["Cell.layers.1.Dense.backward.0"]["input"]
    assert data["Cell.norm.LayerNorm.backward.0"]["output"] == data["Cell.first.Dense.backward.1"]["input"]
    assert len(data["Cell.add.Add.backward.0"]["output"]) == 2  # a tuple counts by its tensors
    assert [len(part) for part in data["Cell.scale.Scale.backward.0"].values()] == [2, 2]  # y=... counts, too
    assert data["Cell.embedding.Embedding.backward.0"]["output"] == [None]  # indices have no gradient
    assert data["Cell.halved.Halved.backward.0"]["input"][0]["dtype"] == "BFloat16"


def test_the_training_is_bitwise_the_same(fresh_mindspore: ForkedMindSpore, trained: Trained) -> None:
    assert trained.results == fresh_mindspore.value(scenarios.train, trained.folder, None)


def test_task_tensor_writes_what_it_measured(trained: Trained) -> None:
    dump = step_dump(trained.folder, 1)
    assert dump.tensor_folder is not None
    record = dump.data["Cell.first.Dense.forward.0"]
    entries = [*record["input_args"], *record["output"], *record["parameters"].values()]
    assert {entry["data_name"] for entry in entries} == {
        "Cell.first.Dense.forward.0.input.0.npy",
        "Cell.first.Dense.forward.0.output.0.npy",
        "Cell.first.Dense.forward.0.parameters.weight.npy",
        "Cell.first.Dense.forward.0.parameters.bias.npy",
    }
    for entry in entries:
        array = np.load(dump.tensor_folder / entry["data_name"])
        assert (entry["Max"], entry["Min"], entry["shape"]) == (array.max(), array.min(), list(array.shape))
    assert np.load(dump.tensor_folder / "Cell.halved.Halved.forward.0.output.0.npy").dtype == np.float32


@pytest.mark.parametrize("word", ["forward", "backward"])
def test_data_mode_selects_a_pass(word: str, fresh_mindspore: ForkedMindSpore, folder: str) -> None:
    config = {**STATISTICS, "statistics": {"data_mode": [word]}}
    fresh_mindspore.value(scenarios.accumulate, folder, config)
    parts = {name.split(".")[-2] for name in step_dump(folder).data}
    assert parts == ({"forward"} if word == "forward" else {"backward", "parameters_grad"})


def test_taps_that_have_mindspore_write_files_give_the_same_records(
    fresh_mindspore: ForkedMindSpore, trained: Trained, folder: str
) -> None:
    fresh_mindspore.value(scenarios.dump_tapped, folder)
    assert sorted(path.name for path in (Path(folder) / "dump").glob("step*")) == ["step1", "step2"]
    expected = without_files(step_dump(trained.folder).data)
    del expected["Cell.scale.Scale.forward.0"]["input_kwargs"]["factor"]  # a number is no tensor to dump
    for step in (1, 2):
        dump = step_dump(folder, step)
        data = without_files(dump.data)
        assert sorted(data) == sorted(expected)
        for name, record in expected.items():
            assert data[name] == record, name
        assert dump.tensor_folder is not None
        assert (dump.tensor_folder / "Cell.first.Dense.backward.1.output.0.npy").is_file()
    assert not list((Path(folder) / "dump" / "taps").rglob("*.npy"))


def test_every_launch_of_a_step_has_its_own_index(fresh_mindspore: ForkedMindSpore, folder: str) -> None:
    fresh_mindspore.value(scenarios.accumulate, folder, STATISTICS)
    data = step_dump(folder).data
    calls = sorted(name for name in data if name.startswith("Cell.first.Dense.") and "parameters" not in name)
    assert calls == [f"Cell.first.Dense.{word}.{index}" for word in ("backward", "forward") for index in range(4)]
    assert "Cell.first.Dense.parameters_grad.1" in data
    first, second = (data[f"Cell.first.Dense.forward.{index}"]["input_args"][0] for index in (0, 2))
    assert second["Max"] == 2 * first["Max"]


def test_only_wanted_steps_are_recorded_and_close_takes_the_taps_out(
    fresh_mindspore: ForkedMindSpore, folder: str
) -> None:
    assert fresh_mindspore.value(scenarios.only_some_steps, folder) == [True, False]
    steps = Path(folder) / "dump"
    assert sorted(path.name for path in steps.glob("step*")) == ["step1", "step3"]
    assert [name for name in step_dump(folder, 3).data if name.startswith("Cell.first")] == [
        "Cell.first.Dense.forward.0",
        "Cell.first.Dense.forward.1",
    ]


def test_modules_are_parents_of_the_modules_inside(trained: Trained) -> None:
    parents = step_dump(trained.folder).parents
    assert parents["Cell.block.0.Dense.forward.0"] == "Cell.block.SequentialCell.forward.0"
    assert parents["Cell.block.1.ReLU.backward.0"] == "Cell.block.SequentialCell.backward.0"
    assert parents["Cell.first.Dense.forward.1"] is None


def test_numbers_among_the_arguments_are_recorded(trained: Trained) -> None:
    record = step_dump(trained.folder).data["Cell.scale.Scale.forward.0"]
    assert list(record["input_kwargs"]) == ["y", "factor"]
    assert record["input_kwargs"]["factor"] == {"type": "int", "value": 3}


def test_tensors_without_dimensions_or_elements_keep_their_shape(fresh_mindspore: ForkedMindSpore, folder: str) -> None:
    assert fresh_mindspore.value(scenarios.odd_shapes, folder, False) == 0.0
    total, nothing, positive = step_dump(folder).data["Cell.shapes.Shapes.forward.0"]["output"]
    assert (total["shape"], total["Max"], total["dtype"]) == ([], -1.0, "Float32")
    assert (nothing["shape"], nothing["Max"], nothing["reason"]) == ([0, 2], None, "empty array")
    assert (positive["dtype"], positive["Max"]) == ("Bool", True)


def test_a_shape_known_only_at_run_time_leaves_the_value_out_with_a_reason(
    fresh_mindspore: ForkedMindSpore, folder: str
) -> None:
    assert fresh_mindspore.value(scenarios.odd_shapes, folder, True) == 0.0
    dump = step_dump(folder)
    entry = dump.data["Cell.shapes.Shapes.forward.0"]["input_args"][0]
    assert (entry["shape"], entry["reason"]) == (None, "shape known only when the graph runs")
    assert dump.coverage is not None
    assert entry["reason"] in dump.coverage["null_statistics"]


def test_several_models_are_numbered_and_later_ones_refused(fresh_mindspore: ForkedMindSpore, folder: str) -> None:
    said = fresh_mindspore.value(scenarios.two_models, folder)
    assert "another model cannot be recorded" in said
    assert list(step_dump(folder).data) == ["Cell.0.shapes.Shapes.forward.0", "Cell.1.shapes.Shapes.forward.0"]


def test_a_graph_compiled_before_the_first_start_is_named_as_the_reason(
    fresh_mindspore: ForkedMindSpore, folder: str
) -> None:
    said = fresh_mindspore.value(scenarios.compiled_before, folder)
    assert any("compiled before the first start()" in text for text in said)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({**STATISTICS, "rank": [0]}, "O0", " = [0]"),
    ({**STATISTICS, "statistics": {"list": ["Dense"]}}, "O0", "statistics.list (line"),
    (
        {**STATISTICS, "statistics": {"scope": ["Cell.a.B.forward.0", "Cell.a.B.forward.0"]}},
        "O0",
        "statistics.scope",
    ),
    ({**STATISTICS, "statistics": {"data_mode": ["input"]}}, "O1", '"all", "forward", "backward"'),
    ({**STATISTICS, "statistics": {"data_mode": ["forward", "backward"]}}, "O1", "alone"),
    ({**STATISTICS, "statistics": {"summary_mode": "md5"}}, "O0", '"statistics"'),
    ({**STATISTICS, "statistics": {"summary_mode": ["count"]}}, "O0", '"max", "min", "mean", "l2norm"'),
    ({**STATISTICS, "statistics": {"tensor_list": ["Dense"]}}, "O0", "tensor_list"),
    (STATISTICS, "O2", "jit_level O2"),
    ({**STATISTICS, "level": "L1"}, "O0", '"L0" or "L2"'),
    ({**STATISTICS, "level": "mix"}, "O1", '"L0" or "L2"'),
    ({"task": "structure"}, "O0", "structure"),
    (STATISTICS, "O0", "call start(model=...)"),
]


@pytest.mark.parametrize(("config", "jit_level", "text"), REFUSED)
def test_graph_mode_refuses_what_it_cannot_do_and_says_what_works(
    config: dict[str, Any], jit_level: str, text: str, fresh_mindspore: ForkedMindSpore, folder: str
) -> None:
    said = fresh_mindspore.value(scenarios.refused, folder, config, jit_level)
    assert text in said, said
