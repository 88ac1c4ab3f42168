"""What a record costs beyond reading its tensors, in microseconds: names, stacks, the graph walk, JSON, files.

Usage: python benchmarks/record_cost.py [--repeats 60]; prints a table.

Chains of ``torch.add`` on 64 elements, a short one and a long one, run with and without the tool in turn. The longer
chain's further calls are the further records, so what a step costs once is not in it; files are. What the same tensors
cost when nothing but their statistics is computed, by the same kernel, is taken off. Each row has a process of its own,
with one thread; the smallest times count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from step_models import Workload, chain, module_chain
from step_tools import TOOLS, step_with

#: Chain of so many calls, level, records per call, tensors read per call.
CASES: dict[str, tuple[Callable[[int], Workload], str, int, int]] = {
    "API call, forward": (lambda calls: chain(gradient=False, calls=calls), "L1", 1, 3),
    "API call, forward and backward": (lambda calls: chain(gradient=True, calls=calls), "L1", 2, 5),
    "module call, forward": (module_chain, "L0", 1, 2),
}
SHORT, LONG = 200, 1200
KERNELS = ("native", "torch")


def smallest(action: Callable[[], object], repeats: int) -> float:
    """Seconds that `action` takes at least."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return min(times)


def statistics_of_one() -> Callable[[], object]:
    """What computes the statistics of a tensor as the records have them, without making an entry of them."""
    import torch

    from msprobe.measure.backends import native_module
    from msprobe.measure.cpu import reduce_cpu, reduce_native
    from msprobe.measure.dtypes import PLAIN_DTYPES
    from msprobe.measure.quiet import Quiet

    tensor = torch.ones(64)
    info = PLAIN_DTYPES[torch.float32]
    native = native_module()
    if native is not None:
        return lambda: reduce_native(native, tensor, info)

    def by_torch() -> None:
        with Quiet():
            reduce_cpu(tensor, info)

    return by_torch


def measure(case: str, repeats: int) -> dict[str, float]:
    """Microseconds per record: in all, of the statistics alone, and the difference."""
    import torch

    torch.set_num_threads(1)
    make, level, records, tensors = CASES[case]
    one = statistics_of_one()
    with tempfile.TemporaryDirectory() as folder:
        plain = {calls: make(calls) for calls in (SHORT, LONG)}
        turn = Workload(None, lambda: None)  # whichever chain has its turn: one process has one debugger
        debugger_step = step_with(TOOLS[level].kind, TOOLS[level].config, turn, Path(folder))
        times: dict[tuple[int, bool], list[float]] = {}
        for _ in range(repeats):
            for calls, workload in plain.items():
                turn.model, turn.step = workload.model, workload.step
                for recorded in (False, True):
                    action = debugger_step if recorded else workload.step
                    times.setdefault((calls, recorded), []).append(smallest(action, 1))
    best = {key: min(found) for key, found in times.items()}
    extra = {calls: best[calls, True] - best[calls, False] for calls in (SHORT, LONG)}
    reading = smallest(lambda: [one() for _ in range(100)], repeats) / 100 * tensors / records
    total = (extra[LONG] - extra[SHORT]) / ((LONG - SHORT) * records)
    return {"total": total * 1e6, "statistics": reading * 1e6, "beyond": (total - reading) * 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--one", help="measure this case in this process and print JSON")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.repeats)))
        return
    print("| record | kernel | us in all | us of statistics | us beyond |\n|---|---|---|---|---|")
    for case in CASES:
        for kernel in KERNELS:
            environment = os.environ | {"MSPROBE_NO_NATIVE": "1" if kernel == "torch" else "0", "OMP_NUM_THREADS": "1"}
            command = [sys.executable, __file__, "--one", case, "--repeats", str(arguments.repeats)]
            found = json.loads(subprocess.check_output(command, env=environment, text=True).splitlines()[-1])
            print(f"| {case} | {kernel} | {found['total']:.1f} | {found['statistics']:.1f} | {found['beyond']:.1f} |")


if __name__ == "__main__":
    main()
