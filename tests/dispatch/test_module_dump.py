"""``module_dump``: one module and nothing else, in every thread and at every level."""

from __future__ import annotations

import threading

import pytest
import torch
from debugger_traces import dump_of
from lifecycle_models import Factory
from torch import nn

from msprobe.pytorch import module_dump, module_dump_end


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.second(torch.exp(self.first(x))))


def test_between_its_begin_and_its_end_only_the_module_is_recorded(debugger: Factory) -> None:
    tool = debugger(level="L1", task="statistics")
    model = Outer()
    tool.start()
    torch.cos(torch.ones(2))
    module_dump(model.second, "chosen")
    model(torch.ones(2, 4)).sum().backward()
    thread = threading.Thread(target=model, args=(torch.ones(2, 4),))
    thread.start()
    thread.join()
    torch.exp(torch.ones(2))
    module_dump_end()
    model(torch.ones(2, 4))
    tool.stop()
    tool.step()
    names = list(dump_of(tool).data)
    during = [name for name in names if name.startswith("Module.chosen.Sequential.")]
    assert during == [f"Module.chosen.Sequential.{end}" for end in ("forward.0", "backward.0", "forward.1")]
    assert names[0] == "Torch.cos.0.forward"
    assert names[4:] == [
        f"{name}.forward"
        for name in ("Functional.linear.0", "Torch.exp.0", "Functional.linear.1", "Torch.tanh.0", "Torch.sin.0")
    ]


def test_a_thread_that_is_inside_a_module_is_silent_too(debugger: Factory) -> None:
    inside, go_on = threading.Event(), threading.Event()

    class Waiting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.cos(x)
            inside.set()
            go_on.wait(10)
            return torch.exp(x)

    tool = debugger(level="L1", task="statistics")
    chosen = nn.Linear(2, 2)
    tool.start()
    thread = threading.Thread(target=Waiting(), args=(torch.ones(2),))
    thread.start()
    assert inside.wait(10)
    module_dump(chosen, "chosen")
    go_on.set()
    thread.join()
    tool.stop()
    tool.step()
    assert list(dump_of(tool).data) == ["Torch.cos.0.forward"]


@pytest.mark.parametrize("part", ["whole", "inner"])
def test_a_fused_inference_module_runs_as_without_the_tool(debugger: Factory, part: str) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        plain = layer(x)
        tool = debugger(level="L1", task="statistics")
        tool.start()
        module_dump(layer if part == "whole" else layer.linear1, "chosen")
        recorded = layer(x)
        module_dump_end()
        tool.stop()
        tool.step()
    assert torch.equal(plain, recorded)
    if part == "whole":
        assert list(dump_of(tool).data) == ["Module.chosen.TransformerEncoderLayer.forward.0"]
