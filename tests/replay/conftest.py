"""Dumps of small models for the replay, and modules that break operators on purpose."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parent))  # modules that several test files share


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Many small operators: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def record(debugger: Callable[..., Any], tmp_path: Path) -> Callable[..., Path]:
    """Run a function with the debugger around it; return the folder of its dump."""

    def run(body: Callable[[], object], **config: Any) -> Path:
        before = set(tmp_path.glob("dump*/step0/*"))
        made = debugger(**{"task": "acc_check", "level": "L1", "risk_level": "ALL", **config})
        made.start()
        body()
        made.stop()
        made.step()
        (folder,) = set(tmp_path.glob("dump*/step0/*")) - before
        return folder

    return run


@pytest.fixture
def broken_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processes that replay find ``broken_operators`` (option --import)."""
    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
