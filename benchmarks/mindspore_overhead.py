"""What one recorded call costs in MindSpore's dynamic graphs, beside mindstudio-probe.

The two packages have the same name, so each runs with an interpreter of its own; both need mindspore 2.10.0 and numpy
1.26.4::

    python benchmarks/mindspore_overhead.py --peer-python peer/bin/python

A process takes turns between recorded and plain repetitions, on one thread; what recording adds is the difference of
the smallest times. Processes of the two tools take turns, too, and the median over the rounds is printed, with the
smallest and the largest ratio of a round. Kernels are launched blocking, so that the time of each stays in its own
call. Without a peer only our column is printed. ``--mechanisms`` compares the ways in which a call can be seen at all.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

CALLS = 100
STEPS = 9
FORWARD, BACKWARD, CELL = "API, forward", "API, forward and backward", "Cell, forward and backward"
LEVELS = {FORWARD: "L1", BACKWARD: "L1", CELL: "L0"}
TRAINING = {f"{model}, {level}": level for model in ("convolutions", "transformer") for level in ("L0", "L1", "mix")}
MECHANISMS = ("nothing", "attributes replaced", "MsDispatchMode", "sys.setprofile")
MODELS_FOLDER = Path(__file__).resolve().parents[1] / "tests" / "mindspore"


def workload(name: str) -> tuple[Any, Callable[[], object]]:
    """The model of a workload, if it has one, and what makes CALLS calls, or one training step."""
    import mindspore as ms
    import numpy as np
    from mindspore import Tensor, mint, nn

    if name in TRAINING:
        return training(name.partition(",")[0])
    x = Tensor(np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32))

    def chain(value: Tensor) -> Tensor:
        for _ in range(CALLS):
            value = mint.add(value, x)
        return value

    if name == CELL:
        cells = nn.SequentialCell([nn.ReLU() for _ in range(CALLS)])
        gradient = ms.grad(cells)
        return cells, lambda: gradient(x)
    gradient = ms.grad(chain)
    return None, (lambda: gradient(x)) if name == BACKWARD else (lambda: chain(x))


def training(name: str) -> tuple[Any, Callable[[], object]]:
    """A model of tests/mindspore/dynamic_models.py, and what computes its loss and gradients."""
    sys.path.append(str(MODELS_FOLDER))
    import dynamic_models
    import mindspore as ms

    model, inputs = dynamic_models.MODELS[name]()
    model.set_train()
    gradient = ms.value_and_grad(model, None, model.trainable_params())
    return model, lambda: gradient(*inputs)


def measure(tool: str, name: str) -> tuple[float, float]:
    """Seconds per call or training step: without recording, and more with it, writing included."""
    import mindspore as ms

    ms.runtime.launch_blocking()
    model, work = workload(name)
    if tool == "peer":
        import numpy as np
        from mindspore import mint

        mint.norm = lambda tensor: ms.Tensor(np.linalg.norm(tensor.asnumpy()).astype(np.float32))  # no kernel on a CPU
    from msprobe.mindspore import PrecisionDebugger

    with tempfile.TemporaryDirectory() as folder:
        section = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
        level = (LEVELS | TRAINING)[name]
        config = {"task": "statistics", "dump_path": folder, "level": level, "statistics": section}
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(config))
        debugger = PrecisionDebugger(config_path=str(file))

        def step() -> None:
            debugger.start(model)
            work()
            debugger.stop()
            debugger.step()

        plain, recorded = (value / (1 if name in TRAINING else CALLS) for value in best(work, step))
        return plain, recorded - plain


def best(*actions: Callable[[], object]) -> list[float]:
    """Smallest time of each action; they take turns."""
    times: list[list[float]] = [[] for _ in actions]
    for action in actions:
        action()
    for _ in range(STEPS):
        for action, found in zip(actions, times, strict=True):
            begin = time.perf_counter()
            action()
            found.append(time.perf_counter() - begin)
    return [min(found) for found in times]


def measure_mechanism(mechanism: str) -> float:
    """Seconds per call of ``mint.add`` while a mechanism sees each call and records nothing."""
    import mindspore as ms

    ms.runtime.launch_blocking()
    _, work = workload("API, forward")
    with seeing(mechanism):
        return best(work)[0] / CALLS


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


def run(python: str, *arguments: str) -> list[float]:
    """One measurement in a process of its own, in microseconds."""
    command = [python, __file__, "--one", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOG_v": "3"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [float(word) * 1e6 for word in done.stdout.splitlines()[-1].split()]


def row(name: str, rounds: int, peer_python: str | None) -> str:
    """Measure a workload, the tools taking turns; one line of the table that docs/benchmarks.md has."""
    ours, peer = [], []
    for _ in range(rounds):
        ours.append(run(sys.executable, "ours", name))
        if peer_python:
            peer.append(run(peer_python, "peer", name))
    tools = [found for found in (ours, peer) if found]
    cells = [name, f"{median(plain for plain, _ in ours + peer):.0f}"]
    cells += [f"{median(more for _, more in found):.0f}" for found in tools]
    if peer:
        ratios = sorted(theirs[1] / mine[1] for mine, theirs in zip(ours, peer, strict=True))
        cells.append(f"{median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})")
    cells.append(" / ".join(f"{median(1 + more / plain for plain, more in found):.1f}" for found in tools))
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mechanisms", action="store_true")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        tool, name = options.one
        print(measure_mechanism(name) if tool == "mechanism" else " ".join(map(str, measure(tool, name))))
        return
    if options.mechanisms:
        print_mechanisms(options.rounds)
        return
    print("| workload | plain, us | msprobe adds | mindstudio-probe adds | ratio (range) | slower by (ours / theirs) |")
    for name in (*LEVELS, *TRAINING):
        print(row(name, options.rounds, options.peer_python), flush=True)


def print_mechanisms(rounds: int) -> None:
    found: dict[str, list[float]] = {name: [] for name in MECHANISMS}
    for _ in range(rounds):
        for name in MECHANISMS:
            found[name] += run(sys.executable, "mechanism", name)
    for name, times in found.items():
        more = median(seen - plain for seen, plain in zip(times, found["nothing"], strict=True))
        print(f"{name:24} {more:8.1f} us more per call")


if __name__ == "__main__":
    main()
