"""Small models with what compiled code is made of, and how to record them eagerly and compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from debugger_traces import dump_of
from torch import nn


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.act = nn.GELU()
        self.skip = nn.Identity()

    def forward(self, x, scale=None):
        h = self.act(self.linear(x))
        return x + self.skip(h), {"hidden": h}


class Selecting(nn.Module):
    """Fails for a table with a column that is not there."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Residual()

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        y, _ = self.block(x)
        return y[:, table]


class Operators(nn.Module):
    """Repeated blocks, operators of all kinds, namespaces, results of several tensors."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Residual(), Residual()])

    def forward(self, x):
        for block in self.blocks:
            x, _ = block(x, scale=3)
        x = 1 - x
        x = 2 / (x + 3.3)
        x = 1 + x
        x = -(x**2)
        x = F.conv1d(x, torch.ones(3, 3, 1))[:, 0:2]
        y = x.softmax(-1).to(torch.float64).to(torch.float32)
        y = F.tanh(torch.einsum("bij,bkj->bik", y, y))
        first, second = y.chunk(2, dim=-1)
        padded = F.pad(first, (0, 1), value=2.0)
        return (first + second).sum() + x.max(dim=-1).values.sum() + torch.linalg.norm(padded)


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        h = self.linear(x)
        h += 1
        h[:, 1:3] *= 2
        flat = h.view(-1)
        flat.mul_(0.5)
        h[0] = flat[:6] * 3
        y = (h * 1).t().clone()
        y[1:3].add_(1)
        return (F.relu(y, inplace=True).exp().clamp(max=50) + h.sum()).mean()


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.act = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(2)
        self.second = nn.Conv2d(8, 4, 3, stride=2)
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.pool(self.act(self.norm(self.first(x))))
        x = torch.flatten(self.mean(self.second(x)), 1)
        return F.cross_entropy(self.head(x), torch.zeros(len(x), dtype=torch.long))


class Broken(nn.Module):
    """Graph breaks, with calls that run eagerly between the graphs."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x):
        h = torch.relu(self.first(x)) + 1
        torch._dynamo.graph_break()
        h = self.second(h) * h
        scale = self.eagerly(h)
        return (h.exp() * scale + self.first(h)).sum()

    @torch.compiler.disable
    def eagerly(self, h):
        return (h.detach() + 1).mean()


class Loss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(input_ids=tokens, labels=tokens).loss


def llama(layers: int = 2) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 32}
    heads = {"num_hidden_layers": layers, "num_attention_heads": 2, "num_key_value_heads": 1}
    return Loss(LlamaForCausalLM(LlamaConfig(**sizes, **heads)))


def gpt2(layers: int = 2) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 64, "n_embd": 16, "n_layer": layers, "n_head": 2, "n_positions": 32}
    tokens = {"bos_token_id": 1, "eos_token_id": 1, "loss_type": "ForCausalLMLoss"}
    return Loss(GPT2LMHeadModel(GPT2Config(**sizes, **tokens)).eval())


def bert(layers: int = 2) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 32}
    model = BertForMaskedLM(BertConfig(**sizes, num_hidden_layers=layers, num_attention_heads=2))
    for module in list(model.modules()):
        for name, part in module.named_children():
            if isinstance(part, nn.Dropout):  # which returns its input in an eager run, and a copy in a compiled one
                setattr(module, name, nn.Identity())
    return Loss(model.eval())


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "operators": lambda: (Operators(), torch.randn(2, 3, 4)),
    "in-place": lambda: (InPlace(), torch.randn(2, 6)),
    "convolutions": lambda: (Convolutions(), torch.randn(2, 3, 14, 14)),
    "graph breaks": lambda: (Broken(), torch.randn(2, 4)),
    "llama": lambda: (llama(), torch.randint(0, 64, (2, 8))),
    "gpt2": lambda: (gpt2(), torch.randint(0, 64, (2, 8))),
    "bert": lambda: (bert(), torch.randint(0, 64, (2, 8))),
}


def train_step(model: nn.Module, run: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    """One training step; returns the loss and all gradients."""
    model.zero_grad()
    loss = run(x)
    loss.backward()
    return [loss.detach().clone(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def recorded(debugger: Any, model: nn.Module, run: Any, x: torch.Tensor, **config: Any) -> Any:
    """The dump of one training step."""
    tool = debugger(**config)
    with tool.capture(model):
        train_step(model, run, x)
    return dump_of(tool)


def eager_and_compiled(debugger: Any, name: str, backend: Any, **config: Any) -> tuple[Any, Any]:
    """Dumps of the same model, run eagerly and compiled."""
    model, x = MODELS[name]()
    twin = copy.deepcopy(model)
    eager = recorded(debugger, model, model, x, **config)
    return eager, recorded(debugger, twin, torch.compile(twin, backend=backend), x, **config)


def names(data: dict[str, Any]) -> list[str]:
    """Names of the records in order; a compiled graph hands over all gradients of parameters at its end."""
    return [name for name in data if "parameters_grad" not in name]


def assert_same(expected: Any, found: Any, where: str, tolerance: float = 1e-5) -> None:
    """Compare two JSON values, numbers within ``tolerance``."""
    if isinstance(expected, bool) or not isinstance(expected, (int, float, dict, list)):
        assert expected == found, where
    elif isinstance(expected, dict):
        assert set(expected) == set(found) - {"fx"}, where
        for key, value in expected.items():
            assert_same(value, found[key], f"{where}.{key}", tolerance)
    elif isinstance(expected, list):
        assert len(expected) == len(found), where
        for at, pair in enumerate(zip(expected, found, strict=True)):
            assert_same(*pair, f"{where}[{at}]", tolerance)
    else:
        assert abs(expected - found) <= tolerance * max(abs(expected), abs(found)) + 1e-6, where
