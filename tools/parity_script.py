"""The training script that ``peer_parity.py`` runs under either tool: two steps of one scenario.

``python parity_script.py SCENARIO CONFIG MANIFEST`` writes to MANIFEST where the tool was imported from and what
the training came to (a hash of all parameters).
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch
from parity_models import SCENARIOS

import msprobe
from msprobe.pytorch import PrecisionDebugger, seed_all

STEPS = 2


def main(scenario_name: str, config: str, manifest: str) -> None:
    """Train with the debugger around every step; without one if ``config`` is ``none``."""
    torch.set_num_threads(1)
    seed_all(1234)
    torch.use_deterministic_algorithms(True, warn_only=True)  # also fills torch.empty
    debugger = PrecisionDebugger(config_path=config) if config != "none" else None
    scenario = SCENARIOS[scenario_name]()
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
    Path(manifest).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
