"""Stages of a pipeline put together: order, names, what is said, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from written_dumps import call, tensor, write

from msprobe.cli import app
from msprobe.compare.comparison import Request, compare_dumps
from msprobe.compare.gather_stages import SideLayout, StagedSide, gathered_sides
from msprobe.compare.rows import Summary

Records = list[tuple[str, Any]]


def value(stage: int, micro_batch: int) -> dict[str, Any]:
    return tensor(1.0 + 10 * stage + micro_batch)


class Stage:
    """Records of a stage: a free call, a module with a call in it, and another free call for each micro-batch."""

    def __init__(self) -> None:
        self.records: Records = []
        self.parents: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def forward(self, path: str, stage: int, micro_batch: int) -> None:
        made = value(stage, micro_batch)
        module = f"Module.{path}.Linear.forward.{micro_batch}"
        self._api("Torch.tanh", made, "")
        self._api("Functional.linear", made, module)
        self._add(module, made, "")
        self._api("Torch.relu", made, "")

    def backward(self, path: str, stage: int, micro_batch: int) -> None:
        gradient = {"input": [value(stage, micro_batch)], "output": [value(stage, micro_batch)]}
        self.records.append((f"Functional.linear.{micro_batch}.backward", gradient))
        self.records.append((f"Module.{path}.Linear.backward.{micro_batch}", gradient))

    def _api(self, name: str, made: dict[str, Any], parent: str) -> None:
        number = self._counts.get(name, 0)
        self._counts[name] = number + 1
        self._add(f"{name}.{number}.forward", made, parent)

    def _add(self, name: str, made: dict[str, Any], parent: str) -> None:
        self.records.append((name, call(made, out=made)))
        if parent:
            self.parents[name] = parent


def pipeline(folder: Path, paths: list[str]) -> Path:
    """All micro-batches forward, then all backward, on one rank per path."""
    for rank, path in enumerate(paths):
        stage = Stage()
        for micro_batch in range(3):
            stage.forward(path, rank, micro_batch)
        for micro_batch in range(3):
            stage.backward(path, rank, micro_batch)
        stage._api("Torch.mul_", value(rank, 9), "")  # the optimiser
        write(folder, stage.records, rank=f"rank{rank}", parents=stage.parents)
    return folder


def single(folder: Path, paths: list[str]) -> Path:
    """One micro-batch after the other through all stages."""
    whole = Stage()
    for micro_batch in range(3):
        for number, path in enumerate(paths):
            whole.forward(path, number, micro_batch)
        for number, path in reversed(list(enumerate(paths))):
            gradient = {"input": [value(number, micro_batch)], "output": [value(number, micro_batch)]}
            index = micro_batch * len(paths) + number
            whole.records.append((f"Functional.linear.{index}.backward", gradient))
            whole.records.append((f"Module.{path}.Linear.backward.{micro_batch}", gradient))
    for number in range(len(paths)):
        whole._api("Torch.mul_", value(number, 9), "")
    return write(folder, whole.records, parents=whole.parents)


def compared(target: Path, golden: Path, out: Path, stages: int) -> Summary:
    return compare_dumps(Request(target, golden, out, gather="replicated", stages=stages)).summary


def test_calls_are_those_of_one_process_micro_batch_by_micro_batch(tmp_path: Path) -> None:
    paths = ["layers.0", "layers.1", "layers.2"]
    target, golden = pipeline(tmp_path / "t", paths), single(tmp_path / "g", paths)
    files = [target / f"step0/rank{rank}/dump.json" for rank in range(3)]
    ours, theirs = gathered_sides(SideLayout(files, 3), SideLayout([golden / "step0/rank0/dump.json"]), "replicated")
    assert isinstance(ours, StagedSide)
    names = [ours.index.name(number) for number in range(len(ours))]
    expected = [theirs.index.name(number) for number in range(len(theirs))]
    assert [name for name in names if "forward" in name] == [name for name in expected if "forward" in name]
    assert sorted(names) == sorted(expected)
    assert ours.surroundings("Functional.linear.5.forward") == ("Module.layers.2.Linear.forward.1", "layers.2")
    assert ours.index.record(names.index("Functional.linear.5.forward"))[1]["output"] != []
    ours.close()
    theirs.close()
    assert compared(target, golden, tmp_path / "out", 3).exit_code == 0


def test_stages_that_count_from_zero_compare_with_a_list_of_all_stages(tmp_path: Path) -> None:
    target = pipeline(tmp_path / "t", ["inside", "inside"])
    golden = single(tmp_path / "g", ["0.inside", "1.inside"])
    summary = compared(target, golden, tmp_path / "out", 2)
    assert summary.exit_code == 0
    assert summary.records == {"pass": 38}


def test_a_fault_is_named_with_its_stage(tmp_path: Path) -> None:
    golden = single(tmp_path / "g", ["a", "b"])
    target = pipeline(tmp_path / "t", ["a", "b"])
    dump = target / "step0/rank1/dump.json"
    dump.write_text(dump.read_text().replace('"Norm":36.0', '"Norm":99.0'))  # micro-batch 1
    first = compared(target, golden, tmp_path / "out", 2).first_divergence
    assert first is not None
    assert [(part.rank, part.shard) for part in first.decision.parts] == [("rank1", "pipeline 2 of 2")]
    assert first.record == "Torch.tanh.3.forward"


def test_a_list_of_stages_has_every_nth_one(tmp_path: Path) -> None:
    for rank in range(2):
        stage = Stage()
        for micro_batch in range(3):
            for model in range(2):
                stage.forward(f"{model}.inside", 2 * model + rank, micro_batch)
        write(tmp_path / "t", stage.records, rank=f"rank{rank}", parents=stage.parents)
    whole = Stage()
    for micro_batch in range(3):
        for number in range(4):
            whole.forward(f"{number}.inside", number, micro_batch)
    golden = write(tmp_path / "g", whole.records, parents=whole.parents)
    summary = compared(tmp_path / "t", golden, tmp_path / "out", 2)
    assert summary.exit_code == 0
    assert summary.records == {"pass": 48}


def test_a_whole_batch_is_not_cut_into_micro_batches(tmp_path: Path) -> None:
    target = pipeline(tmp_path / "t", ["a", "b"])
    whole = Stage()
    for number, path in enumerate(["a", "b"]):
        whole.forward(path, number, 0)
    golden = write(tmp_path / "g", whole.records, parents=whole.parents)
    summary = compared(target, golden, tmp_path / "out", 2)
    assert summary.exit_code == 1
    assert summary.only_target > summary.only_golden == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stages", "2"], "need --gather"),
        (["--gather", "batch", "--stages", "2"], "3 ranks in step0 are no multiple of it"),
        (["--gather", "batch", "--golden-stages", "2"], "--golden-stages 2: 1 ranks"),
    ],
)
def test_options_that_do_not_fit_are_one_message(tmp_path: Path, options: list[str], message: str) -> None:
    paths = ["a", "b", "c"]
    sides = ["-tp", str(pipeline(tmp_path / "t", paths)), "-gp", str(single(tmp_path / "g", paths))]
    result = CliRunner().invoke(app, ["compare", *sides, "-o", str(tmp_path / "o"), *options])
    assert result.exit_code == 2
    assert message in result.output
