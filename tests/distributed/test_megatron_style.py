"""Modules as Megatron builds them: lists of model parts, gradients in ``main_grad``, shared embeddings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import megatron_programs as programs
import pytest
import torch
from debugger_traces import dump_of, leftovers
from ranks import records, run_ranks

Factory = Callable[..., Any]


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_main_grad_is_recorded_after_the_micro_batch_was_added(debugger: Factory, level: str) -> None:
    model, keep = programs.with_main_grad(programs.Part())
    tool = debugger(task="statistics", level=level)
    tool.start(model)
    sums = []
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        sums.append(float(model.first.weight.main_grad.norm()))
    tool.stop()
    tool.step()
    found = [dump_of(tool).data[f"Module.first.Linear.parameters_grad.{index}"]["weight"][0] for index in range(2)]
    assert [entry["Norm"] for entry in found] == pytest.approx(sums)
    assert all(entry["dtype"] == "torch.float32" for entry in found)
    assert not tool._session.adapter._parameters._nodes
    assert not leftovers([model])
    assert keep


def test_gradients_in_main_grad_are_bitwise_equal(debugger: Factory) -> None:
    def train(tool: Any) -> list[torch.Tensor]:
        model, _keep = programs.with_main_grad(programs.Part())
        if tool is not None:
            tool.start(model)
        model(torch.ones(2, 4)).sum().backward()
        if tool is not None:
            tool.stop()
            tool.step()
        return [parameter.main_grad for parameter in model.parameters()]

    assert all(map(torch.equal, train(None), train(debugger(task="statistics", level="mix"))))


def test_a_shared_embedding_has_its_gradient_under_both_names(debugger: Factory) -> None:
    model = programs.Tied()
    tool = debugger(task="statistics", level="L0")
    tool.start(model)
    model(torch.tensor([[0, 1, 2]])).sum().backward()
    tool.stop()
    tool.step()
    data = dump_of(tool).data
    first = data["Module.words.Embedding.parameters_grad.0"]["weight"]
    assert first == data["Module.output.Linear.parameters_grad.0"]["weight"]
    assert first[0]["Norm"] == pytest.approx(float(model.output.weight.grad.norm()))
    assert "Module.words.Embedding.parameters_grad.1" not in data


def test_a_list_of_parts_is_numbered_and_the_embedding_of_first_and_last_stage_is_reduced(tmp_path: Path) -> None:
    equal = run_ranks(2, programs.virtual_pipeline, tmp_path)
    assert equal == [True, True]
    for rank in range(2):
        data = records(tmp_path, rank)
        for part in (0, 1):
            assert f"Module.{part}.first.Linear.forward.0" in data
            assert f"Module.{part}.first.Linear.parameters_grad.0" in data
        reduced = data["Distributed.all_reduce.0.forward"]
        assert reduced["input_kwargs"]["group"]["group_ranks"] == [0, 1]
        assert reduced["output"][0]["shape"] == [6, 4]


def test_an_alias_of_a_collective_from_before_the_debugger_is_recorded(tmp_path: Path) -> None:
    run_ranks(2, programs.stored_functions, tmp_path)
    names = set(records(tmp_path, 0))
    assert {"Distributed.all_gather_into_tensor.0.forward", "Distributed.reduce_scatter_tensor.0.forward"} <= names


def test_tensor_parallel_functions_reduce_in_forward_and_backward(tmp_path: Path) -> None:
    assert run_ranks(2, programs.tensor_parallel_functions, tmp_path) == [True, True]
    data = records(tmp_path, 1)
    assert [name for name in data if name.startswith("Distributed")] == [
        "Distributed.all_reduce.0.forward",
        "Distributed.all_reduce.1.forward",
    ]
    assert "Module.inside.Linear.backward.0" in data
