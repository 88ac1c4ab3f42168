"""Run the collectives of torch.distributed on two ranks under msprobe and under mindstudio-probe; compare the dumps.

::

    python tools/parity_ranks.py --peer-python peer/bin/python

Every ``Distributed`` record that the peer writes must be there under the same name with the same content, except for
what ``EXPECTED`` explains (keys of docs/limitations.md). The exit code is 1 if something else differs, 2 if a run has
failed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from peer_python import add_peer_python

from msprobe.pytorch import PrecisionDebugger

EXPECTED = {
    "Distributed.isend.0.forward": "waited-outputs",
    "Distributed.irecv.0.forward": "waited-outputs",
    "Distributed.batch_isend_irecv.0.forward": "waited-outputs",
}
SECONDS = 120


def main() -> int:
    """Compare, or be one of the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_peer_python(parser, required=False)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        return run_both_ranks(options.run)
    if not options.peer_python:
        parser.error("--peer-python is needed")
    with tempfile.TemporaryDirectory(prefix="parity_ranks_") as name:
        dumps = {}
        for tool, python in (("ours", sys.executable), ("peer", options.peer_python)):
            folder = Path(name) / tool
            folder.mkdir()
            done = subprocess.run([python, __file__, "--run", str(folder)], capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"the run under {python} failed:\n{done.stderr[-3000:]}")
                return 2
            dumps[tool] = [_read(folder, rank) for rank in range(2)]
    unexplained = [line for rank in range(2) for line in compare(rank, dumps["ours"][rank], dumps["peer"][rank])]
    print("\n".join(unexplained) or "no unexplained difference")
    return int(bool(unexplained))


def compare(rank: int, ours: dict[str, Any], peer: dict[str, Any]) -> list[str]:
    """What differs in the records that the peer has written, one line each."""
    found = []
    for name, record in peer.items():
        mine = ours.get(name)
        if mine == record:
            continue
        reason = EXPECTED.get(name) or (
            "object-collectives" if mine is None and name.startswith("Distributed.") else ""
        )
        print(f"rank {rank}: {name}: {reason or 'UNEXPLAINED'}")
        if not reason:
            found.append(f"rank {rank}: {name}: peer {json.dumps(record)[:300]}, ours {json.dumps(mine)[:300]}")
    return found


def _read(folder: Path, rank: int) -> dict[str, Any]:
    data = json.loads((folder / f"dump/step0/rank{rank}/dump.json").read_text(encoding="utf-8"))["data"]
    return {name: record for name, record in data.items() if name.startswith("Distributed.")}


def run_both_ranks(folder: Path) -> int:
    """Train nothing, communicate: two processes, forked after the imports."""
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=communicate, args=(rank, folder)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(SECONDS)
        if process.is_alive():
            process.kill()
    return int(any(process.exitcode for process in ranks))


def communicate(rank: int, folder: Path) -> None:
    """Every collective that the peer records, sync and async."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    config = folder / f"config{rank}.json"
    settings = {"task": "statistics", "level": "L1", "dump_path": str(folder / "dump"), "rank": [], "step": []}
    statistics = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    config.write_text(json.dumps({**settings, "statistics": statistics}), encoding="utf-8")
    debugger = PrecisionDebugger(config_path=str(config))
    debugger.start()
    value, other = torch.ones(4) * (rank + 1), 1 - rank
    dist.all_reduce(value)
    dist.all_reduce(value, op=dist.ReduceOp.MAX, async_op=True).wait()
    dist.all_reduce(value, group=dist.new_group([0, 1]))
    dist.all_gather([torch.zeros(4), torch.zeros(4)], value)
    dist.all_gather_into_tensor(torch.zeros(8), value)
    dist.all_gather_into_tensor(torch.zeros(8), value, async_op=True).wait()
    dist.reduce_scatter_tensor(torch.zeros(2), value, op=dist.ReduceOp.MAX)
    dist.reduce_scatter(torch.zeros(2), [torch.ones(2), torch.ones(2)])
    dist.broadcast(value, src=0)
    dist.broadcast(value, 0, async_op=True).wait()
    dist.all_to_all_single(torch.zeros(4), value)
    dist.all_to_all([torch.zeros(2), torch.zeros(2)], [torch.ones(2), torch.ones(2)])
    dist.gather(value, [torch.zeros(4), torch.zeros(4)] if rank == 0 else None, dst=0)
    dist.scatter(value, [torch.ones(4), torch.ones(4)] if rank == 0 else None, src=0)
    dist.reduce(value, dst=1)
    if rank == 0:
        dist.send(value, 1)
        dist.isend(value, dst=1).wait()
    else:
        dist.recv(value, 0)
        dist.irecv(value, src=0).wait()
    exchange = [dist.P2POp(dist.isend, value, other), dist.P2POp(dist.irecv, torch.zeros(4), other)]
    for work in dist.batch_isend_irecv(exchange):
        work.wait()
    everyone: list[Any] = [None, None]
    dist.all_gather_object(everyone, rank)
    debugger.stop()
    debugger.step()


if __name__ == "__main__":
    sys.exit(main())
