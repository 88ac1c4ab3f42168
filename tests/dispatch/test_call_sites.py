"""How a call is written decides its name and its arguments: operators, numbers on the left, short functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from debugger_traces import dump_of
from torch import Tensor, nn

Written = Callable[["Block", Tensor], Any]


class Block(nn.Module):
    """Numbers and tensors as attributes, as models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 0.5
        self.weight = nn.Parameter(torch.ones(3))
        self.project = nn.Linear(3, 3)

    def forward(self, written: Written, x: Tensor) -> Any:
        return written(self, x)


def names_of(debugger: Any, written: Written) -> list[str]:
    """Names of the calls that ``written`` makes, without linear layers and what only prepares an operand."""
    tool = debugger(level="L1", risk_level="FOCUS")
    block = Block()
    with tool.capture():
        block(written, torch.ones(3, 3))
    names = [name.split(".")[1] for name in dump_of(tool).data if name.endswith("forward")]
    return [name for name in names if name not in ("linear", "exp")]


@pytest.mark.parametrize(
    "written",
    [
        lambda self, x: 2 * x,
        lambda self, x: self.scale * x,
        lambda self, x: self.scale * self.weight,
        lambda self, x: self.scale * self.project(x),
        lambda self, x: math.sqrt(2.0) * x.exp(),
        lambda self, x: math.sqrt(x.size(-1)) * x.exp(),
        lambda self, x: x.shape[0] * x,
        lambda self, x: len(x) * x.exp(),
        lambda self, x: (self.scale / 2) * torch.exp(x),
        lambda self, x: -self.scale * x[0],
        lambda self, x: self.scale * x.T,
    ],
)
def test_a_number_on_the_left_makes_the_reflected_operator(debugger: Any, written: Written) -> None:
    assert names_of(debugger, written) == ["__rmul__"]


@pytest.mark.parametrize(
    "written",
    [
        lambda self, x: x * 2,
        lambda self, x: x * self.scale,
        lambda self, x: self.weight * self.scale,
        lambda self, x: self.project(x) * self.scale,
        lambda self, x: x.exp() * math.sqrt(2.0),
        lambda self, x: x.exp() * x.shape[0],
        lambda self, x: torch.exp(x) * (self.scale / 2),
        lambda self, x: x[0] * -self.scale,
        lambda self, x: x * self.weight,
    ],
)
def test_a_tensor_on_the_left_makes_the_plain_operator(debugger: Any, written: Written) -> None:
    assert names_of(debugger, written) == ["__mul__"]


def test_a_sum_that_starts_at_a_number_is_reflected_once(debugger: Any) -> None:
    def written(self: Block, x: Tensor) -> Tensor:
        total: Any = 0
        for _ in range(3):
            total = total + x
        return total

    assert names_of(debugger, written) == ["__radd__", "__add__", "__add__"]


def test_an_augmented_assignment_onto_a_number_is_reflected(debugger: Any) -> None:
    def written(self: Block, x: Tensor) -> Tensor:
        total: Any = 0
        total += x
        total += x
        return total

    assert names_of(debugger, written) == ["__radd__", "__iadd__"]


def test_deciding_about_an_operator_runs_no_code_of_the_user(debugger: Any) -> None:
    class Touchy:
        asked = 0

        @property
        def scale(self) -> float:
            type(self).asked += 1
            return 2.0

    touchy = Touchy()
    names_of(debugger, lambda self, x: touchy.scale * x.exp())
    assert Touchy.asked == 1


def test_abs_of_python_and_the_method_are_told_apart(debugger: Any) -> None:
    assert names_of(debugger, lambda self, x: (abs(x), x.abs(), torch.abs(x))) == ["__abs__", "abs", "abs"]


def test_short_functions_of_functional_keep_their_prefix_and_caller(debugger: Any) -> None:
    tool = debugger(level="L1")
    x = torch.ones(2)
    with tool.capture():
        F.tanh(x)
        x.tanh()
        F.sigmoid(x)
    dump = dump_of(tool)
    assert list(dump.data) == ["Functional.tanh.0.forward", "Tensor.tanh.0.forward", "Functional.sigmoid.0.forward"]
    assert "test_call_sites" in dump.stacks["Functional.tanh.0.forward"][0]


def test_named_results_of_torch_are_several_outputs(debugger: Any) -> None:
    tool = debugger(level="L1")
    with tool.capture():
        torch.topk(torch.tensor([1.0, 3.0, 2.0], requires_grad=True), 2).values.sum().backward()
    data = dump_of(tool).data
    assert [entry["Max"] for entry in data["Torch.topk.0.forward"]["output"]] == [3.0, 2]
    assert data["Torch.topk.0.backward"]["input"][1] is None


def test_second_names_of_a_builtin_do_not_hide_the_first(debugger: Any) -> None:
    tool = debugger(level="L1")
    with tool.capture():
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))
    assert list(dump_of(tool).data) == ["Torch.mm.0.forward"]


def test_stacks_have_no_frame_that_is_there_because_of_the_capture(debugger: Any) -> None:
    tool = debugger(level="L1")
    x = torch.ones(2, requires_grad=True)
    with tool.capture():
        F.gelu(2 / x).sum().backward()
    for frames in dump_of(tool).stacks.values():
        assert not [frame for frame in frames if "handle_torch_function" in frame or "msprobe/dispatch" in frame]


def test_a_line_that_has_run_often_names_its_calls_as_at_first(debugger: Any) -> None:
    tool = debugger(level="L1", risk_level="ALL")
    x = torch.ones(2)
    with tool.capture():
        for _ in range(40):  # the interpreter replaces instructions of lines that run often
            x = abs(x)
            x = torch.neg(x)
    assert list(dump_of(tool).data) == [
        f"{base}.{index}.forward" for index in range(40) for base in ("Tensor.__abs__", "Torch.neg")
    ]
