"""Debuggers for tests: a process has one debugger, so each test gets a fresh one and gives it back clean."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent / "dispatch"))  # modules that several test files share
sys.path.append(str(Path(__file__).parent / "compare"))

with contextlib.suppress(ImportError):  # the NPU lane does without
    from hypothesis import HealthCheck, settings

    settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy")  # how fast the machine is says nothing about the code


@pytest.fixture
def debugger(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Factory of the process's debugger: keyword arguments are the content of config.json.

    ``dump_path`` defaults to a folder in ``tmp_path``. A second call in one test closes the first debugger. Afterwards
    nothing of msprobe may be left on torch, on the models that were given to ``start()``, or on this thread.
    """
    from debugger_traces import assert_nothing_left

    from msprobe.pytorch import PrecisionDebugger

    made: list[PrecisionDebugger] = []

    def make(**config: Any) -> PrecisionDebugger:
        release()
        number = len(made)
        content = {"dump_path": str(tmp_path / f"dump{number}"), **config}
        file = tmp_path / f"config{number}.json"
        file.write_text(json.dumps(content), encoding="utf-8")
        made.append(PrecisionDebugger(config_path=file))
        return made[-1]

    def release() -> None:
        current = PrecisionDebugger._instance
        if current is None:
            return
        models = list(current._session._models)
        current._session.close()
        PrecisionDebugger._instance = None
        assert_nothing_left(models)

    release()  # left by a test that does not use this fixture
    yield make
    release()
