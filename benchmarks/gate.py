"""`make bench-gate`: fails on a clear regression of what recording costs; under two minutes.

Usage: python benchmarks/gate.py [--parts instructions,slow-down] [--cases ...] [--tools ...] [--update]

Two things that do not depend on how fast the machine is:

- bytecode instructions per recorded call (opcode_count.py), at most a fifth more than in gate_limits.json, or half more
  under another minor version of Python;
- the slow-down of a step of the GPT of width 256, smallest times of steps that take turns, one thread: at most what
  gate_limits.json says, and less than under DebugMode. A ratio above its limit is measured once more before it counts.

``--update`` writes the counted instructions to gate_limits.json: after a change that is meant to cost more.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from opcode_count import CASES
from step_tools import TOOLS
from step_turns import Plan, take_turns

HERE = Path(__file__).parent
LIMITS = HERE / "gate_limits.json"
MARGIN, OTHER_PYTHON_MARGIN = 1.2, 1.5
#: Instructions that may come on top of any count: calls that cost next to nothing would have no margin otherwise.
SLACK = 3
RIVAL = "DebugMode"


def counted(cases: Sequence[str]) -> dict[str, float]:
    """Instructions per call of each case, each in a process of its own, two at a time: load does not change a count."""

    def one(case: str) -> float:
        command = [sys.executable, "-W", "ignore", str(HERE / "opcode_count.py"), case]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{case}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        return float(done.stdout.splitlines()[-1])

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(cases, pool.map(one, cases), strict=True))


def too_many(found: dict[str, float], limits: dict[str, Any], python: str) -> list[str]:
    """A line for each case that executes clearly more instructions than it did."""
    margin = MARGIN if python == limits["python"] else OTHER_PYTHON_MARGIN
    lines = []
    for case, count in found.items():
        limit = limits["instructions"][case] * margin + SLACK
        if count > limit:
            lines.append(
                f"{case}: {count:.0f} instructions of Python, limit {limit:.0f}. "
                "Find what was added to the path of a call; if it is meant, run benchmarks/gate.py --update"
            )
    return lines


def too_slow(ratios: dict[str, float], limits: dict[str, float]) -> list[str]:
    """A line for each tool whose step takes too long, or that is behind DebugMode."""
    lines = [
        f"{tool}: a step takes x{ratio:.2f}, limit x{limits[tool]:.2f}"
        for tool, ratio in ratios.items()
        if tool in limits and ratio > limits[tool]
    ]
    if RIVAL in ratios and ratios.get("L1", 0) > ratios[RIVAL]:
        lines.append(f"L1: a step takes x{ratios['L1']:.2f}, more than x{ratios[RIVAL]:.2f} under {RIVAL}")
    return lines


def slow_downs(tools: Sequence[str], rounds: int) -> dict[str, float]:
    plan = Plan("gpt-256", rounds=rounds, seconds=35, threads=1, batch=len(tools))
    results, failures = take_turns(plan, [TOOLS[name] for name in tools], TOOLS["no tool"], {"own": sys.executable})
    if failures:
        raise RuntimeError("; ".join(failures))
    return {result.tool: result.best_ratio for result in results}


def check_slow_downs(tools: Sequence[str], rounds: int, limits: dict[str, float], *, once: bool) -> list[str]:
    """Measure; where something is too slow, measure once more (unless `once`) and keep the smaller ratio of each."""
    ratios = slow_downs(tools, rounds)
    if too_slow(ratios, limits) and not once:
        again = slow_downs(tools, rounds)
        ratios = {tool: min(ratio, again[tool]) for tool, ratio in ratios.items()}
    for tool, ratio in ratios.items():
        print(f"{tool:34} x{ratio:.2f}{f'  (limit x{limits[tool]:.2f})' if tool in limits else ''}", flush=True)
    return too_slow(ratios, limits)


def update(found: dict[str, float], limits: dict[str, Any]) -> None:
    python = ".".join(platform.python_version_tuple()[:2])
    counts = limits["instructions"] | {case: round(count) for case, count in found.items()}
    LIMITS.write_text(
        json.dumps({**limits, "python": python, "instructions": counts}, indent=1) + "\n", encoding="utf-8"
    )


def main(argv: Sequence[str] | None = None) -> int:
    def words(text: str) -> list[str]:
        return text.split(";") if ";" in text else [text]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    limits = json.loads(LIMITS.read_text(encoding="utf-8"))
    parser.add_argument("--parts", default="instructions,slow-down")
    parser.add_argument("--cases", type=words, default=list(CASES), help="of the instructions; several between ;")
    parser.add_argument(
        "--tools", type=words, default=[*limits["slow_down"], RIVAL], help="of the slow-downs, likewise"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--once", action="store_true", help="what is above its limit counts at once")
    parser.add_argument("--update", action="store_true", help="accept the counted instructions")
    options = parser.parse_args(argv)
    begin = time.monotonic()
    problems: list[str] = []
    if "instructions" in options.parts or options.update:
        found = counted(options.cases)
        for case, count in found.items():
            print(
                f"{case:34} {count:6.0f} instructions (before: {limits['instructions'].get(case, 'none')})", flush=True
            )
        if options.update:
            update(found, limits)
            return 0
        problems += too_many(found, limits, ".".join(platform.python_version_tuple()[:2]))
    if "slow-down" in options.parts:
        problems += check_slow_downs(options.tools, options.rounds, limits["slow_down"], once=options.once)
    for line in problems:
        print(f"REGRESSION {line}")
    print(f"{len(problems)} regressions, {time.monotonic() - begin:.0f} s")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
