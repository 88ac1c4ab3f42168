"""Real processes for tests of several ranks: gloo groups that are forked from one process with torch loaded.

A program is a function ``program(rank, folder, *arguments)`` of an importable module. It runs in every process, and
what it returns comes back, in the order of the ranks.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

SECONDS = 60.0
_LOADED = [
    "msprobe.pytorch",
    "msprobe.dispatch.collectives",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
]


def run_ranks(
    world: int, program: Callable[..., Any], folder: Path, *arguments: Any, grouped: bool = True
) -> list[Any]:
    """Run ``program`` in ``world`` processes.

    Parameters
    ----------
    grouped : bool
        Whether the default process group is there when the program begins.

    Raises
    ------
    AssertionError
        If a process raises, dies, or is not done in time: all of them are ended, and the traceback is the message.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_LOADED)
    processes, ends = [], []
    for rank in range(world):
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=_main, args=(theirs, rank, world if grouped else 0, program, folder, arguments)
        )
        process.start()
        theirs.close()
        processes.append(process)
        ends.append(mine)
    try:
        return _results(ends, time.monotonic() + SECONDS)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _results(ends: list[Connection], deadline: float) -> list[Any]:
    results = []
    for rank, end in enumerate(ends):
        assert end.poll(max(0.0, deadline - time.monotonic())), f"rank {rank} is not done after {SECONDS:.0f} s"
        try:
            fine, result = end.recv()
        except EOFError:
            raise AssertionError(f"rank {rank} ended without a result") from None
        assert fine, f"rank {rank} failed:\n{result}"
        results.append(result)
    return results


def _main(
    end: Connection, rank: int, world: int, program: Callable[..., Any], folder: Path, arguments: tuple[Any, ...]
) -> None:
    import torch

    torch.set_num_threads(1)
    try:
        if world:
            join_group(rank, world, folder)
        result = program(rank, folder, *arguments)
        end.send((True, result))
    except BaseException:  # noqa: BLE001 - the test process shows it
        end.send((False, traceback.format_exc()))
    end.close()
    sys.stdout.flush()
    os._exit(0)  # no time-outs of gloo at exit if another rank is gone


def join_group(rank: int, world: int, folder: Path) -> None:
    """Make the default process group, with a file of ``folder`` as meeting point."""
    import torch.distributed

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)


def make_debugger(folder: Path, **config: Any) -> Any:
    """The debugger of this process, writing to ``folder/dump`` unless ``dump_path`` says otherwise."""
    from msprobe.pytorch import PrecisionDebugger

    file = folder / f"config{os.getpid()}.json"
    file.write_text(json.dumps({"dump_path": str(folder / "dump"), **config}), encoding="utf-8")
    return PrecisionDebugger(config_path=file)


def records(folder: Path, rank: int, step: int = 0) -> Mapping[str, Any]:
    """The records of one rank and step, by name."""
    return json.loads((folder / f"dump/step{step}/rank{rank}/dump.json").read_text(encoding="utf-8"))["data"]


def coverage(folder: Path, rank: int, step: int = 0) -> Mapping[str, Any]:
    """The coverage of one rank and step."""
    return json.loads((folder / f"dump/step{step}/rank{rank}/coverage.json").read_text(encoding="utf-8"))
