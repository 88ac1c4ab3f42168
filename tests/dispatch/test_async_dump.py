"""async_dump and tensor files at every level: written after the step, values as they were, nothing else changed."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from debugger_traces import dump_of
from torch import nn

TENSOR = {"task": "tensor", "tensor": {"list": ["linear", "Linear", "relu", "mul_"]}}
CONFIGURATIONS = [
    {"level": level, **task} for level in ("L0", "L1", "mix") for task in ({"task": "statistics"}, dict(TENSOR))
]


def files_of(tool: Any) -> dict[str, torch.Tensor]:
    paths = Path(tool._session.config.dump_path).glob("step0/*/dump_tensor_data/*.pt")
    return {path.stem: torch.load(path, weights_only=True) for path in paths}


def on_disk(tool: Any) -> int:
    return sum(path.stat().st_size for path in Path(tool._session.config.dump_path).rglob("*") if path.is_file())


def train(tool: Any, during: Any = None) -> list[torch.Tensor]:
    """One step with an in-place change of a recorded tensor; returns loss and parameters."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    x = torch.randn(3, 4)
    tool.start(model)
    before = on_disk(tool)
    loss = model(x).sum()
    loss.backward()
    x.mul_(2)
    optimizer.step()
    if during is not None:
        during(before)
    tool.stop()
    tool.step()
    return [loss.detach(), *(parameter.detach().clone() for parameter in model.parameters())]


@pytest.mark.parametrize("config", CONFIGURATIONS, ids=lambda c: f"{c['level']} {c['task']}")
def test_an_asynchronous_dump_writes_nothing_inside_the_step_and_then_the_same(debugger, config):
    tool = debugger(**config, async_dump=True)

    def check(before: int) -> None:
        assert on_disk(tool) == before
        assert not [thread for thread in threading.enumerate() if thread.name == "msprobe-tensors"]

    results = train(tool, check)
    dump, files = dump_of(tool), files_of(tool) if config["task"] == "tensor" else {}
    plain = debugger(**config)
    assert all(torch.equal(a, b) for a, b in zip(results, train(plain), strict=True))
    assert dump.data == dump_of(plain).data
    assert dump.stacks.keys() == dump_of(plain).stacks.keys()
    if config["task"] == "tensor":
        expected = files_of(plain)
        assert files.keys() == expected.keys()
        assert files
        assert all(torch.equal(files[name], expected[name]) for name in expected)
    assert dump.coverage is not None
    assert dump.coverage["failures"] == []


@pytest.mark.parametrize("asynchronous", [False, True])
def test_files_hold_the_values_that_the_record_describes(debugger, asynchronous):
    tool = debugger(task="tensor", level="L1", async_dump=asynchronous, tensor={"list": ["add_", "linear"]})
    x = torch.ones(5)
    with tool.capture():
        for _ in range(20):
            x.add_(1)
    files = files_of(tool)
    for index in range(20):
        assert torch.equal(files[f"Tensor.add_.{index}.forward.input.0"], torch.full((5,), index + 1.0))
        assert torch.equal(files[f"Tensor.add_.{index}.forward.output.0"], torch.full((5,), index + 2.0))
        record = dump_of(tool).data[f"Tensor.add_.{index}.forward"]
        assert record["input_args"][0]["Max"] == index + 1


def test_every_file_is_that_of_its_record_with_an_optimiser_inside(debugger):
    tool = debugger(task="tensor", level="mix", risk_level="ALL")
    train(tool)
    dump, files = dump_of(tool), files_of(tool)
    entries = [entry for record in dump.data.values() for entry in entries_in(record)]
    saved = [entry for entry in entries if "data_name" in entry]
    assert len(saved) > 100
    assert {entry["data_name"] for entry in saved} == {f"{name}.pt" for name in files}
    for entry in saved:
        tensor = files[entry["data_name"][:-3]]
        assert list(tensor.shape) == entry["shape"]
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize
        if tensor.is_floating_point() and entry["Max"] is not None:
            assert float(tensor.max()) == entry["Max"]
            assert float(tensor.min()) == entry["Min"]
    assert dump.coverage["linked_files"] > 50


def entries_in(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value] if "dtype" in value else [entry for part in value.values() for entry in entries_in(part)]
    return [entry for part in value for entry in entries_in(part)] if isinstance(value, list) else []


def test_complex_tensors_of_an_asynchronous_dump_have_no_statistics_and_coverage_says_so(debugger):
    tool = debugger(async_dump=True)
    with tool.capture():
        torch.matmul(torch.ones(2, 2, dtype=torch.complex64), torch.ones(2, 2, dtype=torch.complex64))
        torch.matmul(torch.ones(2, 2), torch.ones(2, 2))
    dump = dump_of(tool)
    reason = "complex tensor: no statistics with async_dump"
    for entry in entries_in(dump.data["Torch.matmul.0.forward"]):
        assert entry["reason"] == reason
        assert entry["Max"] is entry["Norm"] is None
    assert dump.data["Torch.matmul.1.forward"]["output"][0]["Max"] == 2.0
    assert dump.coverage["null_statistics"] == {reason: 3}


def test_the_memory_bound_is_told_once_and_costs_no_file(debugger, monkeypatch, caplog):
    monkeypatch.setenv("MSPROBE_BUFFER_MB", "1")
    tool = debugger(task="tensor", level="L1", async_dump=True, tensor={"list": ["relu"]})
    with tool.capture():
        for index in range(6):
            F.relu(torch.full((100_000,), index + 1.0))
    files = files_of(tool)
    assert len(files) == 12
    assert torch.equal(files["Functional.relu.5.forward.output.0"], torch.full((100_000,), 6.0))
    messages = [record.getMessage() for record in caplog.records if "MSPROBE_BUFFER_MB" in record.getMessage()]
    assert len(messages) == 1
    assert any("1 MiB of host memory" in text for text in dump_of(tool).coverage["failures"])


def test_start_and_stop_twice_in_one_step_write_each_part_at_its_stop(debugger):
    tool = debugger(task="tensor", level="L1", async_dump=True, tensor={"list": ["relu"]})
    for count in (2, 4):
        tool.start()
        F.relu(torch.randn(7))
        tool.stop()
        assert len(files_of(tool)) == count
    tool.step()
    assert len(dump_of(tool).data) == 2


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_unwritable_folder_costs_the_files_and_not_the_training(debugger, caplog, asynchronous):
    tool = debugger(task="tensor", level="L1", async_dump=asynchronous, tensor={"list": ["relu"]})
    for _ in range(2):
        tool.start()
        F.relu(torch.randn(7))
        tool.stop()
        for folder in Path(tool._session.config.dump_path).glob("step0/*/dump_tensor_data"):
            shutil.rmtree(folder)
    tool.step()
    dump = dump_of(tool)
    assert "data_name" in entries_in(dump.data["Functional.relu.0.forward"])[0]
    assert not any("data_name" in entry for entry in entries_in(dump.data["Functional.relu.1.forward"]))
    assert dump.coverage["lost_files"] == 2
    assert len([record for record in caplog.records if "cannot write" in record.getMessage()]) == 1


def test_level_debug_keeps_what_save_was_given_until_the_stop(debugger):
    tool = debugger(task="tensor", level="debug", async_dump=True)
    tool.start()
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    tool.save(y, "y")
    before = on_disk(tool)
    with torch.no_grad():
        y.detach().mul_(5)
    y.sum().backward()
    assert on_disk(tool) == before
    assert files_of(tool) == {}
    tool.stop()
    values = sorted(value.tolist() for value in files_of(tool).values())
    tool.step()
    assert values == [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]  # the gradient, and y as it was
