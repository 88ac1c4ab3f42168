"""Level L2 on an NPU: the runtime's kernel dump is on exactly while the one API of ``list`` runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from debugger_traces import assert_nothing_left, dump_of
from torch.utils._python_dispatch import TorchDispatchMode

from msprobe.core.errors import ConfigError

if TYPE_CHECKING:
    from conftest import FakeCann

pytestmark = pytest.mark.usefixtures("emulation")
MakeDebugger = Callable[..., Any]


class Dumped(TorchDispatchMode):
    """Notes the operators that run while the fake runtime would dump them."""

    def __init__(self, cann: FakeCann) -> None:
        super().__init__()
        self._cann = cann
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._cann.runtime.fake_cann_dump_active():
            self.names.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


def train() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    x = torch.randn(3, 4).to("npu:0").requires_grad_()
    w = torch.randn(4, 5).to("npu:0").requires_grad_()
    (torch.relu(x @ w) + torch.mm(x, w)).sum().backward()
    assert x.grad is not None
    return x.grad.cpu(), w.grad.cpu()  # type: ignore[union-attr]


def dumped(make: MakeDebugger, cann: FakeCann, name: str, **config: Any) -> tuple[Dumped, list[str], Any]:
    """Kernels that were dumped in a step, the calls of the switch, and the debugger."""
    task = config.pop("task", "tensor")
    tool = make(level="L2", task=task, **{task: {"list": [name], **config}})
    plain, before = train(), len(cann.dump_events())
    seen = Dumped(cann)
    with tool.capture(), seen:
        results = train()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(results, plain, strict=True))
    assert_nothing_left([])
    return seen, cann.dump_events()[before:], tool


def test_the_dump_is_on_while_the_named_api_runs(debugger: MakeDebugger, fake_cann: FakeCann) -> None:
    seen, events, tool = dumped(debugger, fake_cann, "Torch.mm.0.forward")
    assert seen.names == ["mm"]
    record = dump_of(tool).data["Torch.mm.0.forward"]["kernel_dump"]
    file = Path(record["dump_path"]) / record["config"]
    assert events == ["init", f"set {file}", "finalize"]
    assert json.loads(file.read_text(encoding="utf-8")) == {
        "dump": {"dump_list": [], "dump_path": record["dump_path"], "dump_mode": "all", "dump_op_switch": "on"}
    }
    assert "test_npu_kernel_dump" in dump_of(tool).stacks["Torch.mm.0.forward"][0]


def test_a_backward_name_dumps_the_kernels_of_its_nodes(debugger: MakeDebugger, fake_cann: FakeCann) -> None:
    seen, events, tool = dumped(debugger, fake_cann, "Torch.mm.0.backward")
    assert [name for name in seen.names if name not in ("t", "detach")] == ["mm", "mm"]
    assert [event.split()[0] for event in events] == ["init", "set", "finalize"]
    assert list(dump_of(tool).data) == ["Torch.mm.0.backward"]


@pytest.mark.parametrize(
    ("config", "key", "value"),
    [
        ({"data_mode": ["input"]}, "dump_mode", "input"),
        ({"data_mode": ["output"]}, "dump_mode", "output"),
        ({"task": "statistics"}, "dump_data", "stats"),
    ],
)
def test_task_and_data_mode_reach_the_file_of_the_runtime(
    debugger: MakeDebugger, fake_cann: FakeCann, config: dict[str, Any], key: str, value: str
) -> None:
    _, events, _ = dumped(debugger, fake_cann, "Torch.mm.0.forward", **config)
    file = Path(events[1].removeprefix("set "))
    assert json.loads(file.read_text(encoding="utf-8"))["dump"][key] == value


def test_an_api_that_never_runs_leaves_the_dump_off_and_is_reported(
    debugger: MakeDebugger, fake_cann: FakeCann
) -> None:
    seen, events, tool = dumped(debugger, fake_cann, "Torch.mm.7.forward")
    assert (seen.names, events, dump_of(tool).data) == ([], [], {})
    coverage = dump_of(tool).coverage
    assert coverage is not None
    assert coverage["not_recorded"]["filtered by scope or list"] > 0


def test_an_api_that_raises_switches_the_dump_off(debugger: MakeDebugger, fake_cann: FakeCann) -> None:
    tool = debugger(level="L2", task="tensor", tensor={"list": ["Torch.mm.0.forward"]})
    before = len(fake_cann.dump_events())
    with tool.capture(), pytest.raises(RuntimeError):
        torch.mm(torch.ones(2, 3).to("npu:0"), torch.ones(2, 3).to("npu:0"))
    assert [event.split()[0] for event in fake_cann.dump_events()[before:]] == ["init", "set", "finalize"]


@pytest.mark.parametrize(
    "names", [["mm"], ["Torch.mm.0.forward", "Torch.add.0.forward"], ["Module.a.Linear.forward.0"]]
)
def test_anything_but_one_full_api_name_is_refused(debugger: MakeDebugger, names: list[str]) -> None:
    with pytest.raises(ConfigError, match="on an NPU: exactly one full API name"):
        debugger(level="L2", task="tensor", tensor={"list": names})
