"""The gate: it fails when recording becomes slower, and only then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

from gate import too_many, too_slow  # noqa: E402
from opcode_count import CASES  # noqa: E402

#: Read by every Python process whose path has its folder: stop() sleeps, and executes 100,000 rounds of a loop.
PLANTED = """
import sys, time
if any(name in word for word in sys.orig_argv for name in ("step_worker.py", "opcode_count.py")):
    from msprobe.pytorch import PrecisionDebugger
    stop = PrecisionDebugger.stop
    def slow_stop():
        time.sleep(0.7)
        for _ in range(100_000): pass
        stop()
    PrecisionDebugger.stop = staticmethod(slow_stop)
"""


def gate(*arguments: str, path: Path | None = None) -> tuple[int, str]:
    command = [sys.executable, str(BENCHMARKS / "gate.py"), "--rounds", "3", *arguments]
    environment = dict(os.environ) | ({} if path is None else {"PYTHONPATH": str(path)})
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    return done.returncode, done.stdout + done.stderr


def test_gate_passes_on_this_version():
    code, said = gate("--parts", "instructions", "--cases", "API call, forward;module call, after the last step")
    assert code == 0, said
    assert "0 regressions" in said


def test_gate_fails_on_a_planted_regression(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(PLANTED)
    code, said = gate("--cases", "API call, forward", "--tools", "L1", "--once", path=tmp_path)
    assert code == 1, said
    assert "REGRESSION API call, forward:" in said
    assert "REGRESSION L1: a step takes x" in said


def test_limits_are_known_for_every_case_and_leave_a_margin():
    limits = json.loads((BENCHMARKS / "gate_limits.json").read_text())
    assert set(limits["instructions"]) == set(CASES)
    same = dict(limits["instructions"])
    assert too_many(same, limits, limits["python"]) == []
    more = {case: count * 1.3 + 3 for case, count in same.items()}
    assert len(too_many(more, limits, limits["python"])) == len(CASES)
    assert too_many(more, limits, "3.99") == []


def test_step_slower_than_under_debug_mode_is_a_regression():
    assert too_slow({"L1": 1.4, "DebugMode": 1.5}, {"L1": 2.0}) == []
    (line,) = too_slow({"L1": 1.6, "DebugMode": 1.5}, {"L1": 2.0})
    assert "more than x1.50 under DebugMode" in line
