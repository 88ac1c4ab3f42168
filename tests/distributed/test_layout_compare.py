"""`compare` puts the ranks of a parallel run together, and names the rank and the shard of a fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import layout_programs as programs
import pytest
from ranks import run_ranks

from msprobe.compare.comparison import Request, compare_dumps
from msprobe.compare.rows import GatherRule, RankPart, Summary

Recorded = Callable[..., Path]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Dumps of real processes, each made once."""
    known: dict[tuple[object, ...], Path] = {}

    def get(layout: str, world: int, task: str = "tensor", fault: str | None = None) -> Path:
        key = layout, world, task, fault
        if key not in known:
            folder = tmp_path_factory.mktemp(layout)
            config = {"level": "mix", "risk_level": "ALL", "task": task}
            run_ranks(world, programs.step, folder, layout, config, fault, grouped=world > 1)
            known[key] = folder / "dump"
        return known[key]

    return get


def gathered(target: Path, golden: Path, out: Path, rule: GatherRule | None) -> Summary:
    return compare_dumps(Request(target, golden, out, gather=rule)).summary


@pytest.mark.parametrize(
    ("layout", "world", "task", "rule"),
    [
        ("ddp", 2, "tensor", "batch"),
        ("fsdp2", 4, "tensor", "batch"),
        ("fsdp2", 2, "statistics", "batch"),
        ("tensor_parallel", 2, "tensor", "replicated"),
        ("tensor_parallel", 2, "statistics", "replicated"),
        ("replicated_shards", 4, "tensor", "batch"),
        ("two_dimensions", 4, "tensor", "batch"),
        ("two_dimensions", 4, "statistics", "batch"),
    ],
)
def test_a_healthy_parallel_run_agrees_with_the_single_process(
    recorded: Recorded, tmp_path: Path, layout: str, world: int, task: str, rule: GatherRule
) -> None:
    summary = gathered(recorded(layout, world, task), recorded("single", 1, task), tmp_path / "out", rule)
    assert summary.first_divergence is None
    assert summary.exit_code == 0
    assert summary.records["pass"] > 50
    (pair,) = summary.pairs
    assert pair.rank == "+".join(f"rank{rank}" for rank in range(world))
    assert task in pair.mode


def test_two_runs_of_one_layout_agree_whose_ranks_have_values_of_their_own(recorded: Recorded, tmp_path: Path) -> None:
    run = recorded("tensor_parallel", 2)
    summary = gathered(run, run, tmp_path / "out", "replicated")
    assert summary.exit_code == 0
    assert summary.values.keys() == {"pass"} | summary.values.keys() & {"uncompared"}


def test_two_layouts_agree_with_each_other(recorded: Recorded, tmp_path: Path) -> None:
    summary = gathered(recorded("fsdp2", 4), recorded("ddp", 2), tmp_path / "out", "batch")
    assert summary.first_divergence is None
    assert summary.exit_code == 0


@pytest.mark.parametrize(
    ("layout", "world", "task", "fault", "rule", "part"),
    [
        ("tensor_parallel", 2, "tensor", "weight", "replicated", RankPart("rank1", "Shard(dim=0) 2 of 2")),
        ("tensor_parallel", 2, "statistics", "weight", "replicated", RankPart("rank1", "Shard(dim=0) 2 of 2")),
        ("fsdp2", 4, "tensor", "weight", "batch", RankPart("rank3", "Shard(dim=0) 4 of 4")),
        ("fsdp2", 2, "statistics", "output", "batch", RankPart("rank1", "part of the batch 2 of 2")),
        ("ddp", 2, "tensor", "output", "batch", RankPart("rank1", "part of the batch 2 of 2")),
    ],
)
def test_a_fault_is_named_with_rank_and_shard(
    recorded: Recorded,
    tmp_path: Path,
    layout: str,
    world: int,
    task: str,
    fault: str,
    rule: GatherRule,
    part: RankPart,
) -> None:
    faulty = recorded(layout, world, task, fault)
    against_single = gathered(faulty, recorded("single", 1, task), tmp_path / "single", rule)
    against_healthy = gathered(faulty, recorded(layout, world, task), tmp_path / "healthy", rule)
    for summary in (against_single, against_healthy):
        first = summary.first_divergence
        assert first is not None
        assert first.decision.parts == (part,), first.explanation
        assert summary.rank_only == (part.rank,)
        assert part.rank in first.explanation
        assert part.shard in first.explanation
        assert first.module == ("blocks.1.up" if fault == "weight" else "blocks.1.norm")


@pytest.mark.parametrize(
    ("layout", "fault", "shard"),
    [
        ("replicated_shards", "weight", "Shard(dim=0) 2 of 2"),
        ("two_dimensions", "weight", "Shard(dim=0) 2 of 2, StridedShard(dim=0) 2 of 2"),
        ("two_dimensions", "output", "part of the batch 2 of 2, replica"),
    ],
)
def test_on_a_mesh_of_two_dimensions_the_one_shard_that_is_wrong_is_named(
    recorded: Recorded, tmp_path: Path, layout: str, fault: str, shard: str
) -> None:
    faulty = recorded(layout, 4, "tensor", fault)
    first = gathered(faulty, recorded("single", 1), tmp_path / "out", "batch").first_divergence
    assert first is not None
    assert first.decision.parts == (RankPart("rank3", shard),)
    assert "differs" in first.explanation


def test_rank_by_rank_a_fault_in_a_shard_is_named_with_rank_and_shard(recorded: Recorded, tmp_path: Path) -> None:
    summary = gathered(
        recorded("tensor_parallel", 2, "tensor", "weight"), recorded("tensor_parallel", 2), tmp_path / "out", None
    )
    first = summary.first_divergence
    assert first is not None
    assert first.rank == "rank1"
    assert first.decision.parts == (RankPart("rank1", "Shard(dim=0) 2 of 2"),)
    assert "rank1 (Shard(dim=0) 2 of 2)" in first.explanation
