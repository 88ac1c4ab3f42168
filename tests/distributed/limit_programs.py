"""What ranks do in the tests of documented limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ranks import make_debugger
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.nn.parallel import DistributedDataParallel


def data_parallel(rank: int, folder: Path) -> dict[str, float]:
    """A step under DDP; norms of the rank's own gradient of one weight and of the averaged one."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
    given = torch.ones(2, 3) * (rank + 1)
    model(given).sum().backward()
    own = float(model[0].weight.grad.norm())
    model.zero_grad()
    parallel = DistributedDataParallel(model)
    debugger = make_debugger(folder, level="mix")
    debugger.start(parallel)
    parallel(given).sum().backward()
    debugger.stop()
    debugger.step()
    return {"own": own, "averaged": float(model[0].weight.grad.norm())}


def inside_an_operation(rank: int, folder: Path) -> float:
    """An operation that needs a sum over the ranks first, and a redistribution that the program asks for."""
    mesh = init_device_mesh("cpu", (2,))
    parts = DTensor.from_local(torch.ones(2), mesh, [Partial()])
    debugger = make_debugger(folder, level="L1")
    debugger.start()
    whole = torch.tanh(parts)
    value = float(whole.redistribute(mesh, [Replicate()]).to_local()[0])
    debugger.stop()
    debugger.step()
    return value


def group_method(rank: int, folder: Path) -> float:
    """The collective of a process group, without torch.distributed's function."""
    debugger = make_debugger(folder, level="L1")
    debugger.start()
    value = torch.ones(2)
    dist.group.WORLD.allreduce([value]).wait()
    torch.tanh(value)
    debugger.stop()
    debugger.step()
    return float(value[0])


def unrecorded_setting(rank: int, folder: Path, config: dict[str, Any]) -> bool:
    """Whether torch's functions are entered under a setting that does not record collectives."""
    inside = dist.all_reduce.__wrapped__
    debugger = make_debugger(folder, **config)
    debugger.start()
    value = torch.tanh(torch.ones(2))
    dist.all_reduce(value)
    entered = dist.all_reduce.__closure__[0].cell_contents is not inside
    debugger.stop()
    debugger.step()
    return entered


def kind_of_work(rank: int, folder: Path) -> list[bool]:
    """Class of an asynchronous work, while recording and otherwise, and that torch takes both."""
    debugger = make_debugger(folder, level="L1")
    value = torch.ones(2)
    found = []
    for records in (False, True):
        if records:
            debugger.start()
        work = dist.all_reduce(value, async_op=True)
        found += [isinstance(work, dist.Work), type(work) is dist.Work]
        torch._C._distributed_c10d._register_work(value, work)
        torch.ops._c10d_functional.wait_tensor(value)
    debugger.stop()
    debugger.step()
    return found
