"""Level debug: ``save()`` writes values and their gradients where the user asks for it, and changes nothing."""

from __future__ import annotations

import copy
import dataclasses
import gc
import json
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from debugger_traces import assert_nothing_left, dump_of
from neutral_run import bits
from torch import nn

from msprobe.pytorch import save

Debugger = Callable[..., Any]


def grown(value: float = 1.0) -> torch.Tensor:
    """A tensor of two elements that needs a gradient and is no leaf."""
    return torch.full((2,), value, requires_grad=True) * 2


def test_a_value_and_its_gradient_are_records_of_debug_json(debugger: Debugger) -> None:
    tool = debugger(level="debug")
    y = grown()
    tool.save(y, "hidden")
    (y * 3).sum().backward()
    tool.step()
    dump = dump_of(tool)
    assert dump.path.name == "debug.json"
    assert (dump.level, dump.data["hidden.0.debug"]["Max"]) == ("debug", 2.0)
    assert dump.data["hidden_grad.0.debug"]["Max"] == 3.0
    assert sorted(file.name for file in dump.path.parent.iterdir()) == ["coverage.json", "debug.json"]


def test_each_name_is_counted_and_restarts_with_the_step(debugger: Debugger) -> None:
    tool = debugger(level="debug")
    for names in (["a", "b", "a"], ["a"]):
        for name in names:
            save(torch.ones(1), name, save_backward=False)
        tool.step()
    assert list(dump_of(tool, 0).data) == ["a.0.debug", "b.0.debug", "a.1.debug"]
    assert list(dump_of(tool, 1).data) == ["a.0.debug"]


@dataclasses.dataclass
class Output:
    hidden: torch.Tensor
    length: int


def test_nested_values_keep_their_structure_and_gradients_stand_in_it(debugger: Debugger) -> None:
    tool = debugger(level="debug")
    x, y, unused = grown(1.0), grown(2.0), grown(3.0)
    tool.save({"pair": (x, [unused, 3]), "text": "s", "data": Output(y, 7), "none": None}, "out")
    (x * 5 + y * 7).sum().backward()
    tool.step()
    data = dump_of(tool).data
    value = data["out.0.debug"]
    assert (value["pair"][0]["Max"], value["pair"][1][1], value["none"]) == (2.0, {"type": "int", "value": 3}, None)
    gradient = data["out_grad.0.debug"]
    assert gradient["pair"][0]["Max"] == 5.0
    assert gradient["data"]["hidden"]["Max"] == 7.0
    assert gradient["pair"][1] == [None, None]
    assert (gradient["text"], gradient["data"]["length"], gradient["none"]) == (None, None, None)


def test_what_gets_no_gradient_is_null_and_a_second_pass_is_a_record_of_its_own(debugger: Debugger) -> None:
    tool = debugger(level="debug")
    y = grown()
    tool.save(torch.ones(1), "constant")
    tool.save([1, "s"], "plain")
    tool.save(y, "y")
    loss = (y * 3).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    tool.step()
    data = dump_of(tool).data
    assert (data["constant_grad.0.debug"], data["plain_grad.0.debug"]) == (None, [None, None])
    assert data["y_grad.0.debug"] == data["y_grad.0.debug#2"]


def test_task_tensor_stores_values_and_gradients(debugger: Debugger) -> None:
    tool = debugger(level="debug", task="tensor")
    x, y = grown(1.0), grown(2.0)
    tool.save({"a": [x], "b": y}, "out")
    tool.save(y, "y")
    (x * 5 + y * 7).sum().backward()
    tool.step()
    folder = dump_of(tool).tensor_folder
    assert folder is not None
    stored = {file.name: torch.load(file, weights_only=True).tolist() for file in folder.iterdir()}
    assert stored == {
        "out.0.debug.a.0.pt": [2.0, 2.0],
        "out.0.debug.b.pt": [4.0, 4.0],
        "out_grad.0.debug.a.0.pt": [5.0, 5.0],
        "out_grad.0.debug.b.pt": [7.0, 7.0],
        "y.0.debug.pt": [4.0, 4.0],
        "y_grad.0.debug.pt": [7.0, 7.0],
    }


@pytest.mark.parametrize("mode", ["md5", "xor", "hash"])
def test_checksums_are_written_for_saved_values(debugger: Debugger, mode: str) -> None:
    tool = debugger(level="debug", statistics={"summary_mode": mode})
    tool.save(torch.ones(3), "x")
    tool.step()
    entry = dump_of(tool).data["x.0.debug"]
    assert isinstance(entry["md5"], str)
    assert ("Max" in entry) == (mode == "md5")


def test_start_and_stop_around_it_make_no_difference_and_record_nothing_else(debugger: Debugger) -> None:
    tool = debugger(level="debug")
    model = nn.Sequential(nn.Linear(2, 2))
    with tool.capture(model):
        tool.save(model(torch.ones(1, 2)), "out", save_backward=False)
    assert list(dump_of(tool).data) == ["out.0.debug"]


def test_an_unwanted_step_is_left_out(debugger: Debugger, tmp_path: Path) -> None:
    tool = debugger(level="debug", step=[1])
    for _ in range(3):
        tool.save(torch.ones(1), "x")
        tool.step()
    assert [folder.name for folder in (tmp_path / "dump0").glob("step*")] == ["step1"]


def test_at_another_level_it_does_nothing_and_says_so_once(
    debugger: Debugger, caplog: pytest.LogCaptureFixture
) -> None:
    tool = debugger(level="L1")
    with tool.capture():
        tool.save(torch.ones(1), "x")
        tool.save(torch.ones(1), "x")
    assert dump_of(tool).data == {}
    assert [record.getMessage() for record in caplog.records if "save()" in record.getMessage()] == [
        'msprobe: save() writes values at level "debug" only; at level "L1" it does nothing'
    ]


@pytest.mark.parametrize(("value", "name", "says"), [(object(), "x", "cannot be saved"), (1, 5, "name must be")])
def test_what_cannot_be_saved_is_a_warning(
    debugger: Debugger, caplog: pytest.LogCaptureFixture, value: object, name: Any, says: str
) -> None:
    tool = debugger(level="debug")
    tool.save(value, name)
    tool.save(1, "x")
    tool.step()
    assert list(dump_of(tool).data) == ["x.0.debug", "x_grad.0.debug"]
    assert says in caplog.text


def test_saving_changes_no_bit_of_training_and_no_property_of_the_tensors(debugger: Debugger) -> None:
    def train(tool: Any) -> list[Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        seen: list[Any] = []
        for _ in range(3):
            hidden = model[0](torch.randn(5, 3))
            if tool:
                tool.save([hidden, dict(model.named_parameters())], "hidden")
            loss = model[2](model[1](hidden)).square().sum()
            loss.backward()
            state = [(p.detach().clone(), p.grad.clone(), p._version, p.grad._version) for p in model.parameters()]
            seen += [loss.detach(), hidden._version, state, torch.get_rng_state()]
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            if tool:
                tool.step()
        if tool:
            assert_nothing_left([model])
        return seen

    plain, saved = train(None), train(debugger(level="debug", task="tensor"))
    assert bits(plain) == bits(saved)


def test_a_saved_graph_dies_with_its_last_reference_and_its_leaves_can_be_copied(debugger: Debugger) -> None:
    tool = debugger(level="debug")
    parameter = nn.Parameter(torch.ones(2))
    y = parameter * 2
    tool.save({"y": y, "p": parameter}, "x")
    copied, pickled = copy.deepcopy(parameter), pickle.loads(pickle.dumps(parameter))
    assert torch.equal(copied, pickled)
    alive = weakref.ref(y)
    gc.disable()
    try:
        del y
        assert alive() is None
    finally:
        gc.enable()
    tool.step()
    assert dump_of(tool).data["x_grad.0.debug"] == {"y": None, "p": None}


def test_gradients_of_an_earlier_step_are_not_mixed_into_a_later_one(debugger: Debugger) -> None:
    tool = debugger(level="debug")
    y = grown()
    tool.save(y, "y")
    tool.step()
    tool.save(1, "other", save_backward=False)
    y.sum().backward()
    tool.step()
    assert list(dump_of(tool, 1).data) == ["other.0.debug"]


def test_a_script_that_never_calls_step_still_leaves_a_complete_file(tmp_path: Path) -> None:
    script = (
        "import sys, torch\nfrom msprobe.pytorch import PrecisionDebugger\n"
        "PrecisionDebugger(dump_path=sys.argv[1], level='debug')\n"
        "x = torch.ones(2, requires_grad=True)\nPrecisionDebugger.save(x, 'x')\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "dump")], check=True, timeout=60)
    (file,) = (tmp_path / "dump").rglob("debug.json")
    assert list(json.loads(file.read_text(encoding="utf-8"))["data"]) == ["x.0.debug", "x_grad.0.debug"]
