"""Cost of recording a compiled model: compile time, and a training step with and without probes.

Usage: python benchmarks/compile_overhead.py [--rounds 15] [--threads 2] [--only "L0;L1"] [--json FILE] [--backend NAME]

Each configuration has a process and a compiler cache of its own. Two models of the same source run there in turn: one
is never recorded; the other is recorded in every second of its steps, so that a step between two of them tells what is
left when recording is off. A step ends with everything written. Ratios are medians of ratios of neighbouring steps.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

CONFIGURATIONS: dict[str, dict[str, object]] = {
    "L0": {"level": "L0"},
    "L1": {"level": "L1"},
    "mix": {"level": "mix"},
    "L1, exact": {"level": "L1", "exact": True},
}
COLUMNS = ("configuration", "compile", "compile on", "never ms", "off ms", "on ms", "off/never", "on/never", "probes")


def load_model(name: str) -> ModuleType:
    """The model's source under another name: functions of its own, which Dynamo does not take for the same."""
    found = importlib.util.spec_from_file_location(name, Path(__file__).with_name("gpt.py"))
    assert found is not None
    assert found.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def measure(config: dict[str, object], rounds: int, threads: int, backend: str) -> dict[str, float]:
    """Run in a process of its own: seconds to compile, milliseconds of a step, ratios."""
    import torch
    import torch._dynamo

    from msprobe.pytorch import PrecisionDebugger

    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/inductor"
        path = Path(folder, "config.json")
        path.write_text(json.dumps({"dump_path": f"{folder}/dump", **config}))
        debugger = PrecisionDebugger(path)
        steps = []
        for name in ("gpt_never", "gpt_recorded"):
            source = load_model(name)
            step = source.TrainingStep(source.Shape(layers=2, width=128, batch=4, tokens=64))
            step.model.compile(backend=backend)
            steps.append(step)
        never, recorded = steps

        def timed(step: object, *, on: bool) -> float:
            begin = time.perf_counter()
            if on:
                with debugger.capture(step.model):  # type: ignore[attr-defined]
                    step()  # type: ignore[operator]
            else:
                step()  # type: ignore[operator]
            return time.perf_counter() - begin

        compiling = timed(recorded, on=False), timed(recorded, on=True)
        timed(never, on=False)
        for _ in range(2):
            timed(recorded, on=True)
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        rows = [(timed(never, on=False), timed(recorded, on=False), timed(recorded, on=True)) for _ in range(rounds)]
        if torch._dynamo.utils.counters["stats"]["unique_graphs"] != graphs:
            raise SystemExit("something was compiled again")
        coverage = json.loads(next(Path(folder).glob("dump/step1/*/coverage.json")).read_text())
    probes = sum(graph["probes"] for graph in coverage["notes"]["compiled"]["graphs"])
    never_ms, off_ms, on_ms = (statistics.median(column) * 1e3 for column in zip(*rows, strict=True))
    return {
        "compile_s": compiling[0],
        "compile_probed_s": compiling[1],
        "never_ms": never_ms,
        "off_ms": off_ms,
        "on_ms": on_ms,
        "off_ratio": statistics.median(off / base for base, off, _ in rows),
        "on_ratio": statistics.median(on / base for base, _, on in rows),
        "probes": probes,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=15)
    arguments.add_argument("--threads", type=int, default=2, help="threads of torch")
    arguments.add_argument("--backend", default="inductor")
    arguments.add_argument("--only", default="", help="configurations, separated by semicolons")
    arguments.add_argument("--json", type=Path, help="write the results to this file")
    arguments.add_argument("--one", help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.one:
        print(json.dumps(measure(CONFIGURATIONS[chosen.one], chosen.rounds, chosen.threads, chosen.backend)))
        return
    print("{:14} {:>8} {:>10} {:>9} {:>8} {:>8} {:>10} {:>9} {:>7}".format(*COLUMNS))
    results = {}
    for name in chosen.only.split(";") if chosen.only else CONFIGURATIONS:
        command = [sys.executable, "-W", "ignore", __file__, "--one", name, "--rounds", str(chosen.rounds)]
        command += ["--threads", str(chosen.threads), "--backend", chosen.backend]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{name}: {done.stderr.strip().splitlines()[-1] if done.stderr else 'failed'}")
        row = results[name] = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{name:14} {row['compile_s']:7.1f}s {row['compile_probed_s']:9.1f}s {row['never_ms']:9.2f} "
            f"{row['off_ms']:8.2f} {row['on_ms']:8.2f} {row['off_ratio']:10.3f} {row['on_ratio']:9.3f} "
            f"{row['probes']:7}",
            flush=True,
        )
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
