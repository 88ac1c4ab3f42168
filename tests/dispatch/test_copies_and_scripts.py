"""Deep copies of a recorded model are clean, and TorchScript can compile and trace what it could without the tool."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from debugger_traces import dump_of
from lifecycle_models import Factory, small_model
from torch import nn
from torch.optim.swa_utils import AveragedModel

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
LEVELS = pytest.mark.parametrize("level", ["L0", "L1", "mix"])


def hook_tables(model: nn.Module) -> list[Any]:
    return [
        (path, name, list(table))
        for path, module in model.named_modules()
        for name, table in vars(module).items()
        if "hooks" in name and table
    ]


@LEVELS
def test_a_deep_copy_made_while_recording_has_no_hook_left(debugger: Factory, level: str) -> None:
    tool = debugger(level=level, task="statistics")
    model = small_model()
    mine = model[0].register_forward_hook(print_nothing)
    before = hook_tables(model)
    tool.start(model)
    twin = copy.deepcopy(model)
    averaged = AveragedModel(model)
    several = copy.deepcopy({"model": model, "again": [model[0], model]})
    tool.stop()
    tool.step()
    assert hook_tables(twin) == hook_tables(averaged.module) == hook_tables(several["model"]) == before
    assert several["again"][0] is several["model"][0]
    assert hook_tables(model) == before
    mine.remove()


def print_nothing(*_: Any) -> None:
    """A hook of the user."""


@LEVELS
def test_a_deep_copy_can_be_scripted_while_the_model_is_recorded(debugger: Factory, level: str) -> None:
    tool = debugger(level=level, task="statistics")
    model = small_model()
    x = torch.ones(2, 4)
    with tool.capture(model):
        scripted = torch.jit.script(copy.deepcopy(model))
        assert torch.equal(scripted(x), model(x))
    assert torch.equal(scripted(x), model(x))


@LEVELS
def test_a_model_can_be_scripted_after_stop(debugger: Factory, level: str) -> None:
    tool = debugger(level=level, task="statistics")
    model = small_model()
    x = torch.ones(2, 4)
    tool.start(model)
    expected = model(x)
    tool.stop()
    assert torch.equal(torch.jit.script(model)(x), expected)


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_scripting_a_model_while_it_is_recorded_says_what_to_do(debugger: Factory, level: str) -> None:
    tool = debugger(level=level, task="statistics")
    model = small_model()
    with tool.capture(model), pytest.raises(AttributeError, match=r"call stop\(\) before torch.jit.script"):
        torch.jit.script(model)


@LEVELS
def test_a_model_can_be_traced_while_it_is_recorded(debugger: Factory, level: str) -> None:
    model = small_model()
    x = torch.ones(2, 4)
    plain = torch.jit.trace(model, x)
    tool = debugger(level=level, task="statistics")
    with tool.capture(model):
        traced = torch.jit.trace(model, x)
    kinds = [[node.kind() for node in found.inlined_graph.nodes()] for found in (plain, traced)]
    assert kinds[0] == kinds[1]
    assert torch.equal(traced(x), model(x))
    assert dump_of(tool).data
