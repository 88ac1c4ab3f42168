"""Real processes for fault tests: cheap ones, forked from one that has torch imported."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.append(str(HERE))

from fault_process import Outcome  # noqa: E402 - made importable by the line above


@pytest.fixture(scope="session")
def processes() -> Iterator[Callable[[list[dict[str, Any]]], list[Outcome]]]:
    """Return a function that runs jobs, each in a process of its own; see `fault_server`."""
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(HERE / "fault_server.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None

    def run(jobs: list[dict[str, Any]]) -> list[Outcome]:
        server.stdin.write(json.dumps(jobs) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        assert answer, "the server of fault tests has ended"
        return [Outcome(**outcome) for outcome in json.loads(answer)]

    yield run
    server.stdin.close()
    server.wait(timeout=30)


@pytest.fixture
def process(processes: Callable[[list[dict[str, Any]]], list[Outcome]], place: Path) -> Callable[..., Outcome]:
    """Return a function that runs one function of a module here in a process and waits for its end."""
    numbers = itertools.count()

    def run(
        work: str, *, limit: float = 60.0, unprivileged: bool = False, kill: Any = None, **arguments: Any
    ) -> Outcome:
        folder = place / f"process{next(numbers)}"
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
        job = {
            "work": work,
            "folder": str(folder),
            "limit": limit,
            "unprivileged": unprivileged,
            "kill": kill,
            "quick": True,
            "arguments": arguments,
        }
        return processes([job])[0]

    return run


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a folder that other users may enter, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="msprobe_fault_"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
