"""Here kernels run as numpy programs on CPU tensors: Triton reads this variable when a kernel is decorated.

Compilation for devices that are not there runs in processes beside the tests, whose results are asked for last.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

os.environ["TRITON_INTERPRET"] = "1"

Compiled: TypeAlias = Callable[[str], dict[str, Any]]
_RUNNING = pytest.StashKey[dict[str, subprocess.Popen[str]]]()


@pytest.hookimpl(trylast=True)  # after tests were deselected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start the compilations if a test wants them, and run those tests last."""
    waiting = [item for item in items if "compiled" in getattr(item, "fixturenames", ())]
    if not waiting or config.option.collectonly:
        return
    items[:] = [item for item in items if item not in waiting] + waiting
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    program = str(Path(__file__).with_name("compile_kernels.py"))
    config.stash[_RUNNING] = {
        target: subprocess.Popen(
            [sys.executable, program, target],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for target in ("cuda", "hip")
    }


def pytest_unconfigure(config: pytest.Config) -> None:
    """End what nobody waited for."""
    for process in config.stash.get(_RUNNING, {}).values():
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def compiled(pytestconfig: pytest.Config) -> Compiled:
    """What came out of compiling the kernels for ``cuda`` or ``hip``, by case."""
    found: dict[str, dict[str, Any]] = {}

    def wait(target: str) -> dict[str, Any]:
        if target not in found:
            process = pytestconfig.stash[_RUNNING].pop(target)
            output, errors = process.communicate()
            assert process.returncode == 0, errors
            found[target] = json.loads(output)
        return found[target]

    return wait
