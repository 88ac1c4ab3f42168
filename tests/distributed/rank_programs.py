"""What ranks do in the tests of rank folders and rank filters."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ranks import join_group, make_debugger


def one_step(rank: int, folder: Path, config: dict[str, Any], rank_id: int | None = None) -> float:
    """A step with a collective in it; returns its result."""
    debugger = make_debugger(folder, level="L1", **config)
    value = torch.ones(3) * (rank + 1)
    with_id = {} if rank_id is None else {"rank_id": rank_id + rank}
    debugger.start(**with_id)
    value = torch.tanh(value)
    dist.all_reduce(value)
    work = dist.all_reduce(value, async_op=True)
    work.wait()
    dist.barrier()
    debugger.stop()
    debugger.step()
    return float(value[0])


def late_group(rank: int, folder: Path, ranks: list[int], launched: bool) -> None:
    """start() before the process group is there."""
    if launched:
        import os

        os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    debugger = make_debugger(folder, level="L1", rank=ranks)
    debugger.start()
    torch.tanh(torch.ones(2))
    join_group(rank, 2, folder)
    dist.all_reduce(torch.ones(2))
    debugger.stop()
    debugger.step()


def left_out(rank: int, folder: Path) -> dict[str, Any]:
    """What a rank that is not wanted pays: hooks that it has, and the time of its calls."""
    from torch.overrides import _get_current_function_mode_stack

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    debugger = make_debugger(folder, level="mix", rank=[1])
    debugger.start(model)
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
    modes = len(_get_current_function_mode_stack())
    c10d = dist.all_reduce.__closure__[0].cell_contents is dist.all_reduce.__wrapped__
    begin = time.perf_counter()
    model(torch.ones(1, 2)).sum().backward()
    dist.all_reduce(model[0].weight.grad)
    seconds = time.perf_counter() - begin
    debugger.stop()
    debugger.step()
    return {"hooks": hooks, "modes": modes, "c10d": c10d, "seconds": seconds}


def spawned(rank: int, folder: str) -> None:
    """Target of torch.multiprocessing.spawn."""
    join_group(rank, 2, Path(folder))
    one_step(rank, Path(folder), {})


def fork_two(_rank: int, folder: Path) -> list[int | None]:
    """Fork two ranks from a process that has recorded a step itself."""
    import multiprocessing

    debugger = make_debugger(folder, level="L1")
    debugger.start()
    torch.tanh(torch.ones(2))
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_forked, args=(rank, folder)) for rank in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(30)
    debugger.stop()
    debugger.step()
    return [child.exitcode for child in children]


def _forked(rank: int, folder: Path) -> None:
    from msprobe.pytorch import PrecisionDebugger

    join_group(rank, 2, folder)
    PrecisionDebugger.start()
    dist.all_reduce(torch.ones(2))
    PrecisionDebugger.stop()
    PrecisionDebugger.step()


TORCHRUN = """
import sys, torch, torch.distributed as dist
from msprobe.pytorch import PrecisionDebugger
debugger = PrecisionDebugger(config_path=sys.argv[1])
dist.init_process_group("gloo")
debugger.start()
value = torch.ones(2)
dist.all_reduce(value)
debugger.stop()
debugger.step()
dist.destroy_process_group()
"""
