"""Collectives of torch.distributed, with two real gloo ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import collective_programs as programs
import pytest
import torch
from ranks import coverage, records, run_ranks


def maxima(values: Any) -> Any:
    """Max of every tensor in a list of entries, null and plain values as they are."""
    if isinstance(values, list):
        return [maxima(value) for value in values]
    return values.get("Max", values.get("value")) if isinstance(values, dict) else values


def test_every_collective_has_inputs_before_and_arguments_after(tmp_path: Path) -> None:
    waited = run_ranks(2, programs.every_collective, tmp_path, {"level": "L1"})
    assert waited == [[True] * 3, [True] * 3]
    first, second = records(tmp_path, 0), records(tmp_path, 1)
    common = (
        "all_reduce all_gather all_gather_into_tensor reduce_scatter_tensor reduce_scatter broadcast all_to_all_single"
    )
    common += " all_to_all gather scatter reduce batch_isend_irecv barrier"
    expected = {f"Distributed.{name}.0.forward" for name in common.split()} | {"Distributed.all_reduce.1.forward"}
    assert {name for name in first if name.startswith("Dist")} == expected | {
        "Distributed.send.0.forward",
        "Distributed.isend.0.forward",
    }
    assert {name for name in second if name.startswith("Dist")} == expected | {
        "Distributed.recv.0.forward",
        "Distributed.irecv.0.forward",
    }
    reduced = [data["Distributed.all_reduce.0.forward"] for data in (first, second)]
    assert [maxima(record["input_args"]) for record in reduced] == [[1.0], [2.0]]
    assert [maxima(record["output"]) for record in reduced] == [[3.0], [3.0]]
    gathered = first["Distributed.all_gather.0.forward"]
    assert gathered["input_args"][0] is None, "what a buffer holds before is of no meaning"
    assert maxima(gathered["output"]) == [[3.0, 3.0], 3.0]
    assert (
        maxima(second["Distributed.irecv.0.forward"]["output"])[0]
        == maxima(second["Distributed.recv.0.forward"]["output"])[0]
    )
    exchanged = second["Distributed.batch_isend_irecv.0.forward"]
    assert exchanged["input_args"][0][1]["tensor"] is None
    assert exchanged["output"][0][1]["tensor"]["Max"] == exchanged["output"][0][0]["tensor"]["Max"]


def test_the_members_of_a_group_are_recorded(tmp_path: Path) -> None:
    run_ranks(2, programs.every_collective, tmp_path, {"level": "L1"})
    group = records(tmp_path, 1)["Distributed.all_reduce.1.forward"]["input_kwargs"]["group"]
    assert coverage(tmp_path, 1)["notes"]["process_group"] == {"rank": 1, "world_size": 2}
    assert group == {"type": "torch.ProcessGroup", "group_ranks": [0, 1], "group_id": "77849d8c"}


@pytest.mark.parametrize(
    "config",
    [
        {"level": "L1", "task": "tensor"},
        {"level": "L1", "statistics": {"summary_mode": "md5"}},
        {"level": "L1", "task": "nan_check"},
        {"level": "mix", "task": "structure"},
        {"level": "mix", "async_dump": True},
        {"level": "L1", "statistics": {"list": ["all_reduce"], "data_mode": ["output"]}},
    ],
    ids=["tensor", "md5", "nan_check", "structure", "async_dump", "list"],
)
def test_every_task_and_selection_takes_collectives(tmp_path: Path, config: dict[str, Any]) -> None:
    assert run_ranks(2, programs.every_collective, tmp_path, config) == [[True] * 3] * 2
    for rank in range(2):
        folder = tmp_path / f"dump/step0/rank{rank}"
        assert not (folder / "dump_error_info.log").exists()
        assert not any("failed" in reason for reason in coverage(tmp_path, rank)["not_recorded"])
        construct = json.loads((folder / "construct.json").read_text(encoding="utf-8"))
        assert "Distributed.all_reduce.1.forward" in {**construct, **records(tmp_path, rank)}


def test_a_tensor_dump_holds_what_a_collective_has_received(tmp_path: Path) -> None:
    run_ranks(2, programs.every_collective, tmp_path, {"level": "L1", "task": "tensor"})
    files = tmp_path / "dump/step0/rank1/dump_tensor_data"
    received = torch.load(files / "Distributed.irecv.0.forward.output.0.pt")
    sent = torch.load(tmp_path / "dump/step0/rank0/dump_tensor_data/Distributed.send.0.forward.input.0.pt")
    assert torch.equal(received, sent)


def test_asynchronous_results_are_read_when_they_are_there_and_never_kept_alive(tmp_path: Path) -> None:
    for found in run_ranks(2, programs.asynchronous, tmp_path):
        assert found == {"kind": True, "wait": True, "again": True, "future": [3.0], "freed": True}
    data = records(tmp_path, 0)
    outputs = [maxima(data[f"Distributed.all_reduce.{index}.forward"]["output"]) for index in range(4)]
    assert outputs == [[3.0, True], [3.0, True], [3.0, True], []]
    reasons = coverage(tmp_path, 0)["null_statistics"]
    assert reasons == {"asynchronous collective that was not waited for in its step": 1}


def test_a_wait_after_stop_is_recorded_and_nothing_stays_in_torch(tmp_path: Path) -> None:
    assert run_ranks(2, programs.after_stop, tmp_path) == [True, True]
    assert maxima(records(tmp_path, 1)["Distributed.all_reduce.0.forward"]["output"]) == [2.0, True]
    assert not (tmp_path / "dump" / "step1").exists()


def test_exchange_of_objects_shifts_no_names(tmp_path: Path) -> None:
    shared = run_ranks(2, programs.objects, tmp_path)
    assert shared == [[[{"rank": 0}, {"rank": 1}]]] * 2
    names = [name for name in records(tmp_path, 0) if "ones" not in name]
    assert names == ["Torch.tanh.0.forward", "Torch.tanh.1.forward"]
    assert coverage(tmp_path, 0)["not_recorded"]["collective of Python objects"] == 2


def test_coalesced_collectives_are_read_when_their_block_is_over(tmp_path: Path) -> None:
    assert run_ranks(2, programs.coalesced, tmp_path) == [[6.0, 40.0]] * 2
    data = records(tmp_path, 1)
    outputs = [maxima(data[f"Distributed.all_reduce.{index}.forward"]["output"])[0] for index in range(4)]
    assert outputs == [3.0, 20.0, 6.0, 40.0]


def test_functional_collectives_have_their_numbers_where_they_are_waited_for(tmp_path: Path) -> None:
    run_ranks(2, programs.functional, tmp_path)
    data = records(tmp_path, 0)
    started = data["Distributed._c10d_functional.all_reduce.0.forward"]
    assert started["input_args"][0]["Max"] == 1.0
    assert started["output"][0]["Max"] is None
    assert "still running" in started["output"][0]["reason"]
    assert maxima(data["Distributed._c10d_functional.wait_tensor.0.forward"]["output"]) == [3.0]


def test_a_collective_in_a_thread_without_modules_is_recorded(tmp_path: Path) -> None:
    assert run_ranks(2, programs.in_a_thread, tmp_path) == [2.0, 2.0]
    assert maxima(records(tmp_path, 0)["Distributed.all_reduce.0.forward"]["output"]) == [2.0]


def test_a_collective_that_raises_raises_what_it_raises_without_the_tool(tmp_path: Path) -> None:
    (message, _) = run_ranks(2, programs.failing, tmp_path)
    assert "Expected `tensor`" in message or "torch.Tensor" in message
    data = records(tmp_path, 0)
    assert "error" in data["Distributed.all_reduce.0.forward#error"]
    assert maxima(data["Distributed.all_reduce.0.forward"]["output"]) == [2.0]


def test_functions_of_torch_stay_themselves_under_any_name(tmp_path: Path) -> None:
    for found in run_ranks(2, programs.untouched, tmp_path):
        assert found == {"during": True, "signatures": True, "after": True}
    assert "Distributed.all_reduce.0.forward" in records(tmp_path, 0)
