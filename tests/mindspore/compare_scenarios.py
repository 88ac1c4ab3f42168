"""Recorded runs of one small network, sound and with a fault, for comparisons. Each runs in a process of its own."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from dynamic_models import floats
from dynamic_scenarios import debugger
from mindspore import Tensor, nn, ops


class Mlp(nn.Cell):
    """Normalisation, two layers and an activation between them."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.norm = nn.LayerNorm((8,))
        self.up = nn.Dense(8, 16, weight_init=Tensor(floats(16, 8)), bias_init="zeros")
        self.down = nn.Dense(16, 4, weight_init=Tensor(floats(4, 16, seed=1)), bias_init="zeros")
        self.fault = fault
        if fault == "weight":
            self.down.weight[1, 2] += 0.5

    def construct(self, x: Tensor) -> Tensor:
        hidden = self.up(self.norm(x))
        hidden = ops.tanh(hidden) if self.fault == "operation" else ops.relu(hidden)
        if self.fault == "nan":
            hidden = ops.sqrt(hidden - 1)
        return self.down(hidden).sum()


def recorded(folder: str, fault: str, config: dict[str, Any]) -> str:
    """One recorded training step; the folder of the run."""
    ms.runtime.launch_blocking()
    model = Mlp(fault)
    current = debugger(folder, **config)
    with current.capture(model):
        ms.value_and_grad(model, 0, model.trainable_params())(Tensor(floats(3, 8, seed=2)))
    return f"{folder}/dump"
