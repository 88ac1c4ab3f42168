"""A capture that is stopped by another thread, or inside a call, leaves no function mode behind."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from debugger_traces import dump_of, leftovers
from lifecycle_models import MIX, Factory, small_model
from torch import nn


def in_thread(work: Callable[[], Any]) -> Any:
    """Run ``work`` in another thread; its result."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def refused() -> None:
    with pytest.raises(RuntimeError):
        torch.mm(torch.ones(2), torch.ones(2))


CALLS: dict[str, Callable[[], Any]] = {
    "builtin": lambda: torch.exp(torch.ones(2)),
    "operator": lambda: 1 + torch.nn.Parameter(torch.ones(2)),
    "python function": lambda: torch.nn.functional.gelu(torch.ones(2)),
    "error": refused,
    "backward": lambda: (torch.ones(2, requires_grad=True) * 2).sum().backward(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_stop_in_another_thread_takes_effect_at_the_next_call(debugger: Factory, call: str) -> None:
    tool = debugger(**MIX)
    model = small_model()
    tool.start(model)
    model(torch.ones(2, 4))
    in_thread(tool.stop)
    CALLS[call]()
    assert leftovers([model]) == []
    assert sys.getprofile() is None
    tool.step()
    assert not [name for name in dump_of(tool).data if "exp" in name or "gelu" in name or "backward" in name]


def test_a_stop_in_another_thread_leaves_the_modes_of_the_user(debugger: Factory) -> None:
    tool = debugger(**MIX)
    tool.start(small_model())
    with torch.device("meta"), torch.overrides.BaseTorchFunctionMode() as inner:
        in_thread(tool.stop)
        assert torch.ones(2).device.type == "meta"
        torch.exp(torch.ones(2))
        assert torch.overrides._get_current_function_mode_stack()[-1] is inner
        assert leftovers([]) == []
    assert torch.overrides._get_current_function_mode_stack() == []


def test_a_profiler_of_the_user_is_not_replaced(debugger: Factory) -> None:
    tool = debugger(**MIX)
    tool.start(small_model())
    in_thread(tool.stop)
    seen = []

    def profile(_frame: Any, event: str, _argument: Any) -> None:
        seen.append(event)

    sys.setprofile(profile)
    try:
        torch.exp(torch.ones(2))
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert seen
    torch.exp(torch.ones(2))
    assert leftovers([]) == []


class Waiting(nn.Module):
    """Waits in the middle of its forward for another thread."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.go_on = threading.Event(), threading.Event()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inside.set()
        self.go_on.wait(10)
        return torch.exp(x)


@pytest.mark.parametrize("extra_info", [True, False])
@pytest.mark.parametrize("again", [True, False], ids=["started again", "stopped"])
def test_a_stop_while_another_thread_is_inside_a_module(debugger: Factory, again: bool, extra_info: bool) -> None:
    tool = debugger(**MIX, extra_info=extra_info)
    model = nn.Sequential(Waiting(), nn.Linear(4, 4))
    left: list[str] = []

    def work() -> None:
        model(torch.ones(2, 4))
        torch.sin(torch.ones(2))
        model[1](torch.ones(2, 4))
        left.extend(leftovers([]))

    tool.start(model)
    thread = threading.Thread(target=work)
    thread.start()
    assert model[0].inside.wait(10)
    tool.stop()
    if again:
        tool.start(model)
    model[0].go_on.set()
    thread.join()
    tool.stop()
    tool.step()
    data = dump_of(tool).data
    assert ("Module.1.Linear.forward.1" in data) == again
    if not again:
        assert left == []
    if again and extra_info:
        assert dump_of(tool).parents["Functional.linear.1.forward"] == "Module.1.Linear.forward.1"


def test_another_thread_may_start_where_one_has_stopped_elsewhere(debugger: Factory) -> None:
    tool = debugger(task="statistics", level="L1")
    tool.start()
    in_thread(tool.stop)
    tool.start()  # the mode of the first start is still on this thread's stack
    torch.exp(torch.ones(2))
    tool.stop()
    assert leftovers([]) == []
    tool.step()
    assert list(dump_of(tool).data) == ["Torch.exp.0.forward"]


def test_a_server_thread_starts_and_another_one_stops(debugger: Factory) -> None:
    tool = debugger(**MIX)
    model = small_model()
    go_on = threading.Event()
    stopped = threading.Event()
    left: list[str] = []

    def serve() -> None:
        tool.start(model)
        model(torch.ones(2, 4))
        go_on.set()
        stopped.wait(10)
        fused = nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
        with torch.no_grad():
            fused(torch.ones(1, 2, 8))
        left.extend(leftovers([model]))

    thread = threading.Thread(target=serve)
    thread.start()
    assert go_on.wait(10)
    tool.stop()
    stopped.set()
    thread.join()
    tool.step()
    assert left == []
    assert "Module.2.Linear.forward.0" in dump_of(tool).data
