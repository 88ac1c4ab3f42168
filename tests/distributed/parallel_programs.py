"""Training under the parallelisms of torch, each run twice in its processes: without and with a debugger."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.pipelining as pipelining
import torch.nn.functional as F
from ranks import make_debugger
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

WIDTH, WORDS, LENGTH = 8, 12, 4


class Block(nn.Module):
    """A feed-forward layer with a norm, computed again in the backward pass if asked for."""

    def __init__(self, again: bool, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.again = again

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.again and self.training:
            return hidden + checkpoint(self.inside, hidden, use_reentrant=False)
        return hidden + self.inside(hidden)

    def inside(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(self.norm(hidden))))


class Network(nn.Module):
    """Words in, words out."""

    def __init__(self, again: bool = False, width: int = WIDTH, words: int = WORDS) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList([Block(again, width), Block(again, width)])
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.words(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def single(again: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return Network(again)


def ddp() -> nn.Module:
    return DistributedDataParallel(single())


def fsdp2(**options: Any) -> nn.Module:
    model = single(options.pop("again", False))
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model


def fsdp2_compiled() -> nn.Module:
    model = single()
    for block in model.blocks:
        block.compile(backend="aot_eager")
        fully_shard(block)
    fully_shard(model)
    return model


def fsdp2_bfloat16() -> nn.Module:
    return fsdp2(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


def tensor_parallel() -> nn.Module:
    model = single()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def fsdp1() -> nn.Module:
    return FullyShardedDataParallel(single(), use_orig_params=True, device_id=torch.device("cpu"))


def replicated_shards() -> nn.Module:
    return fsdp2(mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards")))


def two_dimensions() -> nn.Module:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = single()
    for block in model.blocks:
        parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    return model


KINDS: dict[str, Callable[[], nn.Module]] = {
    "single": single,
    "checkpoint": lambda: single(again=True),
    "ddp": ddp,
    "fsdp2": fsdp2,
    "fsdp2_keep": lambda: fsdp2(reshard_after_forward=False),
    "fsdp2_checkpoint": lambda: fsdp2(again=True),
    "fsdp2_bfloat16": fsdp2_bfloat16,
    "fsdp2_compiled": fsdp2_compiled,
    "tensor_parallel": tensor_parallel,
    "fsdp1": fsdp1,
    "replicated_shards": replicated_shards,
    "two_dimensions": two_dimensions,
}


def batches(rank: int, number: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * rank)
    return [torch.randint(WORDS, (2, LENGTH), generator=generator) for _ in range(number)]


def train(
    kind: str, rank: int, debugger: Any = None, *, steps: int = 2, parts: int = 1, optimizer_options: Any = None
) -> list[torch.Tensor]:
    """Train; returns every loss and gradient, and the parameters at the end.

    ``parts`` micro-batches make a step. With ``optimizer_options`` the optimiser's work belongs to the recorded step.
    """
    model = KINDS[kind]()
    same = kind in ("tensor_parallel", "single", "checkpoint")
    if kind == "two_dimensions":
        rank //= 2
    data = iter(batches(0 if same else rank, steps * parts))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, **(optimizer_options or {}))
    seen: list[torch.Tensor] = []
    for _ in range(steps):
        if debugger is not None:
            debugger.start(model)
        for _ in range(parts):
            tokens = next(data)
            loss = F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
            loss.backward()
            seen.append(loss.detach())
        if optimizer_options is not None:
            optimizer.step()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        seen += [local(parameter.grad) for parameter in model.parameters()]
        if optimizer_options is None:
            optimizer.step()
        optimizer.zero_grad()
    return seen + [local(parameter) for parameter in model.parameters()]


def local(tensor: torch.Tensor | None) -> torch.Tensor:
    if tensor is None:  # FSDP1 has no part of this parameter on this rank
        return torch.empty(0)
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach().clone()


def twice(rank: int, folder: Path, kind: str, config: dict[str, Any], options: dict[str, Any] | None = None) -> bool:
    """Whether everything is bitwise equal with and without the debugger; ``options`` are those of :func:`train`."""
    plain = train(kind, rank, **(options or {}))
    watched = train(kind, rank, make_debugger(folder, **config), **(options or {}))
    return len(plain) == len(watched) and all(map(torch.equal, plain, watched))


def gradient_shards(rank: int, folder: Path) -> dict[str, float]:
    """Train a step under FSDP2 with the debugger; returns the norm of the local part of each gradient."""
    model = fsdp2()
    debugger = make_debugger(folder, level="L0")
    debugger.start(model)
    model(batches(rank, 1)[0]).sum().backward()
    debugger.stop()
    debugger.step()
    return {name: float(local(parameter.grad).norm()) for name, parameter in model.named_parameters()}


def compiled_collective(rank: int, folder: Path) -> list[float]:
    """A compiled function that reduces, before, while and after recording."""

    @torch.compile(backend="aot_eager", fullgraph=True)
    def reduced(value: torch.Tensor) -> torch.Tensor:
        value = value * 2
        dist.all_reduce(value)
        return value + 1

    given = torch.ones(3) * (rank + 1)
    debugger = make_debugger(folder, level="L1")
    found = [float(reduced(given)[0])]
    debugger.start()
    found.append(float(reduced(given)[0]))
    dist.all_reduce(torch.ones(1))
    debugger.stop()
    debugger.step()
    return [*found, float(reduced(given)[0])]


def sharded_values(rank: int, folder: Path) -> None:
    """Rank 1 alone records calls with DTensors: a collective of the tool would wait for rank 0 for ever."""
    mesh = init_device_mesh("cpu", (2,))
    weight = distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Shard(0)])
    debugger = make_debugger(folder, level="L1", rank=[1])
    debugger.start()
    if rank == 1:
        torch.tanh(weight)
    debugger.stop()
    debugger.step()
    dist.barrier()


class Stage(nn.Module):
    """A part of a pipeline."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.last = nn.Linear(WIDTH, 2) if last else nn.Identity()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.last(self.inside(hidden))


def square_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).pow(2).mean()


def schedule_step(
    schedule: Any,
    models: list[nn.Module],
    batch: torch.Tensor | None,
    target: torch.Tensor | None,
    debugger: Any,
    root: Any,
) -> list[torch.Tensor]:
    """One step of a pipeline schedule, recorded as that of ``root``; losses and gradients of this rank's stages.

    The first stage is given a batch, the last one a target; None stands for those of other ranks.
    """
    losses: list[torch.Tensor] = []
    if debugger is not None:
        debugger.start(root)
    given = () if batch is None else (batch,)
    schedule.step(*given, **({} if target is None else {"target": target, "losses": losses}))
    if debugger is not None:
        debugger.stop()
        debugger.step()
    seen = [loss.detach() for loss in losses]
    for model in models:
        seen += [local(parameter.grad) for parameter in model.parameters()]
        model.zero_grad()
    return seen


def run_pipeline(rank: int, schedule_name: str, debugger: Any = None) -> list[torch.Tensor]:
    """Two steps of four micro-batches; returns losses and gradients of this rank's stages."""
    schedule_class = getattr(pipelining, schedule_name)
    several = issubclass(schedule_class, pipelining.schedules.PipelineScheduleMulti)
    torch.manual_seed(0)
    numbers = [rank, rank + 2] if several else [rank]
    total = 4 if several else 2
    everything = [Stage(last=number == total - 1) for number in range(total)]
    models = [everything[number] for number in numbers]
    stages = [
        pipelining.PipelineStage(model, number, total, torch.device("cpu"))
        for number, model in zip(numbers, models, strict=True)
    ]
    schedule = schedule_class(stages if several else stages[0], n_microbatches=4, loss_fn=square_loss)
    seen: list[torch.Tensor] = []
    is_last = rank == dist.get_world_size() - 1
    for _ in range(2):
        torch.manual_seed(1)
        inputs, targets = torch.randn(8, WIDTH), torch.randn(8, 2)
        given = inputs if rank == 0 else None
        seen += schedule_step(schedule, models, given, targets if is_last else None, debugger, models)
    return seen


def pipeline_twice(rank: int, folder: Path, schedule_name: str, config: dict[str, Any]) -> bool:
    """Whether a pipeline run is bitwise equal with and without the debugger."""
    plain = run_pipeline(rank, schedule_name)
    watched = run_pipeline(rank, schedule_name, make_debugger(folder, **config))
    return len(plain) == len(watched) > 0 and all(map(torch.equal, plain, watched))
