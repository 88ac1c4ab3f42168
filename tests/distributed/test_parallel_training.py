"""DDP, FSDP2, tensor and pipeline parallelism: the run stays bitwise as it is, and names stay the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import parallel_programs as programs
import pytest
from ranks import records, run_ranks

ONE_PROCESS = ("single", "checkpoint")
FOUR_RANKS = ("replicated_shards", "two_dimensions")
COMPILED = ("fsdp2_compiled",)


@pytest.mark.parametrize("kind", [kind for kind in programs.KINDS if kind not in ONE_PROCESS + FOUR_RANKS + COMPILED])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_losses_gradients_and_parameters_are_bitwise_equal(tmp_path: Path, kind: str, level: str) -> None:
    assert run_ranks(2, programs.twice, tmp_path, kind, {"level": level}) == [True, True]


@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "tensor_parallel"])
def test_bitwise_equal_when_one_rank_alone_records(tmp_path: Path, kind: str) -> None:
    assert run_ranks(2, programs.twice, tmp_path, kind, {"level": "mix", "rank": [1]}) == [True, True]
    assert [entry.name for entry in (tmp_path / "dump/step0").iterdir()] == ["rank1"]


@pytest.mark.parametrize("kind", ["fsdp2", *FOUR_RANKS])
def test_bitwise_equal_with_four_ranks_and_micro_batches(tmp_path: Path, kind: str) -> None:
    assert run_ranks(4, programs.twice, tmp_path, kind, {"level": "mix"}, {"parts": 2}) == [True] * 4


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}], ids=["fused", "foreach"])
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_bitwise_equal_with_the_optimiser_inside_the_step(tmp_path: Path, kind: str, options: dict[str, bool]) -> None:
    config = {"level": "mix", "risk_level": "ALL"}
    assert run_ranks(2, programs.twice, tmp_path, kind, config, {"optimizer_options": options}) == [True, True]


def test_gradients_of_fsdp2_are_the_local_shards_under_the_names_of_the_user(tmp_path: Path) -> None:
    for rank, norms in enumerate(run_ranks(2, programs.gradient_shards, tmp_path)):
        found = {}
        for name, record in records(tmp_path, rank).items():
            path, mark, _ = name.partition(".parameters_grad.")
            if mark:
                module = path.removeprefix("Module.").rpartition(".")[0]
                for key, (entry,) in record.items():
                    assert entry["placements"] == [{"Shard": {"dim": 0}}]
                    found[f"{module}.{key}"] = entry["Norm"]
        assert found == pytest.approx(norms, rel=1e-6)


def test_a_compiled_collective_stays_compiled_and_right(tmp_path: Path) -> None:
    assert run_ranks(2, programs.compiled_collective, tmp_path) == [[7.0] * 3] * 2
    assert "Distributed.all_reduce.0.forward" in records(tmp_path, 0)


def test_fsdp2_of_compiled_blocks_is_bitwise_equal(tmp_path: Path) -> None:
    assert run_ranks(2, programs.twice, tmp_path, "fsdp2_compiled", {"level": "mix"}) == [True, True]


def names(folder: Path, kind: str, world: int, config: dict[str, Any]) -> list[str]:
    place = folder / kind
    place.mkdir()
    run_ranks(world, programs.twice, place, kind, config, grouped=world > 1)
    (rank, *_) = sorted((place / "dump/step0").iterdir())
    return [name for name in records_of(rank) if not name.startswith("Distributed.")]


def records_of(folder: Path) -> dict[str, Any]:
    import json

    return json.loads((folder / "dump.json").read_text(encoding="utf-8"))["data"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize(
    ("sharded", "plain"),
    [("fsdp2", "single"), ("fsdp2_checkpoint", "checkpoint"), ("tensor_parallel", "single")],
)
def test_a_parallel_run_has_the_names_of_the_single_process(
    tmp_path: Path, level: str, sharded: str, plain: str
) -> None:
    config = {"level": level, "risk_level": "ALL"}
    expected = names(tmp_path, plain, 1, config)
    found = names(tmp_path, sharded, 2, config)
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("schedule", ["ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B"])
@pytest.mark.parametrize("config", [{"level": "mix"}, {"level": "L1", "rank": [1]}], ids=["mix", "L1, one rank"])
def test_a_pipeline_is_bitwise_equal(tmp_path: Path, schedule: str, config: dict[str, Any]) -> None:
    assert run_ranks(2, programs.pipeline_twice, tmp_path, schedule, config) == [True, True]


def test_a_pipeline_records_each_micro_batch_and_what_is_sent(tmp_path: Path) -> None:
    run_ranks(2, programs.pipeline_twice, tmp_path, "ScheduleInterleaved1F1B", {"level": "mix"})
    found = records(tmp_path, 1, step=1)
    for model in (0, 1):
        for index in range(4):
            assert f"Module.{model}.inside.0.Linear.forward.{index}" in found
            assert f"Module.{model}.inside.0.Linear.backward.{index}" in found
    received = [record["output"][0] for name, record in found.items() if name.startswith("Distributed.irecv")]
    assert len(received) == 12
    assert all(entry["Norm"] > 0 for entry in received)
    assert sum(name.startswith("Distributed.isend") for name in found) == 12


def test_sharded_values_are_measured_locally_without_a_collective(tmp_path: Path) -> None:
    run_ranks(2, programs.sharded_values, tmp_path)
    (entry,) = records(tmp_path, 1)["Torch.tanh.0.forward"]["input_args"]
    assert (entry["Max"], entry["Min"], entry["shape"]) == (7.0, 4.0, [2, 2])
    assert entry["type"] == "torch.distributed.tensor.DTensor"
    assert entry["device_mesh"] == [0, 1]
    assert entry["placements"] == [{"Shard": {"dim": 0}}]
