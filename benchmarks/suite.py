"""`make bench`: what recording costs, beside other tools, in one run; writes JSON, tables and plots.

Usage: python benchmarks/suite.py [--quick] [--parts steps,growth] [--models gpt-256] [--tools L1,mix] [--publish] ...

Every measured tool runs in a process of its own and the steps take turns (step_turns.py). The results go to
``--output``: bench.json, bench.md and the two plots. ``--publish`` puts JSON and plots into docs/ and replaces what is
between ``<!-- bench:... -->`` comments in docs/benchmarks.md and README.md, where rows that were not measured stay as
they are; a quick run is never published.
mindstudio-probe and TorchLens need environments of their own: ``--peer-python`` and ``--torchlens-python``, or
MSPROBE_BENCH_PEER_PYTHON and MSPROBE_BENCH_TORCHLENS_PYTHON.
What could not be measured is named in the results, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import bench_tables
import growth_sweeps
from bench_plots import growth_plot, slow_down_plot
from bench_record import Bandwidth, CompareResult, Results, completed, machine, read_results, today, versions
from compare_speed import run, write_dump
from step_tools import TOOLS, Tool
from step_turns import Plan, take_turns

HERE = Path(__file__).parent
REPOSITORY = HERE.parent

FULL = [name for name, tool in TOOLS.items() if tool.kind not in ("none", "forward")]
FEW = [
    "L0",
    "L1",
    "mix",
    "structure",
    "L1 md5",
    "DebugMode",
    "mindstudio-probe L0",
    "mindstudio-probe L1",
    "mindstudio-probe mix",
]
COMPILED = ["L0", "L1", "mix", "after the last step"]
#: Chains of calls: without a model there is nothing to record at the levels of modules.
CHAINS: dict[str, list[str]] = {
    "add": ["L1", "L1 md5", "nan_check", "DebugMode", "mindstudio-probe L1"],
    "add-backward": ["L1", "DebugMode", "mindstudio-probe L1"],
    "identity": ["L0", "structure", "after the last step", "DebugMode", "mindstudio-probe L0"],
}

#: Model, tools, most rounds, seconds of stepping. At width 768 a step of task tensor writes 2.5 GB, so it is left out.
STEPS: dict[str, tuple[list[str], int, float]] = {
    "gpt-256": (FULL, 15, 90),
    "gpt-768": ([name for name in FULL if name != "tensor"], 9, 170),
    "llama": ([*FEW, "TorchLens (forward)"], 9, 40),
    "conv": ([*FEW, "TorchLens (forward)"], 9, 40),
    "tiny": (FULL, 3, 5),
}
PARTS = ("kernels", "calls", "steps", "compiled", "growth", "compare")
DEFAULT_MODELS = "gpt-256,gpt-768,llama,conv"


def pythons(options: argparse.Namespace) -> dict[str, str]:
    """Interpreters of the environments that are there."""
    found = {"own": sys.executable, "peer": options.peer_python, "torchlens": options.torchlens_python}
    return {name: path for name, path in found.items() if path}


def plan_of(options: argparse.Namespace, model: str, rounds: int, seconds: float, backend: str = "") -> Plan:
    if options.quick:
        rounds, seconds = 3, 1.0
    return Plan(model, backend, options.rounds or rounds, seconds, options.threads, folder=options.folder)


def measure_steps(options: argparse.Namespace, results: Results, plan: Plan, names: Sequence[str]) -> None:
    """One model with the tools of these names that were chosen and have an interpreter, each beside its baseline."""
    here = pythons(options)
    wanted = [TOOLS[name] for name in names if not options.tools or name in options.tools]
    groups: dict[str, list[Tool]] = {}
    for tool in wanted:
        if tool.environment in here:
            groups.setdefault(tool.baseline, []).append(tool)
        else:
            results.left_out.append(f"{plan.model}: {tool.name}, no interpreter of its own was given")
    stepping = sum(len(group) for group in groups.values())
    for baseline, group in groups.items():
        share = replace(plan, seconds=plan.seconds * len(group) / stepping)
        try:
            found, failures = take_turns(share, group, TOOLS[baseline], here)
        except RuntimeError as error:
            failures, found = [f"{plan.model}: {error}"], []
        results.steps += found
        results.problems += failures
        for result in found:
            say(f"{result.model} {result.backend:10} {result.tool:24} x{result.ratio.median:.2f}")


def part_steps(options: argparse.Namespace, results: Results) -> None:
    for model in options.models:
        if time.monotonic() > options.deadline:
            results.left_out.append(f"{model}: after {options.minutes:g} minutes")
            continue
        names, rounds, seconds = STEPS[model]
        measure_steps(options, results, plan_of(options, model, rounds, seconds), names)


def part_compiled(options: argparse.Namespace, results: Results) -> None:
    """The first of the models, under torch.compile: every process compiles its own, so tools are few."""
    model = options.models[0]
    measure_steps(options, results, plan_of(options, model, 11, 40, options.backend), COMPILED)


def part_calls(options: argparse.Namespace, results: Results) -> None:
    for model, names in CHAINS.items():
        measure_steps(options, results, plan_of(options, model, 15, 15), names)


def part_growth(options: argparse.Namespace, results: Results) -> None:
    for name in ("records",) if options.quick else growth_sweeps.SWEEPS:
        try:
            found = growth_sweeps.measure(name, quick=options.quick)
        except (RuntimeError, ValueError) as error:
            results.problems.append(str(error))
            continue
        say(f"growth: {found.title}, {found.size}^{found.power.slope:.2f}, R² {found.power.r2:.3f}")
        results.growth.append(found)
        if not (found.at_most_linear or options.quick):
            results.problems.append(f"{found.title}: grows with {found.size}^{found.power.slope:.2f}, more than linear")


def part_kernels(options: argparse.Namespace, results: Results) -> None:
    """The pytest-benchmark groups of test_bandwidth.py."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "bandwidth.json")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "test_bandwidth.py")]
        command += [f"--benchmark-json={report}", f"--benchmark-max-time={0.02 if options.quick else 0.5}"]
        command += ["-k", "64 and KiB", "--benchmark-min-rounds=1"] if options.quick else []
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
        if done.returncode:
            results.problems.append(f"kernels: {(done.stdout.strip().splitlines() or ['pytest said nothing'])[-1]}")
            return
        for entry in json.loads(report.read_text())["benchmarks"]:
            about, times = entry["extra_info"], entry["stats"]
            speeds = [about["bytes"] / times[which] / 1e9 for which in ("median", "min")]
            results.bandwidth.append(Bandwidth(about["name"], about["size"], *speeds))
    say(f"kernels: {len(results.bandwidth)} measured")


def part_compare(options: argparse.Namespace, results: Results) -> None:
    """`msprobe compare` of two dumps of transformer records that differ in every value, on one core."""
    count = 300 if options.quick else 30_000
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        root = Path(name)
        golden = write_dump(root / "golden", count, 0.0, extra=False)
        target = write_dump(root / "target", count, 1e-6, extra=False)
        size = (golden / "step0" / "rank0" / "dump.json").stat().st_size
        pair = ["compare", "-tp", str(target), "-gp", str(golden), "-o", str(root / "ours"), "--jobs", "1"]
        commands = {"msprobe": [sys.executable, "-m", "msprobe", *pair]}
        if "peer" in pythons(options):
            tool = [options.peer_python, str(Path(options.peer_python).parent / "msprobe"), "compare"]
            places = ["-tp", str(target / "step0"), "-gp", str(golden / "step0"), "-o", str(root / "peer")]
            commands["mindstudio-probe"] = [*tool, *places]
        for title, command in commands.items():
            wall, cpu, peak, code = run(command)
            results.compare.append(CompareResult(title, count, size, wall, cpu, peak))
            say(f"compare, {title}: {wall:.1f} s")
            if code not in (0, 1):  # 1: differences were found
                results.problems.append(f"compare, {title}: exit code {code}")


ACTIONS: dict[str, Callable[[argparse.Namespace, Results], None]] = {
    "kernels": part_kernels,
    "calls": part_calls,
    "steps": part_steps,
    "compiled": part_compiled,
    "growth": part_growth,
    "compare": part_compare,
}


def say(line: str) -> None:
    print(line, flush=True)


def write(results: Results, output: Path, *, publish: bool) -> None:
    """JSON, tables and plots into `output`; with `publish` also the blocks of docs/benchmarks.md and README.md."""
    output.mkdir(parents=True, exist_ok=True)
    (output / "bench.json").write_text(json.dumps(asdict(results), indent=1) + "\n", encoding="utf-8")
    blocks = bench_tables.blocks(results)
    if results.steps:
        (output / "bench_steps.svg").write_text(slow_down_plot(results.steps), encoding="utf-8")
    if results.growth:
        (output / "bench_growth.svg").write_text(growth_plot(results.growth), encoding="utf-8")
    if not publish:
        (output / "bench.md").write_text("\n\n".join(blocks.values()) + "\n", encoding="utf-8")
    else:
        for page in (REPOSITORY / "docs" / "benchmarks.md", REPOSITORY / "README.md"):
            page.write_text(bench_tables.replace_blocks(page.read_text(encoding="utf-8"), blocks), encoding="utf-8")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def words(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    environ = os.environ.get
    parser.add_argument("--parts", type=words, default=list(PARTS), help=f"of {','.join(PARTS)}")
    parser.add_argument("--models", type=words, default=words(DEFAULT_MODELS), help=f"of {','.join(STEPS)}")
    parser.add_argument("--tools", type=words, help=f"of {', '.join(FULL)}")
    parser.add_argument("--rounds", type=int, help="steps of each tool, at most")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch")
    parser.add_argument("--backend", default="aot_eager", help="of torch.compile, for the part compiled")
    parser.add_argument(
        "--minutes", type=float, default=17, help="models and parts that would begin later are left out"
    )
    parser.add_argument("--folder", type=Path, help="write the dumps below this folder, e.g. /dev/shm")
    parser.add_argument("--peer-python", default=environ("MSPROBE_BENCH_PEER_PYTHON"))
    parser.add_argument("--torchlens-python", default=environ("MSPROBE_BENCH_TORCHLENS_PYTHON"))
    parser.add_argument("--quick", action="store_true", help="does it run? three steps each, small sizes")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "build" / "bench")
    parser.add_argument("--publish", action="store_true", help="into docs/, and the blocks of its pages")
    options = parser.parse_args(argv)
    for given, known in ((options.parts, PARTS), (options.models, STEPS), (options.tools or [], FULL)):
        for word in given:
            if word not in known:
                parser.error(f"{word!r} is not one of {', '.join(known)}")
    for path in (options.peer_python, options.torchlens_python):
        if path and not Path(path).is_file():
            parser.error(f"no interpreter at {path}: make the environment, or leave the option out")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    begin = time.monotonic()
    options.deadline = begin + options.minutes * 60
    results = Results(options.quick, today(), machine(options.threads), versions(pythons(options)))
    for part in PARTS:
        if part not in options.parts:
            continue
        if time.monotonic() > options.deadline:
            results.left_out.append(f"{part}: after {options.minutes:g} minutes")
            continue
        ACTIONS[part](options, results)
        results.dates[part] = results.date
        results.seconds[part] = round(time.monotonic() - begin - sum(results.seconds.values()), 1)
    results.problems = [re.sub(r"/\S+", "(path)", line) for line in results.problems]  # published: no paths
    publish = options.publish and not options.quick
    published = REPOSITORY / "docs" / "bench.json"
    if publish and published.exists():
        results = completed(results, read_results(published))
    write(results, REPOSITORY / "docs" if publish else options.output, publish=publish)
    for line in (*(f"left out: {line}" for line in results.left_out), *results.problems):
        say(line)
    say(f"{time.monotonic() - begin:.0f} s: {results.seconds}")
    return 1 if results.problems else 0


if __name__ == "__main__":
    sys.exit(main())
