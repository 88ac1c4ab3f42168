"""Models in dynamic graphs, trained with and without the tool, and by tools/mindspore_peer.py with the peer's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Convolutions(nn.Cell):
    """A small image classifier of ``mindspore.nn``, with operators, ``ops`` and ``mint`` around it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, has_bias=True, weight_init=Tensor(floats(4, 1, 3, 3)), bias_init="zeros")
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2, 2)
        self.flatten = nn.Flatten()
        self.head = nn.Dense(36, 5, weight_init=Tensor(floats(5, 36, seed=1)), bias_init="zeros")
        self.act = ops.Sigmoid()

    def construct(self, images: Tensor) -> Tensor:
        hidden = self.pool(self.relu(self.norm(self.conv(images))))
        hidden = self.act(self.head(self.flatten(hidden)))
        mixed = mint.add(hidden, hidden * 2) - 1
        mixed = ops.relu(mixed) + 1 - mixed / 3
        weights = mint.nn.functional.softmax(mixed, dim=-1)
        return (weights @ mint.transpose(weights, 0, 1)).sum()


class Attention(nn.Cell):
    """Self-attention written out in ``mint`` and Tensor methods."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.joint = nn.Dense(
            width, 3 * width, weight_init=Tensor(floats(3 * width, width, seed=2) * 0.3), bias_init="zeros"
        )
        self.out = nn.Dense(width, width, weight_init=Tensor(floats(width, width, seed=3) * 0.3), bias_init="zeros")

    def construct(self, hidden: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        query, key, value = ops.split(self.joint(hidden), width, axis=-1)
        shape = (batch, length, self.heads, width // self.heads)
        query, key, value = (part.reshape(shape).transpose((0, 2, 1, 3)) for part in (query, key, value))
        scores = mint.matmul(query, key.transpose((0, 1, 3, 2))) / (width // self.heads) ** 0.5
        weights = mint.nn.functional.softmax(scores.masked_fill(mask, -1e9), dim=-1)
        mixed = mint.matmul(weights, value).transpose((0, 2, 1, 3)).reshape((batch, length, width))
        return self.out(mixed)


class Transformer(nn.Cell):
    """One block with embedding and head; the mask is a keyword argument, the hidden state is used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8, embedding_table=Tensor(floats(11, 8, seed=4)))
        self.first = nn.LayerNorm((8,))
        self.attention = Attention(8, 2)
        self.second = nn.LayerNorm((8,))
        self.wide = nn.Dense(8, 16, weight_init=Tensor(floats(16, 8, seed=5)), bias_init="zeros", activation="relu")
        self.narrow = nn.Dense(16, 8, weight_init=Tensor(floats(8, 16, seed=6)), bias_init="zeros")
        self.scale = Parameter(Tensor(np.float32(1.5)), name="scale")

    def construct(self, tokens: Tensor, mask: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        hidden = hidden + self.attention(self.first(hidden), mask=mask)
        hidden = hidden + self.narrow(self.wide(self.second(hidden))) + hidden * self.scale
        logits = ops.matmul(hidden, self.embedding.embedding_table.T)
        return ops.cross_entropy(logits.reshape((-1, 11)), tokens.reshape((-1,)))


def convolutions() -> tuple[nn.Cell, tuple[Any, ...]]:
    return Convolutions(), (Tensor(floats(3, 1, 6, 6, seed=7)),)


def transformer() -> tuple[nn.Cell, tuple[Any, ...]]:
    tokens = Tensor(np.arange(10).reshape(2, 5) % 11, ms.int32)
    mask = Tensor(np.triu(np.ones((5, 5), bool), 1))
    return Transformer(), (tokens, mask)


class Mlp(nn.Cell):
    """Two layers, one of them called twice, for a training step whose optimiser is Python."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Dense(4, 4, weight_init=Tensor(floats(4, 4, seed=8)), bias_init="zeros")
        self.head = nn.Dense(4, 1, weight_init=Tensor(floats(1, 4, seed=9)), bias_init="zeros")

    def construct(self, x: Tensor) -> Tensor:
        hidden = ops.tanh(self.wide(x))
        return ops.square(self.head(self.wide(hidden) + hidden)).mean()


def optimiser() -> tuple[nn.Cell, tuple[Any, ...]]:
    return Mlp(), (Tensor(floats(6, 4, seed=10)),)


MODELS: dict[str, Callable[[], tuple[nn.Cell, tuple[Any, ...]]]] = {
    "convolutions": convolutions,
    "transformer": transformer,
    "optimiser": optimiser,
}


def compiled_update(model: nn.Cell) -> Callable[[Any], object]:
    """An optimizer that is compiled, as most of MindSpore's are."""
    update: Callable[[Any], object] = nn.Momentum(model.trainable_params(), learning_rate=0.05, momentum=0.9)
    return update


def eager_update(model: nn.Cell) -> Callable[[Any], object]:
    """Clipped gradients, and two optimizers whose calls Python makes; they write in place."""
    parameters = model.trainable_params()
    first, second = mint.optim.SGD(parameters[:2], lr=0.05, momentum=0.9), mint.optim.Adam(parameters[2:], lr=0.05)

    def update(gradients: Any) -> None:
        clipped = ops.clip_by_global_norm(gradients, 1.0)
        first(clipped[:2])
        second(clipped[2:])

    return update


def bits(values: Any) -> list[str]:
    return [value.asnumpy().tobytes().hex() for value in values]


def train(name: str, debugger: Any, steps: int = 2) -> dict[str, list[str]]:
    """Train a model; losses, gradients and parameters, bit by bit.

    ``debugger`` is a PrecisionDebugger of any tool, or None.
    """
    ms.set_context(mode=ms.PYNATIVE_MODE)
    model, inputs = MODELS[name]()
    model.set_train()
    update = (eager_update if name == "optimiser" else compiled_update)(model)
    gradient = ms.value_and_grad(model, None, model.trainable_params())
    losses, gradients = [], []
    for _ in range(steps):
        if debugger is not None:
            debugger.start(model)
        loss, found = gradient(*inputs)
        update(found)
        if debugger is not None:
            debugger.stop()
            debugger.step()
        losses += bits([loss])
        gradients += bits(found)
    return {"losses": losses, "gradients": gradients, "parameters": bits(model.trainable_params())}
