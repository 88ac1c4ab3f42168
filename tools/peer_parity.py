"""Run the same training script under msprobe and under mindstudio-probe, and compare what the two have written.

Rule: every record that mindstudio-probe writes for a script, we write under the same name with the same statistics.

The peer needs an environment of its own (both packages are called ``msprobe``) with the same versions of torch and
transformers::

    python -m venv peer && peer/bin/pip install mindstudio-probe transformers
    python tools/peer_parity.py --peer-python peer/bin/python
    python tools/peer_parity.py --peer-python peer/bin/python --model resnet --level mix --json parity.json

A difference is *missing* (the peer wrote it, we did not), *different*, or *documented*: intended, listed in
``parity_rules.DOCUMENTED`` and explained in docs/limitations.md. What only we write is *extra*. The exit code is 1 if
anything is missing or different, or if a documented difference has no entry in docs/limitations.md, and 2 if a run
failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parity_compare import Comparison, Dump, Finding, compare_dumps
from parity_names import Name
from parity_rules import DOCUMENTED
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "parity_script.py"
LIMITATIONS = HERE.parent / "docs" / "limitations.md"
SCENARIOS = ("llama", "gpt2", "bert", "mixtral", "t5", "resnet", "zoo", "recompute", "passes")
LEVELS = ("L0", "L1", "mix")
RUN_LIMIT_S = 300
EXAMPLES = 12
SHOWN_LENGTH = 160


class RunError(RuntimeError):
    """A training script ended with an error, or used the wrong tool."""


def main() -> int:
    """Run what the command line asks for; returns the exit code."""
    options = _arguments()
    console = Console(width=None if sys.stdout.isatty() else 200)
    undocumented = _without_entry(LIMITATIONS)
    if undocumented:
        console.print(f"[red]no entry in {LIMITATIONS.name} for: {', '.join(undocumented)}")
    comparisons: dict[str, Comparison] = {}
    try:
        for scenario in SCENARIOS if options.model == "all" else [options.model]:
            print(f"running {scenario} ...", file=sys.stderr, flush=True)
            comparisons |= _compare_scenario(scenario, options)
    except RunError as error:
        console.print(f"[red]{error}", markup=True, highlight=False)
        return 2
    console.print(_table(comparisons))
    for title, comparison in comparisons.items():
        _explain(console, title, comparison, options.examples)
    if options.json:
        Path(options.json).write_text(json.dumps(_plain(comparisons), indent=1), encoding="utf-8")
    failed = any(comparison.of_kind(kind) for comparison in comparisons.values() for kind in ("missing", "different"))
    return 1 if failed or undocumented else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", required=True, help="interpreter of the environment of mindstudio-probe")
    parser.add_argument("--model", choices=(*SCENARIOS, "all"), default="all")
    parser.add_argument("--level", choices=(*LEVELS, "all"), default="all")
    parser.add_argument("--task", choices=("statistics", "tensor", "structure"), default="statistics")
    parser.add_argument("--summary-mode", choices=("statistics", "md5", "xor"), default="statistics")
    parser.add_argument("--risk-level", choices=("ALL", "CORE", "FOCUS"), default="ALL")
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="differences shown per scenario and kind")
    parser.add_argument("--json", help="write every difference to this file")
    return parser.parse_args()


# -- running


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """A finished training run.

    Attributes
    ----------
    tool : str
        Where msprobe was imported from.
    parameters : str
        Hash of the trained parameters.
    steps : dict
        Name of each step's folder -> what it holds.
    """

    tool: str
    parameters: str
    steps: dict[str, Dump]


def _compare_scenario(scenario: str, options: argparse.Namespace) -> dict[str, Comparison]:
    """Comparisons of one scenario by title: level and step."""
    levels = LEVELS if options.level == "all" else (options.level,)
    plain = _run(sys.executable, scenario, None, options)
    peers = {level: _run(options.peer_python, scenario, level, options) for level in {*levels, "L1"}}
    comparisons = {}
    for level in levels:
        ours, peer = _run(sys.executable, scenario, level, options), peers[level]
        if ours.tool == peer.tool:
            raise RunError(f"both runs imported msprobe from {ours.tool}: --peer-python needs its own environment")
        if ours.parameters != plain.parameters:
            raise RunError(f"{scenario} at level {level}: our run ended with other parameters than the run without us")
        for step in sorted(peer.steps):
            comparisons[f"{scenario} {level} {step}"] = compare_dumps(
                ours.steps[step],
                peer.steps[step],
                perturbed=peer.parameters != plain.parameters,
                peer_l1=peers["L1"].steps[step],
            )
    return comparisons


def _run(python: str, scenario: str, level: str | None, options: argparse.Namespace) -> Run:
    """Run the script once, without recording if ``level`` is None."""
    # A PYTHONPATH that leads to one of the tools would hide the other.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with tempfile.TemporaryDirectory(prefix="parity_") as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(_config(folder, level, options)), encoding="utf-8")
        command = [python, str(SCRIPT), scenario, "config.json" if level else "none", "manifest.json"]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False
        )
        if done.returncode:
            raise RunError(f"{scenario}, level {level}, {python}: exit code {done.returncode}\n{done.stderr[-3000:]}")
        manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
        steps = {step.name: Dump.read(next(step.iterdir())) for step in (folder / "dump").glob("step*")}
    return Run(manifest["tool"], manifest["parameters"], steps)


def _config(folder: Path, level: str | None, options: argparse.Namespace) -> dict[str, Any]:
    config: dict[str, Any] = {
        "task": options.task,
        "dump_path": str(folder / "dump"),
        "rank": [],
        "step": [],
        "level": level,
        "risk_level": options.risk_level,
    }
    if options.task != "structure":
        config[options.task] = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": options.summary_mode}
    return config


def _without_entry(limitations: Path) -> list[str]:
    """Documented differences whose key does not occur in the document."""
    text = limitations.read_text("utf-8") if limitations.exists() else ""
    return [key for key in DOCUMENTED if f"`{key}`" not in text]


# -- showing


def _table(comparisons: dict[str, Comparison]) -> Table:
    table = Table(title="what the peer wrote, and what became of it")
    for heading in ("scenario, level, step", "peer", "ours", "missing", "different", "documented", "extra"):
        table.add_column(heading, justify="left" if heading.startswith("scenario") else "right")
    for title, comparison in comparisons.items():
        missing, different, documented = (
            len({(finding.where, finding.record) for finding in comparison.of_kind(kind)})
            for kind in ("missing", "different", "documented")
        )
        counts = [comparison.peer_records, comparison.our_records, missing, different, documented]
        style = "red" if missing or different else "green"
        table.add_row(title, *map(str, counts), str(comparison.extra.total()), style=style)
    return table


def _explain(console: Console, title: str, comparison: Comparison, examples: int) -> None:
    """Print the differences of one comparison, equal ones together."""
    console.rule(title)
    for kind in ("missing", "different"):
        groups = list(_grouped(comparison.of_kind(kind)))
        for number, first in groups[:examples]:
            console.print(f"{kind} {number} x {_line(first)}", markup=False, highlight=False)
        if len(groups) > examples:
            console.print(f"... and {len(groups) - examples} more kinds of {kind}")
    reasons: dict[str, set[str]] = defaultdict(set)
    for finding in comparison.of_kind("documented"):
        reasons[finding.reason].add(finding.record)
    for reason, records in sorted(reasons.items()):
        console.print(f"documented {len(records)} records: {DOCUMENTED[reason]}", markup=False, highlight=False)
    if comparison.extra:
        shown = ", ".join(f"{name} x{count}" for name, count in comparison.extra.most_common(examples))
        console.print(f"extra: {shown}", markup=False, highlight=False)


def _grouped(findings: list[Finding]) -> Iterator[tuple[int, Finding]]:
    groups: dict[tuple[str, ...], list[Finding]] = defaultdict(list)
    for finding in findings:
        name = Name.parse(finding.record)
        base = name and ("Module" if name.module else name.base)
        groups[finding.where, str(base), re.sub(r"\d+", "n", finding.path)].append(finding)
    for found in groups.values():
        yield len(found), found[0]


def _line(finding: Finding) -> str:
    shown = [json.dumps(value, default=str)[:SHOWN_LENGTH] for value in (finding.peer, finding.ours)]
    values = "" if finding.kind == "missing" else f": peer {shown[0]} ours {shown[1]}"
    return f"{finding.where} {finding.record} {finding.path}{values}"


def _plain(comparisons: dict[str, Comparison]) -> dict[str, Any]:
    return {
        title: {
            "peer_records": comparison.peer_records,
            "our_records": comparison.our_records,
            "extra": dict(comparison.extra),
            "findings": [dataclasses.asdict(finding) for finding in comparison.findings],
        }
        for title, comparison in comparisons.items()
    }


if __name__ == "__main__":
    sys.exit(main())
