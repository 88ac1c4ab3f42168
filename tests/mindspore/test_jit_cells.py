"""Compiled Cells in a dynamic graph: what they compute inside is recorded, in a dump of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jit_cell_scenarios as scenarios
import numpy as np
import pytest

from msprobe.compare.comparison import Request, compare_dumps
from msprobe.store import Dump, read_dump
from msprobe.store.reader import DumpReadError

if TYPE_CHECKING:
    from forked_mindspore import ForkedMindSpore


@dataclass(frozen=True, slots=True)
class Trained:
    """Three training steps."""

    results: dict[str, Any]
    folder: Path

    def dump(self, part: str, step: int = 0) -> Dump:
        """The dump of one step; ``part`` may be empty."""
        (rank,) = (self.folder / "dump" / part / f"step{step}").iterdir()
        return read_dump(rank)


def trained_with(server: ForkedMindSpore, folder: Path, config: dict[str, Any] | None, *arguments: Any) -> Trained:
    folder.mkdir(exist_ok=True)
    return Trained(server.value(scenarios.train, str(folder), config, *arguments), folder)


@pytest.fixture(scope="module")
def mixed(fresh_mindspore: ForkedMindSpore, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    config = {"task": "tensor", "level": "mix", "step": [1, 2]}
    return trained_with(fresh_mindspore, tmp_path_factory.mktemp("mixed"), config)


@pytest.fixture(scope="module")
def eager(fresh_mindspore: ForkedMindSpore, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The same model without anything compiled."""
    config = {"task": "tensor", "level": "L0", "step": [1, 2]}
    return trained_with(fresh_mindspore, tmp_path_factory.mktemp("eager"), config, "eager")


def test_compiled_cells_go_to_graph_and_the_rest_to_pynative(mixed: Trained) -> None:
    assert sorted(path.name for path in (mixed.folder / "dump").iterdir() if path.is_dir()) == ["graph", "pynative"]
    for part in ("graph", "pynative"):
        assert sorted(path.name for path in (mixed.folder / "dump" / part).glob("step*")) == ["step1", "step2"]
    graph, pynative = mixed.dump("graph", 1).data, mixed.dump("pynative", 1).data
    assert all(name.startswith("Cell.block.") for name in graph)
    assert not any(name.startswith("Cell.block.") for name in pynative)
    assert {"Cell.head.Dense.forward.0", "Mint.add.0.forward", "Jit.Compiled.0.forward"} <= set(pynative)
    assert {f"Cell.block.Compiled.{word}.{index}" for word in ("forward", "backward") for index in (0, 1)} <= set(graph)


def test_values_inside_a_compiled_cell_are_those_of_the_dynamic_graph(mixed: Trained, eager: Trained) -> None:
    expected, found = eager.dump("", 1), mixed.dump("graph", 1)
    inside = [name for name in expected.data if name.startswith(("Cell.block.first", "Cell.block.inner"))]
    forward = [name for name in inside if ".forward." in name]
    assert len(forward) == 10
    assert {name for name in found.data if not name.startswith("Cell.block.Compiled.")} == {
        name for name in inside if ".backward." not in name
    }
    assert expected.tensor_folder is not None
    assert found.tensor_folder is not None
    for name in forward:
        for side in ("input.0", "output.0"):
            ours = np.load(found.tensor_folder / f"{name}.{side}.npy")
            theirs = np.load(expected.tensor_folder / f"{name}.{side}.npy")
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        assert found.data[name].keys() == expected.data[name].keys()


def test_the_compiled_cell_is_the_parent_of_what_runs_in_its_graph(mixed: Trained) -> None:
    parents = mixed.dump("graph", 1).parents
    assert parents["Cell.block.first.Dense.forward.0"] == "Cell.block.Compiled.forward.0"
    assert parents["Cell.block.first.Dense.forward.3"] == "Cell.block.Compiled.forward.1"
    assert parents["Cell.block.inner.0.Dense.forward.1"] == "Cell.block.inner.SequentialCell.forward.1"
    assert mixed.dump("pynative", 1).parents["Jit.Compiled.1.forward"] == "Cell.block.Compiled.forward.1"


def test_coverage_says_that_gradients_inside_are_missing(mixed: Trained) -> None:
    coverage = mixed.dump("graph", 1).coverage
    assert coverage is not None
    assert "changes the gradients of parameters" in coverage["notes"]["gradients inside compiled Cells"]


def test_compare_pairs_both_parts_of_two_runs(mixed: Trained, eager: Trained, tmp_path: Path) -> None:
    run = mixed.folder / "dump"
    summary = compare_dumps(Request(run, run, tmp_path / "out", exact=True)).summary
    assert [pair.step for pair in summary.pairs] == [
        f"{part}/step{n}" for n in (1, 2) for part in ("graph", "pynative")
    ]
    assert (summary.exit_code, summary.first_divergence) == (0, None)
    with pytest.raises(DumpReadError, match="is in two parts"):
        compare_dumps(Request(run, eager.folder / "dump", tmp_path / "out"))


def test_a_compiled_cell_agrees_with_the_same_cell_of_a_run_without_graphs(
    mixed: Trained, eager: Trained, tmp_path: Path
) -> None:
    request = Request(mixed.folder / "dump" / "graph", eager.folder / "dump", tmp_path / "out")
    records = compare_dumps(request).summary.records
    assert records["pass"] >= 20, records
    assert not records.get("error"), records


@pytest.mark.parametrize("kind", ["decorated", "assigned", "whole", "nested"])
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_the_training_is_bitwise_the_same(
    kind: str, task: str, fresh_mindspore: ForkedMindSpore, tmp_path: Path
) -> None:
    plain = trained_with(fresh_mindspore, tmp_path / "plain", None, kind)
    recorded = trained_with(fresh_mindspore, tmp_path / "recorded", {"task": task, "level": "mix"}, kind)
    assert recorded.results["seen"] == plain.results["seen"]
    assert recorded.results["own"] == plain.results["own"]  # close() gave each construct back
    names = recorded.dump("graph", 2).data
    assert {f"Cell.block.first.Dense.forward.{index}" for index in range(4)} <= set(names)
    if kind == "nested":
        assert "Cell.block.inner.inner.SequentialCell.forward.1" in names
        assert recorded.dump("graph", 2).parents["Cell.block.inner.Compiled.forward.1"] == "Cell.block.Nested.forward.1"


def test_a_graph_that_was_compiled_before_start_is_named_in_coverage(
    fresh_mindspore: ForkedMindSpore, tmp_path: Path
) -> None:
    run = trained_with(fresh_mindspore, tmp_path, {"task": "statistics", "level": "L0"}, "decorated", True)
    coverage = run.dump("graph", 0).coverage
    assert coverage is not None
    assert any("compiled before the first start()" in reason for reason in coverage["not_recorded"])
    assert "Cell.block.Compiled.forward.1" in run.dump("graph", 0).data


def test_only_cells_that_are_compiled_from_source_get_taps(fresh_mindspore: ForkedMindSpore) -> None:
    found = fresh_mindspore.value(scenarios.cells_with_taps)
    assert found == {"decorated": 5, "assigned": 5, "bytecode": 0, "eager": 0}


@pytest.mark.parametrize(
    "config",
    [
        {"task": "statistics", "level": "L1"},
        {"task": "structure", "level": "mix"},
        {"task": "statistics", "level": "L0", "statistics": {"data_mode": ["backward"]}},
    ],
)
def test_where_no_values_of_cells_are_wanted_there_is_one_dump(
    config: dict[str, Any], fresh_mindspore: ForkedMindSpore, tmp_path: Path
) -> None:
    trained_with(fresh_mindspore, tmp_path, config)
    assert sorted(path.name for path in (tmp_path / "dump").iterdir() if path.is_dir()) == ["step0", "step1", "step2"]


def test_a_later_run_moves_both_parts_of_an_earlier_one_aside(fresh_mindspore: ForkedMindSpore, tmp_path: Path) -> None:
    first = trained_with(fresh_mindspore, tmp_path, {"task": "statistics", "level": "L0", "step": [0]})
    assert "Cell.block.Compiled.forward.0" in first.dump("graph").data
    again = trained_with(fresh_mindspore, tmp_path, {"task": "statistics", "level": "L0", "step": [0]}, "eager")
    assert sorted(path.name for path in (tmp_path / "dump").glob("earlier/*/*")) == ["graph", "pynative"]
    assert any("moved 2 folder(s) that an earlier run left here" in text for text in again.results["said"])


def test_a_gradient_tap_inside_a_compiled_function_would_change_gradients(fresh_mindspore: ForkedMindSpore) -> None:
    """Why there is none: MindSpore 2.10. When this fails, gradients inside compiled Cells can be recorded."""
    plain, tapped = fresh_mindspore.value(scenarios.gradient_with_identity_bprop)
    assert plain != tapped
