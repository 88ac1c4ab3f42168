"""Which ranks are said to part, and what is a replica for certain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from written_dumps import call, tensor, write

from msprobe.compare.replicas import check_replicas


def ranks(folder: Path, name: str, scales: list[float], make: Any) -> Path:
    for rank, scale in enumerate(scales):
        write(folder, [(name, make(scale))], rank=f"rank{rank}")
    return folder


def with_parameter(scale: float) -> dict[str, Any]:
    return {**call(tensor(), out=tensor()), "parameters": {"weight": tensor(scale)}}


def test_the_minority_is_named(tmp_path: Path) -> None:
    run = ranks(tmp_path, "Module.up.Linear.forward.0", [1.0, 1.0, 3.0, 1.0], with_parameter)
    (one,) = check_replicas(run).parted
    assert one.ranks == ("rank2",)
    assert one.others is not None
    assert one.others.entry.norm == 3.0


def test_replicated_dtensors_are_checked_and_shards_are_not(tmp_path: Path) -> None:
    def placed(placement: str, fields: dict[str, int]) -> Any:
        layout = {"device_mesh": [0, 1, 2], "placements": [{placement: fields}]}
        return lambda scale: call(tensor(scale, **layout), out=tensor())

    name = "Torch.tanh.0.forward"
    (one,) = check_replicas(ranks(tmp_path / "r", name, [1.0, 2.0, 1.0], placed("Replicate", {}))).parted
    assert (one.ranks, one.value) == (("rank1",), "input.0")
    assert check_replicas(ranks(tmp_path / "s", name, [1.0, 2.0, 1.0], placed("Shard", {"dim": 0}))).parted == ()


def test_the_result_of_an_all_reduce_of_all_ranks_is_checked(tmp_path: Path) -> None:
    def reduce(group: list[int]) -> Any:
        given = {"type": "torch.ProcessGroup", "group_ranks": group, "group_id": "a"}
        return lambda scale: {
            "input_args": [tensor(scale + 1)],
            "input_kwargs": {"group": given},
            "output": [tensor(scale)],
        }

    name, scales = "Distributed.all_reduce.0.forward", [1.0, 1.0, 2.0]
    (one,) = check_replicas(ranks(tmp_path / "all", name, scales, reduce([0, 1, 2]))).parted
    assert (one.ranks, one.value) == (("rank2",), "output.0")
    assert check_replicas(ranks(tmp_path / "some", name, scales, reduce([0, 1]))).parted == ()


def test_activations_and_stages_of_a_pipeline_are_no_replicas(tmp_path: Path) -> None:
    run = ranks(tmp_path / "a", "Torch.relu.0.forward", [1.0, 2.0], lambda scale: call(out=tensor(scale)))
    assert check_replicas(run).checked == 0
    stages = ranks(tmp_path / "p", "Module.0.up.Linear.forward.0", [1.0, 2.0], with_parameter)
    assert check_replicas(stages).parted == ()
