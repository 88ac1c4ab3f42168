"""Modules and training loops in the style of Megatron."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ranks import make_debugger
from torch import nn

# Megatron keeps the functions under names of its own, from before any tool is there.
dist_all_gather_func = dist.all_gather_into_tensor
dist_reduce_scatter_func = dist.reduce_scatter_tensor


class Part(nn.Module):
    """A part of a model."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(hidden)))


class Tied(nn.Module):
    """Input and output words have one matrix."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(6, 4)
        self.output = nn.Linear(4, 6, bias=False)
        self.output.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.output(torch.tanh(self.words(tokens)))


def with_main_grad(model: nn.Module) -> tuple[nn.Module, list[Any]]:
    """Sum gradients up in float32 ``main_grad`` and drop ``grad``; the second value must be kept."""
    nodes = []
    model.bfloat16().float()
    for parameter in model.parameters():
        parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32)
        node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        node.register_hook(lambda *_, parameter=parameter: add_to_main_grad(parameter))
        nodes.append(node)
    return model, nodes


def add_to_main_grad(parameter: Any) -> None:
    if parameter.grad is not None:
        parameter.main_grad.add_(parameter.grad.data)
    parameter.grad = None


def virtual_pipeline(rank: int, folder: Path) -> bool:
    """Two parts on each of two ranks, run in turn; the embedding of the first and last one is shared."""
    plain = _virtual_pipeline(rank, None)
    watched = _virtual_pipeline(rank, make_debugger(folder, level="mix"))
    return all(map(torch.equal, plain, watched))


def _virtual_pipeline(rank: int, debugger: Any) -> list[torch.Tensor]:
    parts = [Part(), Part()]
    embedding = nn.Parameter(torch.ones(6, 4))
    if rank == 0:
        parts[0].words = embedding
    else:
        parts[1].words = embedding
    group = dist.new_group([0, 1])
    if debugger is not None:
        debugger.start(parts)
    hidden = torch.ones(2, 4, requires_grad=True)
    for number, part in enumerate(parts):
        if not (rank == 0 and number == 0):
            dist.recv(hidden.data, 1 - rank)
        used = hidden @ embedding.t() @ embedding if hasattr(part, "words") else hidden
        output = part(used)
        output.sum().backward()
        if not (rank == 1 and number == 1):
            dist.send(output.detach(), 1 - rank)
    dist.all_reduce(embedding.grad, group=group)
    if debugger is not None:
        debugger.stop()
        debugger.step()
    return [parameter.grad for part in parts for parameter in part.parameters()]


def stored_functions(rank: int, folder: Path) -> None:
    """Call the functions that were stored before the debugger was there."""
    debugger = make_debugger(folder, level="L1")
    debugger.start()
    dist_all_gather_func(torch.empty(4), torch.ones(2))
    dist_reduce_scatter_func(torch.empty(2), torch.ones(4))
    debugger.stop()


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        value = value.clone()
        dist.all_reduce(value)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class _Parallel(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(rank)
        self.inside = nn.Linear(4, 4, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return _Reduce.apply(self.inside(_Copy.apply(hidden)))


def tensor_parallel_functions(rank: int, folder: Path) -> bool:
    """Reduce the output forward and the gradient backward, with autograd functions."""
    results = []
    for debugger in (None, make_debugger(folder, level="mix")):
        model = _Parallel(rank)
        hidden = torch.ones(2, 4, requires_grad=True)
        if debugger is not None:
            debugger.start(model)
        model(hidden).pow(2).sum().backward()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        results.append([hidden.grad, model.inside.weight.grad])
    return all(map(torch.equal, *results))
