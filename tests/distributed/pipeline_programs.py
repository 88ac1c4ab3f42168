"""A model of which each rank has a stage under the names of the whole model, and the same in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from parallel_programs import schedule_step
from ranks import make_debugger
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WIDTH, WORDS, LENGTH, BLOCKS = 6, 10, 3, 4
MICRO_BATCHES, ROWS = 4, 2


class Layer(nn.Module):
    """A feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.down(F.gelu(self.up(hidden)))


class Language(nn.Module):
    """Words in, words out. Parts of it can be cut off; the rest keeps its names."""

    def __init__(self) -> None:
        super().__init__()
        self.words: nn.Module | None = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleDict({str(number): Layer() for number in range(BLOCKS)})
        self.head: nn.Module | None = nn.Linear(WIDTH, WORDS)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        hidden = given if self.words is None else self.words(given)
        for block in self.blocks.values():
            hidden = block(hidden * 0.5)
        return hidden if self.head is None else self.head(hidden)


def whole() -> Language:
    torch.manual_seed(0)
    return Language()


def stage_of(number: int, total: int) -> Language:
    """Cut off everything that another stage has."""
    model = whole()
    each = BLOCKS // total
    for block in range(BLOCKS):
        if block // each != number:
            del model.blocks[str(block)]
    if number:
        model.words = None
    if number < total - 1:
        model.head = None
    return model


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def tokens() -> torch.Tensor:
    """The batch: rows of one micro-batch after the other."""
    return torch.randint(WORDS, (MICRO_BATCHES * ROWS, LENGTH), generator=torch.Generator().manual_seed(1))


def single(rank: int, folder: Path, config: dict[str, Any]) -> None:
    """One process that adds up the gradients of the micro-batches."""
    model = whole()
    debugger = make_debugger(folder, **config)
    parts = tokens().chunk(MICRO_BATCHES)
    for _ in range(2):
        debugger.start(model)
        for part in parts:
            loss_of(model(part), part).backward()
        debugger.stop()
        debugger.step()
        model.zero_grad()


def spoil(model: Language, block: str) -> None:
    if block in model.blocks:
        with torch.no_grad():
            weight: Any = model.blocks[block].up.weight
            (weight.to_local() if hasattr(weight, "to_local") else weight)[0, 0] += 3.0


def train(schedule_name: str, debugger: Any, *, sharded: bool = False, spoilt: str = "") -> list[torch.Tensor]:
    """Two steps; losses and gradients of this rank. With ``sharded`` two ranks share each stage."""
    world, rank = dist.get_world_size(), dist.get_rank()
    schedule_class = getattr(pipelining, schedule_name)
    several = issubclass(schedule_class, pipelining.schedules.PipelineScheduleMulti)
    mesh = init_device_mesh("cpu", (world // 2, 2) if sharded else (world, 1), mesh_dim_names=("stages", "data"))
    stages, place = mesh.size(0), mesh.get_local_rank("stages")
    numbers = [place, place + stages] if several else [place]
    total = 2 * stages if several else stages
    models = [stage_of(number, total) for number in numbers]
    if sharded:
        for model in models:
            for block in model.blocks.values():
                fully_shard(block, mesh=mesh["data"])
            fully_shard(model, mesh=mesh["data"])
    if not sharded or rank % 2:
        for model in models:
            spoil(model, spoilt)
    parts = [
        pipelining.PipelineStage(model, number, total, torch.device("cpu"), group=mesh.get_group("stages"))
        for number, model in zip(numbers, models, strict=True)
    ]
    schedule = schedule_class(parts if several else parts[0], n_microbatches=MICRO_BATCHES, loss_fn=loss_of)
    batch = tokens()
    if sharded:  # each rank has its half of every micro-batch
        batch = torch.cat([part.chunk(2)[rank % 2] for part in batch.chunk(MICRO_BATCHES)])
    seen: list[torch.Tensor] = []
    root = models if several else models[0]
    given, target = (batch if place == 0 else None), (batch if place == stages - 1 else None)
    for _ in range(2):
        seen += schedule_step(schedule, models, given, target, debugger, root)
    return seen


def twice(rank: int, folder: Path, schedules: list[str], config: dict[str, Any]) -> list[bool]:
    """Whether runs under some schedules are bitwise equal with and without the debugger, each into its own folder."""
    found = []
    for name in schedules:
        plain = train(name, None)
        place = folder / name
        place.mkdir(exist_ok=True)
        debugger = make_debugger(place, **config)
        watched = train(name, debugger)
        debugger._session.close()
        type(debugger)._instance = None
        found.append(len(plain) == len(watched) > 0 and all(map(torch.equal, plain, watched)))
    return found


def recorded(
    rank: int, folder: Path, schedule: str, config: dict[str, Any], sharded: bool = False, spoilt: str = ""
) -> None:
    """Record two steps."""
    train(schedule, make_debugger(folder, **config), sharded=sharded, spoilt=spoilt)
