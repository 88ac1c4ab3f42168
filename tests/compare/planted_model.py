"""A small transformer into which faults are planted, and the runs that record it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, TOKENS, BATCH, LAYERS = 16, 2, 5, 3, 2


@dataclass(frozen=True, slots=True)
class Fault:
    """What to do wrong in one layer (``layer``), or nothing."""

    kind: str = "none"
    layer: int = 1


class Attention(nn.Module):
    """Eager attention, or torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.kind = "eager"
        self.swapped = False

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(BATCH, TOKENS, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if self.swapped:
            q, k = k, q
        if self.kind == "eager":
            scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(WIDTH / HEADS)
            mixed = torch.matmul(F.softmax(scores, dim=-1), v)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(BATCH, TOKENS, WIDTH))


class Block(nn.Module):
    """Pre-norm transformer block with the places that faults go to."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.fault = ""

    def forward(self, x: Tensor) -> Tensor:
        fault = self.fault
        x = x + self.attention(self.norm1(x))
        hidden = x if fault == "missing norm" else self.norm2(x)
        if fault == "half precision":
            weight, bias = self.up.weight.to(torch.bfloat16), self.up.bias.to(torch.bfloat16)
            hidden = F.linear(hidden.to(torch.bfloat16), weight, bias).float()
        else:
            hidden = self.up(hidden)
        hidden = torch.relu(hidden) if fault == "changed op" else F.gelu(hidden)
        if fault == "nan":
            hidden = torch.sqrt(hidden - hidden.max())
        if fault == "harmless":
            torch.relu(hidden.detach())
        if fault == "reseeded":
            torch.manual_seed(99)
        hidden = self.dropout(self.down(hidden))
        if fault == "swapped sub":
            return torch.sub(hidden, x)
        if fault == "wired":
            return torch.sub(hidden, hidden)
        return torch.sub(x, hidden)


class Model(nn.Module):
    """Embedding, blocks, head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.head = nn.Linear(WIDTH, 20)
        self.checkpointed = False

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x)


def make_model(fault: Fault) -> Model:
    """The same random weights every time; the fault is in one block."""
    torch.manual_seed(7)
    model = Model()
    block = model.blocks[fault.layer]
    assert isinstance(block, Block)
    block.fault = fault.kind
    with torch.no_grad():
        if fault.kind == "weight":
            block.down.weight[3, 5] += 0.5
        if fault.kind == "norm weight":
            block.norm1.weight.mul_(1.25)
    if fault.kind == "eps":
        block.norm2.eps = 0.3
    if fault.kind == "dropout p":
        block.dropout.p = 0.5
    if fault.kind == "swapped qk":
        block.attention.swapped = True
    if fault.kind == "sdpa":
        for each in model.blocks:
            each.attention.kind = "sdpa"  # type: ignore[union-attr]
    if fault.kind == "checkpointed":
        model.checkpointed = True
    return model


def remembered(folder: Path, **fixed: Any) -> Callable[..., Path]:
    """A `record` that runs each configuration once: many faults are compared with each."""
    known: dict[str, Path] = {}

    def get(debugger: Callable[..., Any], **config: Any) -> Path:
        key = str(sorted(config.items()))
        if key not in known:
            known[key] = record(debugger, folder / str(len(known)), **fixed, **config)
        return known[key]

    return get


def record(
    debugger: Callable[..., Any],
    folder: Path,
    fault: Fault = Fault(),
    *,
    rank: int | None = None,
    steps: int = 1,
    change: Callable[[Model], Any] | None = None,
    **config: Any,
) -> Path:
    """Train for some steps and record them; the folder of the run."""
    made = debugger(dump_path=str(folder), **{"task": "statistics", "level": "mix", **config})
    model = make_model(fault)
    if change is not None:
        change(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        torch.manual_seed(1000 + step)
        ids = torch.randint(0, 20, (BATCH, TOKENS))
        made.start(model, rank_id=rank)
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        made.stop()
        made.step()
    made._session.close()
    return folder
