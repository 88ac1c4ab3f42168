"""What one recorded call costs in MindSpore's dynamic graphs, beside mindstudio-probe.

The two packages have the same name, so each runs with an interpreter of its own; both need mindspore 2.10.0 and numpy
1.26.4::

    python benchmarks/mindspore_overhead.py --peer-python peer/bin/python

Every number comes from a process of its own; tools take turns, and the smallest time counts. Kernels are launched
blocking, so that the time of each stays in its own call. Without a peer only our column is printed. ``--mechanisms``
compares the ways in which a call can be seen at all.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CALLS = 200
STEPS = 8
LEVELS = {"API, forward": "L1", "API, forward and backward": "L1", "Cell, forward and backward": "L0"}
MECHANISMS = ("nothing", "attributes replaced", "MsDispatchMode", "sys.setprofile")


def workload(name: str) -> tuple[Any, Callable[[], object]]:
    """The model of a workload, if it has one, and what makes CALLS calls."""
    import mindspore as ms
    import numpy as np
    from mindspore import Tensor, mint, nn

    x = Tensor(np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32))

    def chain(value: Tensor) -> Tensor:
        for _ in range(CALLS):
            value = mint.add(value, x)
        return value

    if name.startswith("Cell"):
        cells = nn.SequentialCell([nn.ReLU() for _ in range(CALLS)])
        gradient = ms.grad(cells)
        return cells, lambda: gradient(x)
    gradient = ms.grad(chain)
    return None, (lambda: gradient(x)) if "backward" in name else (lambda: chain(x))


def measure(tool: str, name: str) -> float:
    """Seconds per call, recording and writing included; ``tool`` is none, ours or peer."""
    import mindspore as ms

    ms.runtime.launch_blocking()
    model, work = workload(name)
    if tool == "none":
        return best(work)
    if tool == "peer":
        import numpy as np
        from mindspore import mint

        mint.norm = lambda tensor: ms.Tensor(np.linalg.norm(tensor.asnumpy()).astype(np.float32))  # no kernel on a CPU
    from msprobe.mindspore import PrecisionDebugger

    with tempfile.TemporaryDirectory() as folder:
        section = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
        config = {"task": "statistics", "dump_path": folder, "level": LEVELS[name], "statistics": section}
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(config))
        debugger = PrecisionDebugger(config_path=str(file))

        def step() -> None:
            debugger.start(model)
            work()
            debugger.stop()
            debugger.step()

        return best(step)


def best(action: Callable[[], object]) -> float:
    action()
    times = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return min(times) / CALLS


def measure_mechanism(mechanism: str) -> float:
    """Seconds per call of ``mint.add`` while a mechanism sees each call and records nothing."""
    import mindspore as ms

    ms.runtime.launch_blocking()
    _, work = workload("API, forward")
    with seeing(mechanism):
        return best(work)


@contextmanager
def seeing(mechanism: str) -> Iterator[None]:
    from mindspore import mint
    from mindspore.utils import MsDispatchMode

    class Mode(MsDispatchMode):
        def __ms_dispatch__(self, func: Any, args: Any, kwargs: Any = None) -> Any:
            return func(*args)

    if mechanism == "MsDispatchMode":
        with Mode():
            yield
    elif mechanism == "sys.setprofile":
        sys.setprofile(lambda frame, event, argument: None)
        yield
        sys.setprofile(None)
    else:
        original = mint.add
        if mechanism == "attributes replaced":

            def replacement(*args: Any, **kwargs: Any) -> Any:
                return original(*args, **kwargs)

            mint.add = replacement
        yield
        mint.add = original


def run(python: str, *arguments: str) -> float:
    """One measurement in a process of its own."""
    command = [python, __file__, "--one", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def smallest(rounds: int, variants: dict[str, tuple[str, ...]]) -> dict[str, float]:
    """Smallest time of each variant in microseconds; the variants take turns."""
    found: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, arguments in variants.items():
            found[name].append(run(*arguments) * 1e6)
    return {name: min(times) for name, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mechanisms", action="store_true")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        tool, name = options.one
        print(measure_mechanism(name) if tool == "mechanism" else measure(tool, name))
        return
    if options.mechanisms:
        found = smallest(options.rounds, {name: (sys.executable, "mechanism", name) for name in MECHANISMS})
        for name, value in found.items():
            print(f"{name:24} {value - found['nothing']:8.1f} us more per call")
        return
    for name in LEVELS:
        variants = {"none": (sys.executable, "none", name), "ours": (sys.executable, "ours", name)}
        if options.peer_python:
            variants["peer"] = (options.peer_python, "peer", name)
        found = smallest(options.rounds, variants)
        extra = {tool: found[tool] - found["none"] for tool in found if tool != "none"}
        ratio = f"  peer / ours {extra['peer'] / extra['ours']:.1f}" if "peer" in extra else ""
        columns = "  ".join(f"{tool} +{value:.0f} us" for tool, value in extra.items())
        print(f"{name:28} plain {found['none']:.0f} us  {columns}{ratio}")


if __name__ == "__main__":
    main()
