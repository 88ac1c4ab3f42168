"""Runs in dynamic graphs with compiled and recomputed parts, MSAdapter, and what cannot be recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dynamic_models as models
import mindspore as ms
import numpy as np
from dynamic_scenarios import capture, content, debugger
from mindspore import Tensor, mint, nn, ops

bound_before_start = mint.add


# -- compiled parts


@ms.jit
def compiled(x: Tensor, y: Tensor) -> Tensor:
    return ops.relu(mint.add(x, y)) * 2


@ms.jit(capture_mode="bytecode")
def compiled_bytecode(x: Tensor, factor: int = 2) -> Tensor:
    return mint.add(x, x) * factor


class CompiledCell(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(3, 3, weight_init=Tensor(models.floats(3, 3)), bias_init="zeros")

    @ms.jit
    def construct(self, x: Tensor) -> Tensor:
        return mint.nn.functional.relu(self.dense(x))


class Mixed(nn.Cell):
    """Calls and compiled calls side by side; the compiled function calls a Cell that is also called by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.eager = nn.Dense(3, 3, weight_init=Tensor(models.floats(3, 3, seed=1)), bias_init="zeros")
        self.graph = CompiledCell()

    def construct(self, x: Tensor) -> Tensor:
        hidden = self.eager(x)
        hidden = compiled(hidden, self.graph(hidden))
        return ops.square(compiled_bytecode(hidden, factor=3)).sum()


def jit(folder: str) -> dict[str, Any]:
    ms.runtime.launch_blocking()
    model, x = Mixed(), Tensor(models.floats(2, 3))
    dense = model.eager

    @ms.jit
    def through_a_cell(value: Tensor) -> Tensor:
        return dense(value) + 1

    def run() -> list[str]:
        loss, (of_input, of_parameters) = ms.value_and_grad(model, 0, model.trainable_params())(x)
        return models.bits([loss, of_input, *of_parameters, through_a_cell(x)])

    untouched = run()
    current = debugger(folder, level="mix")
    with current.capture(model):
        recorded = run()
    return {
        "equal": [untouched == recorded, untouched == run()],
        "graph": content(folder, 0, "graph"),
        **content(folder, 0, "pynative"),
    }


# -- recompute


class Block(nn.Cell):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.dense = nn.Dense(3, 3, weight_init=Tensor(models.floats(3, 3, seed=seed)), bias_init="zeros")

    def construct(self, x: Tensor) -> Tensor:
        return ops.relu(self.dense(x)) + x


class Blocks(nn.Cell):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.second = Block(0), Block(1)
        self.kind = kind
        if kind == "cell":
            self.first.recompute()
            self.second.recompute()

    def construct(self, x: Tensor) -> Tensor:
        if self.kind == "saved tensors":
            x = ms.recompute(self.first, x, use_reentrant=False)
            return ms.recompute(self.second, x, use_reentrant=False).sum()
        return self.second(self.first(x)).sum()


def recompute(folder: str) -> dict[str, Any]:
    ms.runtime.launch_blocking()
    found = {}
    for kind in ("plain", "cell", "saved tensors"):
        place = Path(folder) / kind
        place.mkdir()
        step = capture(str(place), {"level": "mix"}, Blocks(kind), Tensor(models.floats(2, 3)))
        found[kind] = {"data": step["dump"]["data"], "repeated": step["coverage"]["recomputed_calls"]}
    return found


# -- MSAdapter


def msadapter(folder: str) -> dict[str, Any]:
    """A program for PyTorch, run by MindSpore."""
    ms.runtime.launch_blocking()
    import stand_in_torch

    torch = stand_in_torch.install()

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.nn.functional.relu(self.first(x))
            return (self.second(hidden) * 2).sum()

    model, x = Network(), Tensor(models.floats(2, 3))
    gradient = ms.value_and_grad(model.__call__, 0, model.parameters())

    def run() -> list[str]:
        loss, (of_input, of_parameters) = gradient(x)
        return models.bits([loss, of_input, *of_parameters])

    untouched = run()
    current = debugger(folder, level="mix")
    found: dict[str, Any] = {}
    try:
        current.start()
    except ValueError as error:
        found["no model"] = str(error)
    with current.capture(model):
        recorded = run()
    return {**found, "equal": untouched == recorded, **content(folder)}


# -- limitations


def limits(folder: str) -> dict[str, Any]:
    """What is not recorded, or in another way than one might expect; see docs/limitations.md."""
    ms.runtime.launch_blocking()
    weight = ms.Parameter(Tensor(np.ones(3, np.float32)), name="weight")
    model = nn.SequentialCell(nn.ReLU())

    @ms.jit(capture_mode="trace")
    def traced(value: Tensor) -> Tensor:
        return mint.sub(value, 1)

    def loss(x: Tensor) -> Tensor:
        same = weight.to(ms.float32)
        return (bound_before_start(x * same, x * weight)).sum()

    x = Tensor(np.ones(3, np.float32))
    current = debugger(folder, level="mix", statistics={"summary_mode": "md5"})
    with current.capture(model):
        ms.value_and_grad(loss, None, [weight])(x)
        ms.grad(model[0])(x)
        traced(x)
        mint.sub(x.astype(ms.bfloat16), 1)
    found = content(folder)
    found["bfloat16"] = x.astype(ms.bfloat16).asnumpy().tobytes().hex()
    return found
