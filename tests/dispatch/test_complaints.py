"""What users of such tools have met (docs/complaints.md), as far as no other test has it."""

from __future__ import annotations

import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from debugger_traces import dump_of
from torch import nn

Factory = Callable[..., Any]


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook:FutureWarning")
def test_a_module_with_a_deprecated_backward_hook_has_its_backward_record(debugger: Factory) -> None:
    called = []
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].register_backward_hook(lambda *_: called.append(1))
    tool = debugger(level="mix")
    with tool.capture(model):
        model(torch.ones(3, 4)).sum().backward()
    assert called == [1]
    data = dump_of(tool).data
    for layer in ("Module.0.Linear", "Module.1.Linear"):
        assert {f"{layer}.forward.0", f"{layer}.backward.0", f"{layer}.parameters_grad.0"} <= set(data)


def test_an_in_place_activation_and_the_layer_before_it_have_their_gradients(debugger: Factory) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    tool = debugger(level="mix")
    with tool.capture(model):
        model(torch.ones(3, 4, requires_grad=True)).sum().backward()
    data = dump_of(tool).data
    for name in ("Module.0.Linear.backward.0", "Module.1.ReLU.backward.0", "Functional.relu.0.backward"):
        assert data[name]["input"][0]["Norm"] is not None
        assert data[name]["output"][0]["Norm"] is not None


def test_a_linear_layer_without_bias_on_three_dimensions_has_its_weight_gradient(debugger: Factory) -> None:
    model = nn.Sequential(nn.Linear(4, 2, bias=False))
    tool = debugger(level="mix")
    with tool.capture(model):
        model(torch.ones(2, 3, 4)).sum().backward()
    data = dump_of(tool).data
    assert data["Module.0.Linear.parameters_grad.0"]["weight"][0]["Max"] == 6.0
    assert data["Functional.linear.0.backward"]["output"][1]["shape"] == [2, 4]


def test_every_step_has_the_same_names(debugger: Factory) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    tool = debugger(level="mix")
    for _ in range(3):
        with tool.capture(model):
            for _ in range(2):  # gradients are added up
                model(torch.ones(3, 4)).sum().backward()
    first, *others = (list(dump_of(tool, step).data) for step in range(3))
    assert "Module.2.Linear.parameters_grad.1" in first
    assert others == [first, first]


def test_ranks_that_do_not_exist_are_named(
    debugger: Factory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tool = debugger(level="L1", rank=[4, 5])
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    tool.start()
    torch.relu(torch.ones(2))
    tool.stop()
    tool.step()
    assert any("[4, 5] do not exist, there are 2 ranks" in message for message in caplog.messages)


Pair = namedtuple("Pair", "left right")


class Twin(nn.Module):
    def forward(self, value: torch.Tensor, *, scale: torch.Tensor) -> Pair:
        return Pair(value * scale, value + scale)


def test_a_result_keeps_its_class_and_its_fields(debugger: Factory) -> None:
    model = nn.Sequential(Twin())
    model.forward = lambda value: model[0](value, scale=value)  # type: ignore[method-assign]
    tool = debugger(level="mix")
    with tool.capture(model):
        result = model(torch.ones(2, requires_grad=True))
        (result.left + result.right).sum().backward()
    assert type(result) is Pair
    assert dump_of(tool).data["Module.0.Twin.forward.0"]["output"] is not None


@pytest.mark.parametrize(("mode", "has"), [(["input"], True), (["output"], False)])
def test_filters_reach_keyword_arguments(debugger: Factory, mode: list[str], has: bool) -> None:
    model = nn.Sequential(Twin())
    model.forward = lambda value: model[0](value, scale=value)  # type: ignore[method-assign]
    tool = debugger(level="mix", task="tensor", tensor={"data_mode": mode})
    with tool.capture(model):
        model(torch.ones(2))
    dump = dump_of(tool)
    assert ("input_kwargs" in dump.data["Module.0.Twin.forward.0"]) is has
    folder = Path(tool._session.config.dump_path)
    assert bool(list(folder.rglob("Module.0.Twin.forward.0.kwargs.scale.pt"))) is has
    assert bool(list(folder.rglob("Module.0.Twin.forward.0.output.*.pt"))) is not has


def test_training_and_generation_take_turns_with_one_debugger(debugger: Factory) -> None:
    """As in reinforcement learning: two models, each with steps of its own, in one process."""
    actor, critic = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 1), nn.ReLU())
    tool = debugger(level="mix")
    for _ in range(2):
        with tool.capture(actor), torch.no_grad():
            actor(torch.ones(1, 4))
        with tool.capture(critic):
            critic(torch.ones(1, 4)).sum().backward()
    generated = [set(dump_of(tool, step).data) for step in (0, 2)]
    trained = [set(dump_of(tool, step).data) for step in (1, 3)]
    assert generated[0] == generated[1]
    assert trained[0] == trained[1]
    assert not any("backward" in name for name in generated[0])
    assert "Module.0.Linear.parameters_grad.0" in trained[0]


ODD = """
import sys
class Odd:
    def __getattr__(self, name):
        raise RuntimeError(name)
sys.modules["odd"] = Odd()
sys.modules["none"] = None
import torch
from msprobe.pytorch import PrecisionDebugger
tool = PrecisionDebugger(dump_path=sys.argv[1], level="mix")
model = torch.nn.Sequential(torch.nn.Linear(2, 2))
with tool.capture(model):
    model(torch.ones(1, 2)).sum().backward()
print(*({"tensorflow", "tensorboard", "mindspore", "pandas"} & set(sys.modules)))
"""


def test_recording_imports_no_other_framework_and_minds_no_odd_module(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ODD, str(tmp_path / "dump")], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
    assert "msprobe" not in done.stderr
    assert list(tmp_path.glob("dump/step0/*/dump.json"))
