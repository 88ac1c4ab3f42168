"""Run training scripts under one tool, each in a folder of its own, and read what was written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from parity_cases import Case
from parity_dump import Dump

SCRIPT = Path(__file__).resolve().parent / "parity_script.py"
LAST_OF_LOG = 3000


class RunError(RuntimeError):
    """A training script ended with an error, used the wrong tool or had another result."""


@dataclass(frozen=True, slots=True)
class Run:
    """A finished training run.

    Attributes
    ----------
    folder : Path
        Where the script ran.
    tool : str
        Where msprobe was imported from.
    parameters : str
        Hash of the trained parameters.
    failure : str
        End of what the script said, if it ended with an error.
    """

    folder: Path
    tool: str
    parameters: str
    failure: str = ""

    def steps(self) -> dict[str, Dump]:
        """Name of each step's folder -> what it holds."""
        return {step.name: Dump.read(next(step.iterdir())) for step in (self.folder / "dump").glob("step*")}


def run_cases(python: str, cases: Sequence[Case], folder: Path) -> dict[Case, Run]:
    """Run the cases, recording, one after the other as children of one interpreter."""
    runs = _run(python, [(case.title, case.scenario, case) for case in cases], folder)
    return {case: runs[case.title] for case in cases}


def run_plain(python: str, scenarios: Sequence[str], folder: Path) -> dict[str, Run]:
    """Run the scenarios without recording."""
    return _run(python, [(scenario, scenario, None) for scenario in scenarios], folder)


def _run(python: str, wanted: Sequence[tuple[str, str, Case | None]], root: Path) -> dict[str, Run]:
    """Runs by title; one that is there from an earlier call with the same config is not repeated."""
    jobs, folders = [], {}
    for title, scenario, case in wanted:
        folder = folders[title] = root / title.replace(" ", "_")  # the peer refuses blanks and commas in paths
        config = json.dumps(case.config(str(folder / "dump")) if case else None)
        if (folder / "manifest.json").exists() and (folder / "config.json").read_text("utf-8") == config:
            continue
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(config, encoding="utf-8")
        jobs.append({"scenario": scenario, "folder": str(folder), "recorded": case is not None})
    root.mkdir(parents=True, exist_ok=True)
    (root / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    # A PYTHONPATH that leads to one of the tools would hide the other.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, str(SCRIPT), str(root / "jobs.json")]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f"{python}: exit code {done.returncode}\n{done.stderr[-LAST_OF_LOG:]}")
    return {title: _finished(folder) for title, folder in folders.items()}


def _finished(folder: Path) -> Run:
    manifest = folder / "manifest.json"
    if not manifest.exists():
        return Run(
            folder, "", "", (folder / "log.txt").read_text("utf-8", errors="replace")[-LAST_OF_LOG:] or "no word"
        )
    found = json.loads(manifest.read_text("utf-8"))
    return Run(folder, found["tool"], found["parameters"])
