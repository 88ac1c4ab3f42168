"""Tensor files that carry code, or are cut: commands that read them run nothing of it and say what is wrong."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fault_process import Outcome


class Harm:
    """Creates a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = str(mark)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self._mark,)


def _torch_save(file: Path, mark: Path) -> None:
    torch.save({"tensor": torch.ones(2), "harm": Harm(mark)}, file)


def _bare_pickle(file: Path, mark: Path) -> None:
    file.write_bytes(pickle.dumps(Harm(mark)))


def _cut(file: Path, _mark: Path) -> None:
    file.write_bytes(file.read_bytes()[:200])


COMMANDS = {
    "compare": ["compare", "-tp", "{rank}", "-gp", "{golden}", "-o", "{out}"],
    "acc_check": ["acc_check", "-i", "{rank}/dump.json", "-o", "{out}", "--jobs", "1"],
    "parse": ["parse", "{file}"],
}


@pytest.mark.parametrize("attacks", [(_torch_save, _bare_pickle), (_cut,)], ids=["code", "cut"])
def test_commands_run_no_code_of_a_tensor_file(
    process: Callable[..., Outcome], place: Path, attacks: tuple[Callable[[Path, Path], None], ...]
) -> None:
    assert process("disturbed_training:disturbed", disturbance="nothing", level="L1", task="tensor").answer
    (golden,) = place.glob("process0/dump/step0/*")
    rank = shutil.copytree(golden, place / "hostile" / "step0" / "rank0")
    mark = place / "mark"
    files = sorted((rank / "dump_tensor_data").glob("*.pt"))
    for number, file in enumerate(files):
        attacks[number % len(attacks)](file, mark)
    for command, words in COMMANDS.items():
        out = place / command
        arguments = [word.format(rank=rank, golden=golden, out=out, file=files[0]) for word in words]
        done = subprocess.run(
            [sys.executable, "-m", "msprobe", *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        assert not mark.exists(), command
        assert done.returncode in {0, 1, 2}, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == 0 or done.stderr or done.stdout
