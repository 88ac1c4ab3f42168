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


ATTACKS = (_torch_save, _bare_pickle, _cut)


def msprobe(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "msprobe", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in {0, 1, 2}, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_commands_run_no_code_of_a_tensor_file(process: Callable[..., Outcome], place: Path) -> None:
    assert process("disturbed_training:disturbed", disturbance="nothing", level="L1", task="tensor").answer
    (golden,) = place.glob("process0/dump/step0/*")
    rank = shutil.copytree(golden, place / "hostile" / "step0" / "rank0")
    mark = place / "mark"
    files = sorted((rank / "dump_tensor_data").glob("*.pt"))
    for number, file in enumerate(files):
        ATTACKS[number % len(ATTACKS)](file, mark)
    for file in files[: len(ATTACKS)]:
        done = msprobe("parse", file)
        assert done.returncode == 2
        assert file.name in done.stderr
    msprobe("compare", "-tp", rank, "-gp", golden, "-o", place / "compared")
    msprobe("acc_check", "-i", rank / "dump.json", "-o", place / "checked", "--jobs", 1)
    assert not mark.exists()
