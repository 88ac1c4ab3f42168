"""Three steps of a small training run, between and inside which something happens to the folder or the process."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = 3


def _network() -> tuple[Any, Any, Any]:
    import torch

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(8, 16)


def plain(_folder: Path) -> None:
    """Print the losses of the run without a debugger."""
    model, optimizer, batch = _network()
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    print(json.dumps(losses))


def disturbed(folder: Path, *, disturbance: str, **config: Any) -> None:
    """Print the losses of the run with a debugger, when something happens in the middle of step 1."""
    import torch
    from faulty_training import open_debugger

    before, inside = DISTURBANCES[disturbance]
    before(folder)
    model, optimizer, batch = _network()
    debugger = open_debugger(folder, **config)
    losses = []
    for step in range(STEPS):
        debugger.start(model)
        optimizer.zero_grad()
        loss = model(batch).square().sum()
        if step == 1:
            debugger.stop()
            inside(folder)
            debugger.start(model)
        loss.backward()
        optimizer.step()
        for _ in range(40):  # more than a small disk takes
            torch.sin(batch.repeat(8, 1))
        debugger.stop()
        debugger.step()
        losses.append(loss.item().hex())
    print(json.dumps(losses))


def _nothing(_folder: Path) -> None:
    pass


def _vanish(folder: Path) -> None:
    shutil.rmtree(folder / "dump")


def _read_only_parent(folder: Path) -> None:
    (folder / "dump").mkdir()
    (folder / "dump").chmod(0o500)


def _read_only_inside(folder: Path) -> None:
    for place in [folder / "dump", *(folder / "dump").rglob("*")]:
        place.chmod(0o500 if place.is_dir() else 0o400)


def _unwritable_files(folder: Path) -> None:
    for place in (folder / "dump" / "step1").rglob("*.json"):
        place.chmod(0)


def _file_limit(_folder: Path) -> None:
    """Let no file grow beyond a few KiB: what a full disk looks like where nothing can be mounted."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (24 * 1024, resource.RLIM_INFINITY))


def _no_handles(_folder: Path) -> None:
    """Leave the process no file handle that it could still open."""
    used = max(map(int, os.listdir("/proc/self/fd")))  # noqa: PTH208 - only names
    resource.setrlimit(resource.RLIMIT_NOFILE, (used, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with contextlib.suppress(OSError):
        while True:
            os.open(os.devnull, os.O_RDONLY)


def _no_threads(_folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))


def _linked_step(folder: Path) -> None:
    (folder / "dump").mkdir()
    (folder / "dump" / "step1").symlink_to(folder / "victim")
    (folder / "victim").mkdir()


def _linked_files(folder: Path) -> None:
    """Put a link in the place of every file of the open step."""
    (folder / "precious").write_text("precious")
    for place in (folder / "dump" / "step1").rglob("*.json"):
        place.unlink()
        place.symlink_to(folder / "precious")


Disturbance = Callable[[Path], None]
DISTURBANCES: dict[str, tuple[Disturbance, Disturbance]] = {
    "nothing": (_nothing, _nothing),
    "vanished": (_nothing, _vanish),
    "read-only from the start": (_read_only_parent, _nothing),
    "read-only": (_nothing, _read_only_inside),
    "unwritable files": (_nothing, _unwritable_files),
    "full": (_nothing, _nothing),
    "file size limit": (_nothing, _file_limit),
    "no file handles": (_nothing, _no_handles),
    "no threads": (_no_threads, _nothing),
    "linked step": (_linked_step, _nothing),
    "linked files": (_nothing, _linked_files),
}


def strange_names(folder: Path) -> None:
    """Record modules, keyword names and saved values whose names would lead out of the folder or are endless."""
    import torch
    from faulty_training import open_debugger

    class Strange(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in NAMES:
                self._modules[name] = torch.nn.Linear(4, 4)
                self._modules[name].register_parameter("weight", torch.nn.Parameter(torch.ones(4, 4)))

        def forward(self, value: Any, **named: Any) -> Any:
            for module in self._modules.values():
                value = module(value)
            return value + sum(named.values())

    outer = torch.nn.Sequential()
    outer.inner = Strange()
    outer.forward = lambda value: outer.inner(value, **dict.fromkeys(NAMES, value))  # type: ignore[method-assign]
    debugger = open_debugger(folder, level="mix", task="tensor")
    with debugger.capture(outer):
        outer(torch.ones(2, 4)).sum().backward()
        debugger.save({name: torch.ones(2) for name in NAMES}, "../../../saved")
    print(json.dumps(True))


NAMES = [
    "../../../evil",
    "/etc/evil",
    "a/b\\c",
    "\0",
    "x" * 10_000,
    "层" * 500,
    "..",
    "~",
    "%s{}",
    "line\nbreak",
    '"',
    "C:",
]


def many_steps(folder: Path, *, steps: int, wanted: list[int]) -> None:
    """Train on; print memory and file handles ten times on the way, and the seconds."""
    import time

    import torch
    from faulty_training import open_debugger

    model, batch = torch.nn.Linear(2, 2), torch.ones(1, 2)
    debugger = open_debugger(folder, level="mix", step=wanted, extra_info=True)
    seen = []
    began = time.monotonic()
    for step in range(steps):
        debugger.start(model)
        model(batch)
        debugger.stop()
        debugger.step()
        if (step + 1) % (steps // 10) == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            seen.append([pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd"))])  # noqa: PTH208
    print(json.dumps({"seen": seen, "seconds": time.monotonic() - began}))


def children(folder: Path, *, method: str) -> None:
    """Record in this process and in children of it, and read batches through workers."""
    import multiprocessing

    import torch
    from faulty_training import open_debugger

    model, _, batch = _network()
    debugger = open_debugger(folder, level="mix")
    data = torch.utils.data.DataLoader(
        _Data(), batch_size=4, num_workers=2 if method == "fork" else 1, multiprocessing_context=method
    )
    debugger.start(model)
    values = [value.sum().item() for value in data]
    model(batch).sum().backward()
    context = multiprocessing.get_context(method)
    made = [
        context.Process(target=_child, args=(str(folder), number)) for number in ((0, 1) if method == "fork" else (1,))
    ]
    for process in made:
        process.start()
    for process in made:
        process.join(60)
    model(batch).sum().backward()
    debugger.stop()
    debugger.step()
    print(json.dumps({"codes": [process.exitcode for process in made], "values": values}))


class _Data:
    """A data set whose items are made by torch calls, in the worker."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        import torch

        return torch.relu(torch.full((2,), float(index)))


def _child(folder: str, number: int) -> None:
    import torch

    sys.path.append(str(Path(__file__).parent))
    torch.relu(torch.ones(2))  # the debugger of the parent, if any, is not ours
    if number:
        from faulty_training import open_debugger

        place = Path(folder, f"child{number}")
        place.mkdir()
        debugger = open_debugger(place, level="L1")
        debugger.start()
        torch.relu(torch.ones(2))
        debugger.stop()
        debugger.step()


def one_of_many_ranks(_folder: Path, *, rank: int, ranks: int, shared: str) -> None:
    """Train as one rank, with an all-reduce in every step."""
    import torch
    import torch.distributed as dist
    from faulty_training import open_debugger

    dist.init_process_group("gloo", init_method=f"file://{shared}/meeting", rank=rank, world_size=ranks)
    model, optimizer, batch = _network()
    debugger = open_debugger(_folder, level="mix", task="tensor", dump_path=f"{shared}/dump")
    for _ in range(STEPS):
        with debugger.capture(model):
            optimizer.zero_grad()
            loss = model(batch + rank).square().sum()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
    norm = torch.stack([parameter.norm() for parameter in model.parameters()]).sum()
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(norm.item().hex()))
