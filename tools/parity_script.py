"""The training script that ``peer_parity.py`` runs under either tool: two steps of each scenario asked for.

``python parity_script.py JOBS`` reads a JSON list of ``{"scenario", "folder", "recorded"}``, see ``parity_jobs.py``. A
job takes ``config.json`` from its folder if it is to record, and leaves ``manifest.json``: where the tool was imported
from and what the training came to (a hash of all parameters).
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from parity_jobs import run_jobs
from parity_scenarios import SCENARIOS

import msprobe
from msprobe.pytorch import PrecisionDebugger, seed_all

STEPS = 2
JOB_LIMIT_S = 120


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
    sys.exit(run_jobs(sys.argv[1], train, JOB_LIMIT_S))
