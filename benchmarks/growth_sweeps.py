"""What recording costs as one thing grows: elements of a tensor, records, modules, steps, ranks.

Each sweep runs in a process of its own (``--one NAME``), because a process has one debugger. A point is what is paid
more with the tool, smallest of several times; steps with and without it take turns. Ranks share the processors, so
their cost is the processor time of all of them together; from two on, since a collective of one rank does nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fits import Growth, growth


@dataclass(frozen=True, slots=True)
class Sweep:
    """Sizes of the full run and of the quick one, and what the axes mean."""

    title: str
    size: str
    unit: str
    sizes: tuple[int, ...]
    quick: tuple[int, ...]


SWEEPS = {
    "elements": Sweep(
        "statistics of one tensor",
        "elements",
        "ms",
        (1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24),
        (1 << 14, 1 << 18),
    ),
    "records": Sweep("calls in one step", "records", "ms", (100, 200, 400, 800, 1600, 3200, 6400), (50, 200)),
    "modules": Sweep("modules of a model", "modules", "ms", (25, 50, 100, 200, 400, 800), (20, 80)),
    "steps": Sweep("steps of one run", "steps", "ms", (8, 16, 32, 64, 128, 256), (4, 16)),
    "ranks": Sweep("ranks of one run (gloo)", "ranks", "ms of processor time", (2, 4, 8), (1, 2)),
}


def debugger(folder: Path, **config: Any) -> Any:
    from msprobe.pytorch import PrecisionDebugger

    path = folder / "config.json"
    path.write_text(json.dumps({"task": "statistics", "dump_path": str(folder / "dump"), **config}))
    return PrecisionDebugger(config_path=path)


def extra(
    plain: Callable[[], object], recorded: Callable[[], object], repeats: int, clock: Callable[[], float]
) -> float:
    """Milliseconds that `recorded` takes longer than `plain`; smallest of `repeats` times each, taking turns."""
    best = [float("inf"), float("inf")]
    plain()
    recorded()
    for _ in range(repeats):
        for at, action in enumerate((plain, recorded)):
            begin = clock()
            action()
            best[at] = min(best[at], clock() - begin)
    return (best[1] - best[0]) * 1e3


def with_capture(tool: Any, model: Any, work: Callable[[], object]) -> Callable[[], None]:
    def step() -> None:
        with tool.capture(model):
            work()

    return step


def sweep_elements(folder: Path, sizes: list[int], repeats: int) -> list[float]:
    """Ten calls of neg, so ten inputs and ten results are read."""
    import torch

    tool = debugger(folder, level="L1")

    def calls(tensor: torch.Tensor) -> Callable[[], None]:
        out = torch.empty_like(tensor)

        def work() -> None:
            for _ in range(10):
                torch.neg(tensor, out=out)

        return work

    works = [calls(torch.randn(size)) for size in sizes]
    return [extra(work, with_capture(tool, None, work), repeats, time.perf_counter) for work in works]


def sweep_records(folder: Path, sizes: list[int], repeats: int) -> list[float]:
    import torch

    tool = debugger(folder, level="L1")
    x = torch.ones(64)

    def calls(count: int) -> Callable[[], None]:
        def work() -> None:
            value = x
            for _ in range(count):
                value = torch.add(value, x)

        return work

    works = [calls(size) for size in sizes]
    return [extra(work, with_capture(tool, None, work), repeats, time.perf_counter) for work in works]


def sweep_modules(folder: Path, sizes: list[int], repeats: int) -> list[float]:
    """A Sequential of linear layers, forward and backward, level L0."""
    import torch
    from torch import nn

    tool = debugger(folder, level="L0")
    x = torch.ones(4, 16)
    found = []
    for size in sizes:
        model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(size)))

        def work(model: nn.Module = model) -> None:
            model(x).sum().backward()

        found.append(extra(work, with_capture(tool, model, work), repeats, time.perf_counter))
    return found


def sweep_steps(folder: Path, sizes: list[int], repeats: int) -> list[float]:
    """Whole runs of so many steps, 20 calls each, one after another in the same dump folder."""
    import torch

    tool = debugger(folder, level="L1")
    x = torch.ones(64)

    def work() -> None:
        value = x
        for _ in range(20):
            value = torch.add(value, x)

    step = with_capture(tool, None, work)

    def times(action: Callable[[], object], count: int) -> Callable[[], None]:
        return lambda: [action() for _ in range(count)] and None

    return [extra(times(work, size), times(step, size), min(repeats, 3), time.perf_counter) for size in sizes]


def sweep_ranks(folder: Path, sizes: list[int], repeats: int) -> list[float]:
    found = []
    for world in sizes:
        place = folder / f"world{world}"
        place.mkdir()
        command = [sys.executable, "-W", "ignore", __file__, "--rank-of", str(world), "--repeats", str(repeats)]
        ranks = [
            subprocess.Popen([*command, "--folder", str(place), "--rank", str(rank)], stdout=subprocess.PIPE, text=True)
            for rank in range(world)
        ]
        found.append(sum(float(rank.communicate(timeout=300)[0].splitlines()[-1]) for rank in ranks))
    return found


def one_rank(folder: Path, world: int, rank: int, repeats: int) -> float:
    """One rank: an all_reduce after a small layer, forward and backward."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    own = folder / f"rank{rank}"
    own.mkdir()
    tool = debugger(own, level="mix", dump_path=str(folder / "dump"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
    x = torch.ones(16, 64)

    def work() -> None:
        model(x).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)

    found = extra(work, with_capture(tool, model, work), repeats, time.process_time)
    dist.destroy_process_group()
    return found


def measure(name: str, *, quick: bool) -> Growth:
    """Run one sweep in a process of its own and fit it.

    Raises
    ------
    RuntimeError
        The process failed; the last line of its standard error is given.
    """
    sweep = SWEEPS[name]
    sizes = sweep.quick if quick else sweep.sizes
    command = [sys.executable, "-W", "ignore", __file__, "--one", name, "--repeats", "2" if quick else "7"]
    done = subprocess.run([*command, "--sizes", *map(str, sizes)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"growth, {name}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    costs = json.loads(done.stdout.splitlines()[-1])
    return growth(sweep.title, sweep.size, sweep.unit, list(zip(sizes, costs, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", choices=SWEEPS)
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rank-of", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.rank_of:
        print(one_rank(chosen.folder, chosen.rank_of, chosen.rank, chosen.repeats))
        return
    if chosen.one:
        run = globals()[f"sweep_{chosen.one}"]
        with tempfile.TemporaryDirectory() as name:
            print(json.dumps(run(Path(name), chosen.sizes or list(SWEEPS[chosen.one].sizes), chosen.repeats)))
        return
    for name in SWEEPS:
        found = measure(name, quick=False)
        print(f"{found.title:28} {found.size}^{found.power.slope:.2f} (R² {found.power.r2:.3f})  {found.points}")


if __name__ == "__main__":
    main()
