"""What a run of the suite found, as records: bench.json is these, and the tables and plots are made from them."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

from fits import Growth
from pydantic import TypeAdapter
from step_turns import StepResult

_ASK_VERSIONS = """
import importlib.metadata as m, json, sys
def v(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
print(json.dumps({name: v(name) for name in sys.argv[1:]}))
"""
#: Whose version is asked of which interpreter.
_PACKAGES = {"own": ["torch", "transformers", "numpy"], "peer": ["mindstudio-probe"], "torchlens": ["torchlens"]}


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """GB (10^9 bytes) read per second by one kernel on one size."""

    name: str
    size: str
    median: float
    best: float


@dataclass(frozen=True, slots=True)
class CompareResult:
    """`compare` of two dumps: seconds, and peak memory in MiB."""

    tool: str
    records: int
    bytes: int
    wall: float
    cpu: float
    peak_mib: float


@dataclass(slots=True)
class Results:
    """Everything of one run; `problems` make the run fail, `left_out` do not.

    ``seconds`` and ``dates`` say of each part how long it took, and when it was measured.
    """

    quick: bool
    date: str
    machine: dict[str, str | int | float]
    versions: dict[str, str | None]
    steps: list[StepResult] = field(default_factory=list)
    growth: list[Growth] = field(default_factory=list)
    bandwidth: list[Bandwidth] = field(default_factory=list)
    compare: list[CompareResult] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    dates: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def completed(found: Results, earlier: Results) -> Results:
    """What is published after a run that measured less than an earlier one: its rows, and the others as they were."""
    dates = earlier.dates or dict.fromkeys(earlier.seconds, earlier.date)
    rows = {(step.model, step.backend, step.tool): step for step in (*earlier.steps, *found.steps)}
    return replace(
        found,
        versions=earlier.versions | {name: version for name, version in found.versions.items() if version},
        steps=[*rows.values()],
        growth=found.growth or earlier.growth,
        bandwidth=found.bandwidth or earlier.bandwidth,
        compare=found.compare or earlier.compare,
        seconds=earlier.seconds | found.seconds,
        dates=dates | found.dates,
    )


def read_results(path: Path) -> Results:
    """The results in a bench.json."""
    return TypeAdapter(Results).validate_json(path.read_bytes())


def today() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d")


def machine(threads: int) -> dict[str, str | int | float]:
    """Processor, cores, memory, system and load: no name of the machine, no path."""
    information = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = [line.partition(":")[2].strip() for line in information if line.startswith("model name")]
    flags = next((line.split() for line in information if line.startswith("flags")), [])
    widest = next((name for name in ("avx512f", "avx2") if name in flags), platform.machine())
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": f"{models[0] if models else platform.machine()} ({widest})",
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", platform.system()),
        "threads": threads,
        "load": round(os.getloadavg()[0], 1),
    }


def versions(pythons: dict[str, str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version(), "msprobe": metadata.version("msprobe")}
    for environment, python in pythons.items():
        command = [python, "-c", _ASK_VERSIONS, *_PACKAGES[environment]]
        found |= json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found
