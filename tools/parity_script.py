"""The training script that ``peer_parity.py`` runs under either tool: two steps of one scenario.

``python parity_script.py SCENARIO CONFIG MANIFEST`` writes to MANIFEST where the tool was imported from and what
the training came to (the sum of all parameters).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from parity_models import SCENARIOS

import msprobe
from msprobe.pytorch import PrecisionDebugger, seed_all

STEPS = 2


def main(scenario_name: str, config: str, manifest: str) -> None:
    """Train with the debugger around every step."""
    torch.set_num_threads(1)
    seed_all(1234)
    debugger = PrecisionDebugger(config_path=config)
    scenario = SCENARIOS[scenario_name]()
    for number in range(STEPS):
        debugger.start(model=scenario.model)
        scenario.train_step(number)
        debugger.stop()
        debugger.step()
    with torch.no_grad():
        checksum = sum(float(parameter.double().sum()) for parameter in scenario.model.parameters())
    Path(manifest).write_text(json.dumps({"tool": str(msprobe.__file__), "parameters": checksum}), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
