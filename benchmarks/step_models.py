"""What is measured: training steps of small models, and chains of calls that do next to nothing.

Each is built by name, from the same seed in every process, so that all tools run the same arithmetic. Nothing here
imports msprobe: the same file runs under the interpreters of other tools.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from gpt import Shape, TrainingStep
from torch import nn

#: Calls of one step of the chains; what a step costs more, divided by this, is what a call costs.
CHAIN = 200


@dataclass(slots=True)
class Workload:
    """A model (None where there is none), its training step, and its forward pass alone."""

    model: nn.Module | None
    step: Callable[[], object]
    inputs: tuple[Any, ...] = ()

    def forward(self) -> object:
        return None if self.model is None else self.model(*self.inputs)


def gpt(shape: Shape) -> Workload:
    training = TrainingStep(shape)
    return Workload(training.model, training, (training.ids,))


def llama() -> Workload:
    """Hidden size 256, 4 layers, grouped queries, batch 4 x 128 tokens, from transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=1000,
            hidden_size=256,
            intermediate_size=688,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            use_cache=False,
        )
    )
    ids = torch.randint(0, 1000, (4, 128))
    return training(model, (ids,), lambda: model(input_ids=ids, labels=ids).loss)


def conv() -> Workload:
    """Four residual blocks of two 3 x 3 convolutions with batch normalisation, 64 channels, 16 x 3 x 32 x 32 pixels."""

    class Residual(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            self.norm1 = nn.BatchNorm2d(channels)
            self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            self.norm2 = nn.BatchNorm2d(channels)
            self.act = nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.act(self.norm1(self.first(x)))
            return self.act(x + self.norm2(self.second(y)))

    torch.manual_seed(0)
    blocks = [Residual(64) for _ in range(4)]
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model.append(nn.Linear(64, 10))
    images, labels = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
    return training(model, (images,), lambda: F.cross_entropy(model(images), labels))


def training(model: nn.Module, inputs: tuple[Any, ...], loss_of: Callable[[], torch.Tensor]) -> Workload:
    """One AdamW step on fixed data."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> float:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return float(loss)

    return Workload(model, step, inputs)


def chain(*, gradient: bool, calls: int = CHAIN) -> Workload:
    """Calls of torch.add on 64 elements, forward only or with their backward."""
    x, y = torch.ones(64, requires_grad=gradient), torch.ones(64)

    def step() -> None:
        value = x
        for _ in range(calls):
            value = torch.add(value, y)
        if gradient:
            value.sum().backward()

    return Workload(None, step)


def optimizer_chain(calls: int = CHAIN) -> Workload:
    """A step of RMSprop, which makes six calls per parameter of 64 elements."""
    parameters = [nn.Parameter(torch.ones(64)) for _ in range(calls // 6)]
    for parameter in parameters:
        parameter.grad = torch.ones(64)
    optimizer = torch.optim.RMSprop(parameters, foreach=False)
    return Workload(None, optimizer.step)


def module_chain(calls: int = CHAIN) -> Workload:
    """A Sequential of identities: what a module's record costs."""
    model = nn.Sequential(*(nn.Identity() for _ in range(calls)))
    x = torch.ones(64)
    return Workload(model, lambda: model(x), (x,))


MODELS: dict[str, Callable[[], Workload]] = {
    "gpt-256": lambda: gpt(Shape()),
    "gpt-768": lambda: gpt(Shape(width=768, heads=12)),
    "llama": llama,
    "conv": conv,
    "tiny": lambda: gpt(Shape(layers=1, width=32, heads=2, vocabulary=50, batch=1, tokens=16)),
    "add": lambda: chain(gradient=False),
    "add-backward": lambda: chain(gradient=True),
    "identity": module_chain,
    "optimizer": optimizer_chain,
}


def build(name: str, backend: str = "") -> Workload:
    """The workload of this name; with a backend, its model runs under ``torch.compile(backend=...)``."""
    if name not in MODELS:
        raise ValueError(f"no model {name!r}: choose from {', '.join(MODELS)}")
    workload = MODELS[name]()
    if backend and workload.model is not None:
        workload.model.compile(backend=backend)
    return workload
