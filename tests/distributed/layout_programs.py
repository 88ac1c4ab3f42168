"""One training step of one model on one batch, under layouts whose dumps are compared with each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from parallel_programs import Network
from ranks import make_debugger
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

#: Four ranks have 2, 2, 2 and no rows of a weight of six.
WIDTH, WORDS, LENGTH, BATCH = 6, 10, 3, 4
#: Over how many ranks each part of the batch is, under layouts that have parts of it.
DATA_PARALLEL = {"ddp": 1, "fsdp2": 1, "replicated_shards": 1, "two_dimensions": 2}
#: What goes wrong on the last rank: a parameter (a shard of it), or what a module gives.
FAULTS = ("weight", "output")


def fsdp2(model: Network) -> nn.Module:
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def tensor_parallel(model: Network) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def replicated_shards(model: Network) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def two_dimensions(model: Network) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    for block in model.blocks:
        parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    return model


LAYOUTS: dict[str, Callable[[Network], nn.Module]] = {
    "single": lambda model: model,
    "ddp": DistributedDataParallel,
    "fsdp2": fsdp2,
    "tensor_parallel": tensor_parallel,
    "replicated_shards": replicated_shards,
    "two_dimensions": two_dimensions,
}


def step(rank: int, folder: Path, layout: str, config: dict[str, Any], fault: str | None = None) -> None:
    """Record one training step; the last rank has the fault."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    faulty = fault is not None and rank == world - 1
    torch.manual_seed(0)
    inside = Network(width=WIDTH, words=WORDS)
    model = LAYOUTS[layout](inside)
    if faulty:
        spoil(inside.blocks[1], str(fault))
    tokens = torch.randint(WORDS, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
    if layout in DATA_PARALLEL:
        ranks = DATA_PARALLEL[layout]
        tokens = tokens.chunk(world // ranks)[rank // ranks]
    debugger = make_debugger(folder, **config)
    debugger.start(model)
    F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    debugger.stop()
    debugger.step()
    if world > 1:
        dist.barrier()


def spoil(block: Any, fault: str) -> None:
    if fault == "weight":
        weight = block.up.weight
        local = weight.to_local() if hasattr(weight, "to_local") else weight
        with torch.no_grad():
            local[0, 0] += 3.0
    else:
        block.norm.register_forward_hook(lambda module, inputs, output: output * 1.5)
