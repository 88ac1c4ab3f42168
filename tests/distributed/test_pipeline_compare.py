"""Pipelines of up to four stages: bitwise as they are without the tool, and compared with a run in one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pipeline_programs as programs
import pytest
from ranks import coverage, records, run_ranks

from msprobe.compare.comparison import Request, compare_dumps
from msprobe.compare.rows import GatherRule, RankPart, Summary

Recorded = Callable[..., Path]
SCHEDULES = ["ScheduleGPipe", "Schedule1F1B"]
EVERYTHING = {"level": "mix", "risk_level": "ALL", "task": "tensor"}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Dumps of real processes, each made once."""
    known: dict[tuple[object, ...], Path] = {}

    def get(world: int, schedule: str, *options: Any) -> Path:
        key = world, schedule, options
        if key not in known:
            folder = tmp_path_factory.mktemp("pipeline")
            if world == 1:
                run_ranks(1, programs.single, folder, EVERYTHING)
            else:
                run_ranks(world, programs.recorded, folder, schedule, EVERYTHING, *options)
            known[key] = folder
        return known[key]

    return get


def compared(recorded: Recorded, run: Path, out: Path, rule: GatherRule, stages: int) -> Summary:
    golden = recorded(1, "")
    request = Request(run / "dump", golden / "dump", out, gather=rule, stages=stages, processes=1)
    return compare_dumps(request).summary


@pytest.mark.parametrize("config", [{"level": "mix"}, {"level": "mix", "rank": [1]}], ids=["all ranks", "one rank"])
def test_four_stages_are_bitwise_equal(tmp_path: Path, config: dict[str, Any]) -> None:
    assert run_ranks(4, programs.twice, tmp_path, SCHEDULES, config) == [[True] * 2] * 4
    wanted = config.get("rank", range(4))
    for schedule in SCHEDULES:
        folders = sorted(entry.name for entry in (tmp_path / schedule / "dump/step0").iterdir())
        assert folders == [f"rank{rank}" for rank in wanted]


def test_the_trial_run_that_tells_the_shapes_is_no_record(recorded: Recorded) -> None:
    run = recorded(4, "Schedule1F1B")
    for rank in range(4):
        first, second = ([name for name in records(run, rank, step) if "Distributed" not in name] for step in (0, 1))
        assert first == second
        assert coverage(run, rank)["not_recorded"]["trial run of a pipeline stage, for the shapes it sends"] == 2


@pytest.mark.parametrize(
    ("world", "schedule", "sharded", "rule", "stages"),
    [
        (4, "Schedule1F1B", False, "replicated", 4),
        (2, "ScheduleInterleaved1F1B", False, "replicated", 2),
        (4, "ScheduleGPipe", True, "batch", 2),
    ],
    ids=["1F1B", "lists of stages", "stages of FSDP2"],
)
def test_stages_agree_with_the_single_process(
    recorded: Recorded, tmp_path: Path, world: int, schedule: str, sharded: bool, rule: GatherRule, stages: int
) -> None:
    summary = compared(recorded, recorded(world, schedule, sharded), tmp_path / "out", rule, stages)
    assert summary.first_divergence is None
    assert summary.exit_code == 0
    assert summary.records["pass"] > 600
    notes = summary.pairs[0].notes
    assert any(f"{stages} stages of a pipeline" in note for note in notes)
    assert any("sums over micro-batches" in note for note in notes) == sharded


def test_a_fault_in_a_shard_of_a_stage_is_named_with_rank_and_stage(recorded: Recorded, tmp_path: Path) -> None:
    summary = compared(recorded, recorded(4, "Schedule1F1B", True, "2"), tmp_path / "out", "batch", 2)
    first = summary.first_divergence
    assert first is not None
    assert first.decision.parts == (RankPart("rank3", "Shard(dim=0) 2 of 2, pipeline 2 of 2"),)
    assert "blocks.2.up.weight" in first.explanation


def test_zero_bubble_schedules_make_gradients_of_weights_in_a_second_pass(recorded: Recorded) -> None:
    found = records(recorded(2, "ScheduleInterleavedZeroBubble"), 1)
    weight = "Functional.linear.0.backward"
    assert found[weight]["output"][1] is None
    assert found[f"{weight}#2"]["output"][1]["shape"] == [2 * programs.WIDTH, programs.WIDTH]
    assert not any("parameters_grad" in name for name in found)
