"""Level L2: torch computes some gradients differently under any dispatch mode; they are those of the run without it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from debugger_traces import dump_of
from torch.utils._python_dispatch import TorchDispatchMode

Debugger = Callable[..., Any]
KERNELS = {"level": "L2", "risk_level": "ALL", "statistics": {"list": ["Aten."]}}


class Watching(TorchDispatchMode):
    """A mode that does nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def numbers(*shape: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


FUNCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "ProdBackward0": lambda x, _: x[:2, :2].prod(),
    "ProdBackward1": lambda x, _: x.prod(0),
    "CumprodBackward0": lambda x, _: x.cumprod(1),
    "MaskedFillBackward1": lambda x, value: x.masked_fill(x > 0, value),
    "BinaryCrossEntropyWithLogitsBackward0": lambda x, _: F.binary_cross_entropy_with_logits(
        x, numbers(64, 64, seed=5).sigmoid(), reduction="none"
    ),
}


def gradients(function: Callable[..., torch.Tensor]) -> list[torch.Tensor | None]:
    x, value = numbers(64, 64).requires_grad_(), torch.tensor(0.3, requires_grad=True)
    result = function(x, value)
    (result * numbers(*result.shape, seed=7)).sum().backward()
    return [x.grad, value.grad]


def same(one: list[torch.Tensor | None], other: list[torch.Tensor | None]) -> bool:
    return [None if t is None else t.numpy().tobytes() for t in one] == [
        None if t is None else t.numpy().tobytes() for t in other
    ]


@pytest.mark.parametrize("node", FUNCTIONS)
def test_a_gradient_with_a_second_formula_is_that_of_the_run_without_the_tool(debugger: Debugger, node: str) -> None:
    plain = gradients(FUNCTIONS[node])
    tool = debugger(**KERNELS)
    with tool.capture():
        seen = gradients(FUNCTIONS[node])
        torch.exp(torch.ones(2, requires_grad=True)).sum().backward()
    assert same(plain, seen)
    dump = dump_of(tool)
    assert dump.coverage is not None
    assert dump.coverage["not_recorded"] == {f"kernels of {node}, which computes differently while watched": 1}
    assert dump.coverage["notes"] == {}
    assert "Aten.sum.default.0.forward" in dump.data
    later = [name for name, parent in dump.parents.items() if parent == "Torch.exp.0.backward"]
    assert later  # what runs after the node is seen again


def test_without_looking_away_such_a_gradient_would_differ() -> None:
    function = FUNCTIONS["ProdBackward1"]
    plain = gradients(function)
    with Watching():
        assert not same(plain, gradients(function))


def test_where_the_tool_cannot_look_away_it_says_so(debugger: Debugger) -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                inner = gradient.detach().requires_grad_()
                return torch.autograd.grad(torch._C._VariableFunctions.prod(inner, 0).sum(), inner)[0]

    tool = debugger(**KERNELS)
    with tool.capture(), torch._C.DisableTorchFunction():
        Product.apply(torch.ones(3, 3, requires_grad=True)).sum().backward()
    coverage = dump_of(tool).coverage
    assert coverage is not None
    assert "Aten.prod.dim_int" in coverage["notes"]["perturbed"]


def test_no_gradient_of_any_operator_of_torch_differs_while_kernels_are_recorded(tmp_path: Path) -> None:
    """In a process of its own: importing torch's table of operators changes settings for good."""
    script = Path(__file__).with_name("operator_scan.py")
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["differ"] == []
    assert found["compared"] > 700
