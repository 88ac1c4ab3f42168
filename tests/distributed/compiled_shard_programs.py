"""Programs whose model is sharded and compiled, with and without a debugger."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import parallel_programs as programs
import torch
import torch.nn.functional as F
from ranks import make_debugger
from torch import nn
from torch.distributed.fsdp import fully_shard

BACKEND = "aot_eager"


def tensor_parallel() -> nn.Module:
    model = programs.tensor_parallel()
    for block in model.blocks:
        block.compile(backend=BACKEND)
    return model


def sharded_then_compiled() -> nn.Module:
    model = programs.single()
    for block in model.blocks:
        fully_shard(block)
        block.compile(backend=BACKEND)
    fully_shard(model)
    return model


def checkpointed() -> nn.Module:
    model = programs.single(again=True)
    for block in model.blocks:
        block.compile(backend=BACKEND)
        fully_shard(block)
    fully_shard(model)
    return model


KINDS: dict[str, Callable[[], nn.Module]] = {
    "sharded, then compiled": sharded_then_compiled,
    "checkpointed": checkpointed,
    "tensor parallel": tensor_parallel,
    "eager, sharded": programs.fsdp2,
    "eager, checkpointed": lambda: programs.fsdp2(again=True),
    "eager, tensor parallel": programs.tensor_parallel,
}


def train(kind: str, rank: int, debugger: Any = None) -> list[torch.Tensor]:
    """Two steps; returns losses, gradients, and the parameters at the end."""
    model = KINDS[kind]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[torch.Tensor] = []
    for tokens in programs.batches(0 if "tensor parallel" in kind else rank, 2):
        if debugger is not None:
            debugger.start(model)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        seen += [loss.detach(), *(programs.local(parameter.grad) for parameter in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
    return seen + [programs.local(parameter) for parameter in model.parameters()]


def compared(rank: int, folder: Path, kinds: tuple[str, str], config: dict[str, Any]) -> bool:
    """Record two steps of an eager model, then two of a compiled one; whether the latter is bitwise as it is alone."""
    eager, compiled = kinds
    debugger = make_debugger(folder, **config)
    train(eager, rank, debugger)
    plain = train(compiled, rank)
    watched = train(compiled, rank, debugger)
    return all(map(torch.equal, plain, watched))
