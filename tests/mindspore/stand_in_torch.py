"""A stand-in for MSAdapter: a module called ``torch`` whose tensors, functions and modules are MindSpore's.

No release of MSAdapter runs with MindSpore 2.10, so this is what there is to test with.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint


class Module:
    """Like ``torch.nn.Module``."""

    def __init__(self) -> None:
        self._modules: dict[str, Module] = {}
        self._parameters: dict[str, Parameter] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Module):
            self._modules[name] = value
        elif isinstance(value, Parameter):
            self._parameters[name] = value
        object.__setattr__(self, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        yield prefix, self
        for name, module in self._modules.items():
            yield from module.named_modules(f"{prefix}.{name}" if prefix else name)

    def parameters(self) -> list[Parameter]:
        return [parameter for _, module in self.named_modules() for parameter in module._parameters.values()]


class Linear(Module):
    """Like ``torch.nn.Linear``."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        values = np.linspace(-1, 1, inputs * outputs).reshape(outputs, inputs).astype(np.float32)
        self.weight = Parameter(Tensor(values), name=f"weight{id(self)}")

    def forward(self, x: Tensor) -> Tensor:
        return sys.modules["torch"].nn.functional.linear(x, self.weight)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Like ``torch.nn.functional.linear``."""
    return sys.modules["torch"].matmul(x, weight.T)


def relu(x: Tensor) -> Tensor:
    """Like ``torch.nn.functional.relu``."""
    return mint.nn.functional.relu(x)


def matmul(first: Tensor, second: Tensor) -> Tensor:
    """Like ``torch.matmul``."""
    return mint.matmul(first, second)


def tensor(values: Any) -> Tensor:
    """Like ``torch.tensor``."""
    return Tensor(values, ms.float32)


def install() -> types.ModuleType:
    """Make ``import torch`` find it."""
    torch, nn, functional = (types.ModuleType(name) for name in ("torch", "torch.nn", "torch.nn.functional"))
    functional.linear, functional.relu = linear, relu
    nn.functional, nn.Module, nn.Linear = functional, Module, Linear
    torch.nn, torch.Tensor, torch.tensor, torch.matmul = nn, Tensor, tensor, matmul
    sys.modules.update({"torch": torch, "torch.nn": nn, "torch.nn.functional": functional})
    return torch
