"""The training script that ``peer_parity.py`` runs under either tool: two steps of each scenario asked for.

``python parity_script.py JOBS`` reads a JSON list of ``{"scenario", "folder", "recorded"}``. Each job is a process of
its own, forked after the imports, which take longer than the training; one runs at a time. It works in its folder,
takes ``config.json`` from there if it is to record, and leaves ``manifest.json``: where the tool was imported from and
what the training came to (a hash of all parameters). What it says goes to ``log.txt``.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from parity_scenarios import SCENARIOS

import msprobe
from msprobe.pytorch import PrecisionDebugger, seed_all

STEPS = 2
JOB_LIMIT_S = 120


def main(jobs: str) -> int:
    """Run every job; a job that failed has no manifest."""
    for job in json.loads(Path(jobs).read_text("utf-8")):
        child = os.fork()
        if child == 0:
            _enter(Path(job["folder"]))
            train(job)
            return 0  # an ordinary exit: what the tool does at exit is part of the run
        os.waitpid(child, 0)
    return 0


def _enter(folder: Path) -> None:
    signal.alarm(JOB_LIMIT_S)
    os.chdir(folder)
    log = os.open("log.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)


def train(job: dict[str, Any]) -> None:
    """Train with the debugger around every step; without one if the job is not to record."""
    torch.set_num_threads(1)
    seed_all(1234)
    torch.use_deterministic_algorithms(True, warn_only=True)  # also fills torch.empty
    debugger = PrecisionDebugger(config_path="config.json") if job["recorded"] else None
    scenario = SCENARIOS[job["scenario"]]()
    for number in range(STEPS):
        if debugger:
            debugger.start(model=scenario.model)
        scenario.train_step(number)
        if debugger:
            debugger.stop()
            debugger.step()
    outcome = hashlib.sha256()
    for parameter in scenario.model.parameters():
        outcome.update(parameter.detach().numpy().tobytes())
    found = {"tool": str(msprobe.__file__), "parameters": outcome.hexdigest()}
    Path("manifest.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
