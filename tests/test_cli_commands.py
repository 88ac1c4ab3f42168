"""``msprobe env`` and ``msprobe recover`` as real commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys


def msprobe(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "msprobe", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=120,
        check=False,
    )


def test_env_says_what_is_there_and_why_the_rest_is_not():
    done = msprobe("env")
    assert done.returncode == 0, done.stderr
    rows = dict(line.split(None, 1) for line in done.stdout.splitlines() if line and line[0] != " ")
    assert "torch" in rows
    assert "native CPU kernels" in done.stdout
    assert any(line.startswith(("Triton kernels", "Ascend NPU")) for line in done.stdout.splitlines())


def test_env_names_the_fallback_when_native_kernels_are_switched_off():
    done = msprobe("env", MSPROBE_NO_NATIVE="1")
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("native CPU kernels"))
    assert "fallback" in line
    assert "MSPROBE_NO_NATIVE" in line


KILLED = """
import json, os, sys, torch
from msprobe.pytorch import PrecisionDebugger
debugger = PrecisionDebugger(sys.argv[1])
debugger.start()
for _ in range(2500):
    torch.tanh(torch.ones(2))
os.kill(os.getpid(), 9)
"""


def test_recover_makes_the_dump_of_a_killed_run_loadable(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"task": "statistics", "dump_path": str(tmp_path / "dump"), "level": "L1"}))
    killed = subprocess.run([sys.executable, "-c", KILLED, str(config)], timeout=120, check=False)
    assert killed.returncode == -9
    done = msprobe("recover", str(tmp_path / "dump"))
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "dump" / "step0").iterdir()
    records = len(json.loads((folder / "dump.json").read_text())["data"])
    assert records >= 1500
    assert f"{records} records" in done.stdout


def test_recover_of_something_else_is_bad_input(tmp_path):
    done = msprobe("recover", str(tmp_path))
    assert done.returncode == 2
    assert "dump.json" in done.stderr
