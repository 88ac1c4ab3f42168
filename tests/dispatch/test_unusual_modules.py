"""Models that do what the common case does not, each recorded completely and unchanged."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from debugger_traces import assert_nothing_left, dump_of
from lifecycle_models import MIX, Factory, small_model
from torch import nn


def test_a_model_with_lazy_parameters_may_be_started_before_they_exist(debugger: Factory) -> None:
    tool = debugger(**MIX)
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyLinear(1))
    for _ in range(2):
        with tool.capture(model):
            model(torch.ones(2, 4)).sum().backward()
    reason = "parameter was made, replaced or unfrozen after start()"
    assert [dump_of(tool, step).coverage["not_recorded"].get(reason) for step in range(2)] == [4, None]
    first, second = (dump_of(tool, step).data for step in range(2))
    assert first["Module.0.LazyLinear.forward.0"]["output"][0]["shape"] == [2, 3]
    assert second["Module.0.Linear.forward.0"]["output"][0]["shape"] == [2, 3]
    assert "Module.2.Linear.parameters_grad.0" in second


def test_a_parameter_that_is_replaced_while_recording_is_counted(debugger: Factory) -> None:
    tool = debugger(**MIX)
    model = small_model()
    with tool.capture(model):
        model[0].weight = nn.Parameter(torch.ones(4, 4))
        model(torch.ones(2, 4)).sum().backward()
    dump = dump_of(tool)
    assert list(dump.data["Module.0.Linear.parameters_grad.0"]) == ["bias"]
    assert dump.coverage["not_recorded"]["parameter was made, replaced or unfrozen after start()"] == 1


@pytest.mark.parametrize("word", ["stop", "step"])
def test_a_post_accumulate_hook_may_end_the_capture(
    debugger: Factory, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    tool = debugger(**MIX)
    model = small_model()
    seen = []

    def hook(parameter: torch.Tensor) -> None:
        seen.append(parameter.grad is not None)
        getattr(tool, word)()

    handle = model[2].weight.register_post_accumulate_grad_hook(hook)
    tool.start(model)
    model(torch.ones(2, 4)).sum().backward()
    handle.remove()
    tool.stop()
    tool.step()
    assert seen == [True]
    assert model[0].weight.grad is not None
    assert_nothing_left([model])
    assert "Module.2.Linear.forward.0" in dump_of(tool).data
    assert dump_of(tool).coverage["failures"] == []
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_call_that_outlives_its_step_is_counted_and_in_no_dump(debugger: Factory, level: str) -> None:
    tool = debugger(task="statistics", level=level)

    class Stepping(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.exp(x)
            tool.step()
            return torch.sin(x)

    model = nn.Sequential(Stepping(), nn.Linear(4, 1))
    tool.start(model)
    model(torch.ones(2, 4))
    tool.stop()
    tool.step()
    after = dump_of(tool, 1)
    name = "Module.0.Stepping.forward.0"
    before = dump_of(tool, 0)
    assert name not in before.data
    assert name not in after.data
    if level != "L0":
        assert "Torch.exp.0.forward" in before.data
        assert "Torch.sin.0.forward" in after.data
    if level != "L1":
        assert before.coverage["not_recorded"]["module call was open at stop()"] == 1
        assert "Module.1.Linear.forward.0" in after.data


def test_module_calls_of_all_threads_that_are_open_at_stop_are_counted(debugger: Factory) -> None:
    inside, go_on = threading.Event(), threading.Event()

    class Waiting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside.set()
            go_on.wait(10)
            return x

    tool = debugger(**MIX)
    model = nn.Sequential(nn.Sequential(Waiting()))
    tool.start(model)
    thread = threading.Thread(target=model, args=(torch.ones(2, 4),))
    thread.start()
    assert inside.wait(10)
    tool.stop()
    go_on.set()
    thread.join()
    tool.step()
    assert dump_of(tool).coverage["not_recorded"]["module call was open at stop()"] == 2


class Streaming(nn.Module):
    """Its forward is a generator: the hooks see it end before it has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        for _ in range(2):
            x = self.part(x)
            yield x


def test_a_forward_that_is_a_generator_runs_and_its_inside_is_recorded(debugger: Factory) -> None:
    tool = debugger(**MIX)
    model = nn.Sequential(Streaming())
    with tool.capture(model):
        sum(part.sum() for part in model(torch.ones(2, 4))).backward()
    dump = dump_of(tool)
    assert dump.data["Module.0.Streaming.forward.0"]["output"] == [None]
    assert {f"Module.0.part.Linear.{way}.{n}" for way in ("forward", "backward") for n in range(2)} <= set(dump.data)
    assert dump.parents["Functional.linear.0.forward"] == "Module.0.part.Linear.forward.0"
    assert dump.parents["Module.0.part.Linear.forward.0"] is None
    assert "Module.0.part.Linear.parameters_grad.0" in dump.data


def test_a_forward_replaced_on_the_object_is_recorded_and_stays(debugger: Factory) -> None:
    model = small_model()
    original = model[0].forward

    def doubled(x: torch.Tensor) -> torch.Tensor:
        return original(x).mul_(2)

    model[0].forward = doubled
    x = torch.ones(2, 4)
    plain = model(x)
    tool = debugger(**MIX)
    with tool.capture(model):
        recorded = model(x)
        recorded.sum().backward()
        assert model[0].forward is doubled
    assert torch.equal(plain, recorded)
    data = dump_of(tool).data
    assert data["Module.0.Linear.forward.0"]["output"][0]["Max"] == pytest.approx(original(x).max().item() * 2)
    assert "Module.0.Linear.backward.0" in data
    assert vars(model[0])["forward"] is doubled


class Refusing(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise LookupError(key)

    def __iter__(self) -> Iterator[str]:
        raise LookupError("no keys")

    def __len__(self) -> int:
        return 1


class RefusingList(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise LookupError("no items")


def nested(x: Any, depth: int) -> Any:
    for _ in range(depth):
        x = [x]
    return x


ODD_ARGUMENTS = {
    "mapping that cannot be read": lambda x: Refusing(),
    "list that cannot be read": lambda x: RefusingList([x]),
    "3000 lists": lambda x: nested(x, 3000),
    "100000 lists in a dict": lambda x: {"key": nested(x, 100_000)},
}


class Passing(nn.Module):
    def forward(self, x: torch.Tensor, _odd: Any) -> torch.Tensor:
        return x * 2


class Holding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Passing()

    def forward(self, x: torch.Tensor, odd: Any) -> torch.Tensor:
        return self.inner(x, odd)


@pytest.mark.parametrize("kind", ODD_ARGUMENTS)
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_arguments_that_cannot_be_read_cost_no_call(debugger: Factory, kind: str, task: str) -> None:
    tool = debugger(task=task, level="mix")
    model = Holding()
    x = torch.ones(2, requires_grad=True)
    with tool.capture(model):
        model(x * 1, ODD_ARGUMENTS[kind](x)).sum().backward()
    dump = dump_of(tool)
    assert {"Module.inner.Passing.forward.0", "Module.inner.Passing.backward.0"} <= set(dump.data)
    assert dump.coverage["failures"] == []
    reasons = " ".join(dump.coverage["null_statistics"])
    assert ("LookupError while reading" if "cannot" in kind else "nested deeper than 64") in reasons
