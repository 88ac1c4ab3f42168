"""Starting and stopping from the user's own hooks of an optimiser: torch goes through its hooks at that moment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from debugger_traces import dump_of, leftovers
from lifecycle_models import MIX, Factory, small_model
from torch.optim import optimizer as torch_steps
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from msprobe.dispatch.optimizer_steps import may_change

REGISTER = {
    "pre of all": lambda optimizer, hook: register_optimizer_step_pre_hook(hook),
    "pre of one": lambda optimizer, hook: optimizer.register_step_pre_hook(hook),
    "post of one": lambda optimizer, hook: optimizer.register_step_post_hook(hook),
    "post of all": lambda optimizer, hook: register_optimizer_step_post_hook(hook),
}


@pytest.fixture
def handles() -> Iterator[list[Any]]:
    made: list[Any] = []
    yield made
    for handle in made:
        handle.remove()


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int = 2) -> None:
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("place", REGISTER)
def test_a_hook_of_an_optimiser_may_stop_whoever_comes_after_it(
    debugger: Factory, handles: list[Any], place: str
) -> None:
    tool = debugger(**MIX)
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls: list[str] = []

    def end_step(*_: Any) -> None:
        tool.stop()
        tool.step()

    handles.append(REGISTER[place](optimizer, lambda *_: calls.append("before")))
    tool.start(model)
    handles.append(REGISTER[place](optimizer, end_step))
    handles.append(REGISTER[place](optimizer, lambda *_: calls.append("after")))
    train(model, optimizer)
    assert calls == ["before", "after"] * 2
    assert not [name for name in leftovers([model]) if "optim" not in name]  # what stays does nothing
    tool.start(model)
    tool.stop()
    tool.step()
    assert leftovers([model]) == []


@pytest.mark.parametrize("place", REGISTER)
def test_a_hook_of_an_optimiser_may_start(debugger: Factory, handles: list[Any], place: str) -> None:
    """A loop without two lines of its own: the hooks of the optimiser divide it into steps."""
    tool = debugger(**MIX)
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def next_step(*_: Any) -> None:
        tool.stop()
        tool.step()
        tool.start(model)

    handles.append(REGISTER[place](optimizer, next_step))
    train(model, optimizer, steps=3)
    tool.stop()
    tool.step()
    calls = [name for name in dump_of(tool, 2).data if name.startswith("Functional.linear")]
    assert "Functional.linear.1.forward" in calls


def test_what_the_optimiser_does_after_a_start_in_its_hook_belongs_to_it(debugger: Factory, handles: list[Any]) -> None:
    tool = debugger(**MIX)
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    model(torch.ones(2, 4)).sum().backward()
    handles.append(register_optimizer_step_pre_hook(lambda *_: tool.start(model)))
    optimizer.step()
    torch.exp(torch.ones(1))
    tool.stop()
    tool.step()
    dump = dump_of(tool)
    assert dump.parents["Tensor.add_.0.forward"] == "optimizer"
    assert dump.parents["Torch.exp.0.forward"] is None


def test_a_table_may_change_unless_hooks_of_it_are_still_to_be_called(handles: list[Any]) -> None:
    class Mine(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:
            pass

    seen: list[tuple[bool, bool]] = []
    optimizer = Mine(small_model().parameters(), {})
    own, of_all = optimizer._optimizer_step_post_hooks, torch_steps._global_optimizer_post_hooks
    for _ in range(2):
        optimizer.register_step_post_hook(lambda *_: seen.append((may_change(own), may_change(of_all))))
        handles.append(register_optimizer_step_post_hook(lambda *_: seen.append((may_change(own), may_change(of_all)))))
    optimizer.step()
    assert seen == [(False, True), (True, True), (True, False), (True, True)]
    assert may_change(own)


class Failing(torch.optim.SGD):
    """Raises in the middle of its second step, as one does that checks its gradients."""

    steps = 0

    def step(self, closure: Any = None) -> None:
        torch.add(self.param_groups[0]["params"][0].detach(), 1)
        self.steps += 1
        if self.steps == 2:
            raise RuntimeError("of the optimiser")
        super().step(closure)


@pytest.mark.parametrize("stacks", [True, False])
def test_calls_belong_to_the_optimiser_while_its_step_runs(debugger: Factory, stacks: bool) -> None:
    tool = debugger(**(MIX | {"extra_info": stacks}))
    model = small_model()
    optimizer = Failing(model.parameters(), lr=0.1)
    with tool.capture(model):
        train(model, optimizer, 1)
        torch.mul(torch.ones(2), 2)
        with pytest.raises(RuntimeError, match="of the optimiser"):
            optimizer.step()
        torch.mul(torch.ones(2), 3)
    dump = dump_of(tool)
    assert {"Torch.add.0.forward", "Torch.add.1.forward", "Torch.mul.0.forward", "Torch.mul.1.forward"} <= set(
        dump.data
    )
    if not stacks:
        return
    parents = {name: dump.parents[name] for name in dump.data if name.startswith(("Torch.add.", "Torch.mul."))}
    assert parents == {
        "Torch.add.0.forward": "optimizer",
        "Torch.mul.0.forward": None,
        "Torch.add.1.forward": "optimizer",
        "Torch.mul.1.forward": None,
    }
    callers = [line.partition(", in ")[2].split(",")[0] for line in dump.stacks["Torch.add.0.forward"]]
    assert callers[:3] == ["step", "wrapper", "train"], callers
    assert callers[3] == "test_calls_belong_to_the_optimiser_while_its_step_runs"
    (construct,) = Path(tool._session.config.dump_path).glob("step0/*/construct.json")
    names = [name for name, _ in json.loads(construct.read_bytes(), object_pairs_hook=list)]
    assert len(names) == len(set(names))
