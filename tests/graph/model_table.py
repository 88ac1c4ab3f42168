"""The models of the comparison between eager and compiled runs, and which of their parts are compiled on their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from compiled_models import Broken, Convolutions, InPlace, Loss, Operators, bert, gpt2, llama
from torch import nn


class Block(nn.Module):
    """A block as transformers are made of, without attention."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Repeated(nn.Module):
    """Blocks of one class: compiled one by one they share one graph."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList([Block(), Block(), Block()])

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x.pow(2).mean()


class Tied(nn.Module):
    """One embedding for both ends, one block that runs twice, and one weight in two modules."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.block = Block()
        self.left, self.right = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.right.weight = self.left.weight
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        h = self.block(self.block(self.table(tokens)))
        h = self.right(torch.relu(self.left(h)))
        return nn.functional.cross_entropy(self.head(h).flatten(0, 1), tokens.flatten())


def qwen2(layers: int = 2) -> nn.Module:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 32}
    heads = {"num_hidden_layers": layers, "num_attention_heads": 2, "num_key_value_heads": 1}
    return Loss(Qwen2ForCausalLM(Qwen2Config(**sizes, **heads, tie_word_embeddings=True)))


@dataclass(frozen=True)
class Row:
    """One model of the table.

    Attributes
    ----------
    make : callable
        Returns the model, whose result is a loss, and its input.
    parts : callable
        The modules of the model that are compiled one by one.
    broken : bool
        Whether the model breaks its graph itself.
    """

    make: Callable[[], tuple[nn.Module, torch.Tensor]]
    parts: Callable[[Any], Iterable[nn.Module]]
    broken: bool = False


def one_layer(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A model of transformers with one layer: Inductor takes a second or two for each kernel."""
    return {"llama": llama, "qwen2": qwen2, "gpt2": gpt2, "bert": bert}[name](layers=1), tokens()


def tokens(vocabulary: int = 64) -> torch.Tensor:
    return torch.randint(0, vocabulary, (2, 8))


TABLE = {
    "llama": Row(lambda: (llama(), tokens()), lambda model: model.model.model.layers),
    "qwen2": Row(lambda: (qwen2(), tokens()), lambda model: model.model.model.layers),
    "gpt2": Row(lambda: (gpt2(), tokens()), lambda model: model.model.transformer.h),
    "bert": Row(lambda: (bert(), tokens()), lambda model: model.model.bert.encoder.layer),
    "conv": Row(
        lambda: (Convolutions(), torch.randn(2, 3, 14, 14)), lambda model: [model.first, model.norm, model.head]
    ),
    "operators": Row(lambda: (Operators(), torch.randn(2, 3, 4)), lambda model: model.blocks),
    "in-place": Row(lambda: (InPlace(), torch.randn(2, 6)), lambda model: [model.linear]),
    "breaks": Row(lambda: (Broken(), torch.randn(2, 4)), lambda model: [model.first, model.second], broken=True),
    "blocks": Row(lambda: (Repeated(), torch.randn(2, 8, 8)), lambda model: model.blocks),
    "tied": Row(lambda: (Tied(), tokens(11)), lambda model: [model.block, model.left, model.right]),
}


def compiled(name: str, model: nn.Module, way: str, backend: Any, **options: Any) -> Any:
    """What to call in place of ``model``: all of it compiled (``way`` "whole"), or its parts ("parts")."""
    if way == "whole":
        return torch.compile(model, backend=backend, **options)
    for part in TABLE[name].parts(model):
        part.compile(backend=backend, **options)
    return model
