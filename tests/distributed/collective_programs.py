"""What ranks do in the tests of collectives."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ranks import make_debugger
from torch.distributed import all_reduce as stored_long_before
from torch.distributed.distributed_c10d import _coalescing_manager


def every_collective(rank: int, folder: Path, config: dict[str, Any]) -> list[bool]:
    """Call each collective once, with two ranks."""
    debugger = make_debugger(folder, **config)
    debugger.start(torch.nn.Sequential(torch.nn.ReLU()))
    other = 1 - rank
    value = torch.ones(4) * (rank + 1)
    dist.all_reduce(value)
    pair = [torch.empty(4), torch.empty(4)]
    dist.all_gather(pair, value)
    dist.all_gather_into_tensor(torch.empty(8), value)
    dist.reduce_scatter_tensor(torch.empty(2), value, op=dist.ReduceOp.MAX)
    dist.reduce_scatter(torch.empty(2), [value[:2], value[2:]])
    dist.broadcast(value, src=0)
    dist.all_to_all_single(torch.empty(4), value)
    dist.all_to_all([torch.empty(2), torch.empty(2)], [value[:2], value[2:]])
    dist.gather(value, [torch.empty(4), torch.empty(4)] if rank == 0 else None, dst=0)
    dist.scatter(value, [torch.full((4,), 5.0), torch.full((4,), 7.0)] if rank == 0 else None, src=0)
    dist.reduce(value, dst=1)
    if rank == 0:
        dist.send(value, 1)
        waited = [dist.isend(value, dst=1).wait()]
    else:
        dist.recv(value, 0)
        waited = [dist.irecv(value, src=0).wait()]
    received = torch.empty(4)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, value, other), dist.P2POp(op=dist.irecv, tensor=received, peer=other)]
    )
    waited += [work.wait() for work in works]
    dist.barrier()
    pair = dist.new_group([0, 1])
    dist.all_reduce(value, group=pair)
    debugger.stop()
    debugger.step()
    return waited


def asynchronous(rank: int, folder: Path) -> dict[str, Any]:
    """Wait, poll, never wait, and drop works of all_reduce."""
    debugger = make_debugger(folder, level="L1")
    debugger.start()
    found: dict[str, Any] = {}
    waited = torch.ones(3) * (rank + 1)
    work = dist.all_reduce(waited, async_op=True)
    found["kind"] = isinstance(work, dist.Work)
    found["wait"] = work.wait()
    found["again"] = work.wait()
    waited.mul_(0)  # after the wait: no longer what the collective has given
    polled = torch.ones(3) * (rank + 1)
    work = dist.all_reduce(polled, async_op=True)
    while not work.is_completed():
        pass
    by_future = torch.ones(3) * (rank + 1)
    work = dist.all_reduce(by_future, async_op=True)
    found["future"] = [float(part[0]) for part in work.get_future().wait()]
    dropped = torch.ones(3)
    gone = weakref.ref(dropped)
    unwaited = dist.all_reduce(dropped, async_op=True)
    dist.barrier()
    del dropped, unwaited
    deadline = time.monotonic() + 10  # gloo's own thread lets go of it a little after the barrier
    while gone() is not None and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    found["freed"] = gone() is None
    debugger.stop()
    debugger.step()
    return found


def after_stop(rank: int, folder: Path) -> bool:
    """Wait after stop(); then call again, in a step that is not recorded."""
    debugger = make_debugger(folder, level="L1", step=[0])
    debugger.start()
    value = torch.ones(2)
    work = dist.all_reduce(value, async_op=True)
    debugger.stop()
    done = work.wait()
    debugger.step()
    debugger.start()
    dist.all_reduce(value)
    debugger.stop()
    debugger.step()
    return done


def objects(rank: int, folder: Path) -> list[Any]:
    """Exchange Python objects between two recorded calls."""
    debugger = make_debugger(folder, level="L1", risk_level="ALL")
    debugger.start()
    torch.tanh(torch.ones(2))
    everyone: list[Any] = [None, None]
    dist.all_gather_object(everyone, {"rank": rank})
    shared = [everyone if rank == 0 else None]
    dist.broadcast_object_list(shared, src=0)
    torch.tanh(torch.ones(2))
    debugger.stop()
    debugger.step()
    return shared


def coalesced(rank: int, folder: Path) -> list[float]:
    """Two all_reduce in one message, waited for by the block and by the program."""
    debugger = make_debugger(folder, level="L1")
    debugger.start()
    values = [torch.ones(2) * (rank + 1), torch.ones(3) * 10]
    with _coalescing_manager():
        for value in values:
            dist.all_reduce(value)
    with _coalescing_manager(async_ops=True) as block:
        for value in values:
            dist.all_reduce(value)
    block.wait()
    debugger.stop()
    return [float(value[0]) for value in values]


def functional(rank: int, folder: Path) -> float:
    """Collectives that return their result."""
    from torch.distributed import _functional_collectives as functional_collectives

    debugger = make_debugger(folder, level="L1")
    debugger.start()
    value = functional_collectives.all_reduce(torch.ones(2) * (rank + 1), "sum", dist.group.WORLD)
    value = functional_collectives.wait_tensor(value)
    value = torch.tanh(value)
    debugger.stop()
    return float(value[0])


def in_a_thread(rank: int, folder: Path) -> float:
    """A collective in a thread that runs no module, as the engine's threads for devices are."""
    debugger = make_debugger(folder, level="L1")
    debugger.start()
    value = torch.ones(2)
    thread = threading.Thread(target=dist.all_reduce, args=(value,))
    thread.start()
    thread.join()
    debugger.stop()
    return float(value[0])


def failing(rank: int, folder: Path) -> str:
    """A collective that raises, and one after it."""
    debugger = make_debugger(folder, level="L1")
    debugger.start()
    message = ""
    try:
        dist.all_reduce([1, 2])
    except TypeError as error:
        message = str(error)
    dist.all_reduce(torch.ones(2))
    debugger.stop()
    return message


def untouched(rank: int, folder: Path) -> dict[str, bool]:
    """What torch's functions are while recording, and afterwards."""
    import inspect

    before = {name: getattr(dist, name) for name in ("all_reduce", "isend", "batch_isend_irecv", "barrier")}
    signatures = {name: inspect.signature(function) for name, function in before.items()}
    codes = {
        name: (function.__code__, function.__closure__ and function.__closure__[0].cell_contents)
        for name, function in before.items()
    }
    debugger = make_debugger(folder, level="L1")
    debugger.start()
    stored_long_before(torch.ones(2))
    during = all(getattr(dist, name) is function for name, function in before.items())
    same_signatures = all(inspect.signature(function) == signatures[name] for name, function in before.items())
    debugger.stop()
    after = all(
        codes[name] == (function.__code__, function.__closure__ and function.__closure__[0].cell_contents)
        and "__signature__" not in vars(function)
        for name, function in before.items()
    )
    return {"during": during, "signatures": same_signatures, "after": after}
