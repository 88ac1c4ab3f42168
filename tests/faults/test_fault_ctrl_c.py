"""Ctrl-C in a command of ours: one line, exit code 130, no stack trace, and no file that looks finished and is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RECORDS = 60_000
TENSOR = {
    "type": "torch.Tensor",
    "dtype": "torch.float32",
    "shape": [2, 2],
    "Max": 1.0,
    "Min": -1.0,
    "Mean": 0.5,
    "Norm": 2.0,
    "requires_grad": False,
}


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a rank folder that takes every command a while."""
    folder = tmp_path_factory.mktemp("large") / "step0" / "rank0"
    folder.mkdir(parents=True)
    record = json.dumps({"input_args": [TENSOR, TENSOR], "input_kwargs": {}, "output": [TENSOR]})
    members = ",\n".join(f'"Torch.add.{number}.forward":{record}' for number in range(RECORDS))
    head = '{"task":"statistics","level":"L1","framework":"pytorch","dump_data_dir":null,"data":{\n'
    (folder / "dump.json").write_text(head + members + "\n}}\n")
    (folder / "stack.json").write_text("{}")
    (folder / "construct.json").write_text("{}")
    return folder


COMMANDS = {
    "compare": ["compare", "-tp", "{dump}", "-gp", "{dump}", "-o", "{out}"],
    "report": ["report", "{run}", "-o", "{out}"],
    "overflow_check": ["overflow_check", "-i", "{run}", "-o", "{out}"],
    "acc_check": ["acc_check", "-i", "{dump}/dump.json", "-o", "{out}", "--jobs", "1"],
    "parse": ["parse", "{dump}"],
}


@pytest.mark.parametrize("seconds", [0.1, 0.6], ids=["at the start", "at work"])
@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_ends_a_command_with_one_line(dump: Path, tmp_path: Path, command: str, seconds: float) -> None:
    out = tmp_path / "out"
    words = [word.format(dump=dump, run=dump.parent.parent, out=out) for word in COMMANDS[command]]
    # The signal comes after the imports: what Python itself says before that is none of our text.
    body = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from msprobe.cli import main\n"
        "print('ready', flush=True)\n"
        "main(sys.argv[1:])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", body, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to every process of the command
    _, err = process.communicate(timeout=60)
    assert "Traceback" not in err, err
    assert process.returncode == 130, err
    said = [line for line in err.splitlines() if "stopped" in line]
    assert len(said) == 1, err
    for file in out.glob("*.json"):
        json.loads(file.read_bytes())
