"""Slow-down of a training step: with and without the tool, alternating in one process per configuration.

Usage: python benchmarks/overhead.py [--rounds 15] [--threads 2] [--only L1,mix] [--json FILE] [--folder DIR]

Everything the tool does is inside the timed step: recording, closing the step, writing every file. A step of task
tensor writes 282 MB, which stay until the end. Take so few rounds that the disk need not keep up (the system starts to
wait for it at about a fifth of the memory), and a file system where few files were removed a moment ago: ext4 makes
new ones slowly for minutes after that, because it avoids their inodes.
"cpu" compares processor time of all threads instead of
elapsed time, which on a loaded machine says more; take it with --threads 1, since waiting OpenMP threads use the
processor, too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIGURATIONS: dict[str, dict[str, object]] = {
    "L0": {"level": "L0"},
    "L1": {"level": "L1"},
    "mix": {"level": "mix"},
    "structure": {"level": "mix", "task": "structure"},
    "L1 md5": {"level": "L1", "statistics": {"summary_mode": "md5"}},
    "L1 xor": {"level": "L1", "statistics": {"summary_mode": "xor"}},
    "L1 hash": {"level": "L1", "statistics": {"summary_mode": "hash"}},
    "tensor": {"level": "L1", "task": "tensor"},
    "async": {"level": "L1", "async_dump": True},
    "async tensor": {"level": "L1", "task": "tensor", "async_dump": True, "tensor": {"list": ["."]}},
    "after the last step": {"level": "mix", "step": [0]},
}


def measure(config: dict[str, object], rounds: int, threads: int, place: Path | None) -> dict[str, object]:
    """Run in a process of its own: medians in milliseconds and the ratio of a step."""
    import torch
    from gpt import TrainingStep

    from msprobe.pytorch import PrecisionDebugger

    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory(dir=place) as folder:
        path = Path(folder, "config.json")
        path.write_text(json.dumps({"task": "statistics", "dump_path": f"{folder}/dump", **config}))
        debugger = PrecisionDebugger(path)
        step = TrainingStep()

        def timed(*, recorded: bool) -> tuple[float, float]:
            begin, cpu = time.perf_counter(), time.process_time()
            if recorded:
                with debugger.capture(step.model):
                    step()
            else:
                step()
            return (time.perf_counter() - begin) * 1e3, (time.process_time() - cpu) * 1e3

        for _ in range(2):
            timed(recorded=False)
            timed(recorded=True)
        pairs = [(timed(recorded=False), timed(recorded=True)) for _ in range(rounds)]
        coverages = sorted(Path(folder).glob("dump/step*/*/coverage.json"))
        coverage = json.loads(coverages[0].read_text()) if coverages else {}
    without = statistics.median(a for (a, _), _ in pairs)
    with_tool = statistics.median(b for _, (b, _) in pairs)
    ratios = sorted(b / a for (a, _), (b, _) in pairs)
    records = coverage.get("records", 0)
    return {
        "without_ms": without,
        "with_ms": with_tool,
        "ratio": statistics.median(ratios),
        "ratio_quartiles": [ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]],
        "cpu_ratio": statistics.median(b / a for (_, a), (_, b) in pairs),
        "records": records,
        "us_per_record": (with_tool - without) * 1e3 / records if records else None,
        "kernels": coverage.get("kernels"),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=15)
    arguments.add_argument("--threads", type=int, default=2, help="threads of torch")
    arguments.add_argument("--folder", type=Path, help="write the dumps in this folder, e.g. /dev/shm")
    arguments.add_argument("--only", default="", help="comma-separated names of configurations")
    arguments.add_argument("--json", type=Path, help="write the results to this file")
    arguments.add_argument("--one", help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.one:
        print(json.dumps(measure(CONFIGURATIONS[chosen.one], chosen.rounds, chosen.threads, chosen.folder)))
        return
    results = {}
    names = chosen.only.split(",") if chosen.only else list(CONFIGURATIONS)
    columns = ("configuration", "without", "with", "ratio", "quartiles", "cpu", "records", "us/record")
    print("{:22} {:>9} {:>9} {:>7} {:>15} {:>7} {:>8} {:>10}".format(*columns))
    for name in names:
        command = [sys.executable, "-W", "ignore", __file__, "--one", name, "--rounds", str(chosen.rounds)]
        command += ["--threads", str(chosen.threads)]
        command += ["--folder", str(chosen.folder)] if chosen.folder else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{name}: {done.stderr.strip().splitlines()[-1] if done.stderr else 'failed'}")
        result = results[name] = json.loads(done.stdout.splitlines()[-1])
        low, high = result["ratio_quartiles"]
        per_record = f"{result['us_per_record']:10.1f}" if result["us_per_record"] is not None else " " * 10
        print(
            f"{name:22} {result['without_ms']:7.1f}ms {result['with_ms']:7.1f}ms {result['ratio']:7.3f} "
            f"{low:7.3f}-{high:7.3f} {result['cpu_ratio']:7.3f} {result['records']:8} {per_record}",
            flush=True,
        )
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
