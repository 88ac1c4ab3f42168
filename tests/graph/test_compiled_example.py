"""The example runs, and what it shows holds: the eager and the compiled dump have the same records."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "compile_gpt.py"


def test_the_example_finds_the_same_records_in_both_runs(tmp_path):
    command = [sys.executable, str(EXAMPLE), "--out", str(tmp_path), "--backend", "aot_eager"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "graph 0: " in done.stdout
    assert "gradients of 2 runs" in done.stdout
    summary = json.loads((tmp_path / "compare" / "summary.json").read_text())
    assert summary["first_divergence"] is None
    (step,) = (tmp_path / "compiled").glob("step1")
    notes = json.loads(next(step.glob("*/coverage.json")).read_text())["notes"]
    assert "graph_breaks" not in notes["compiled"]
