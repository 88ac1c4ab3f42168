"""The MindSpore lane (`make test-mindspore`): the real MindSpore on its CPU target.

What MindSpore reads once per process (its dump configuration, the context mode) needs a process per test. A fresh one
takes seconds to import MindSpore, so one process does that and forks for each test.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

HERE = Path(__file__).parent
HAS_MINDSPORE = importlib.util.find_spec("mindspore") is not None
collect_ignore_glob = [] if HAS_MINDSPORE else ["test_*.py"]

sys.path.append(str(HERE))  # modules that several test files share

if TYPE_CHECKING:
    from forked_mindspore import ForkedMindSpore


def pytest_configure(config: pytest.Config) -> None:
    """Say clearly that the lane cannot run; keep MindSpore's own warnings out of the output."""
    if not HAS_MINDSPORE and os.environ.get("MSPROBE_REQUIRE_MINDSPORE") == "1":
        raise pytest.UsageError("MSPROBE_REQUIRE_MINDSPORE=1, but mindspore is not installed in this venv")
    os.environ.setdefault("GLOG_v", "3")  # read when MindSpore is imported


@pytest.fixture(scope="session")
def fresh_mindspore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedMindSpore]:
    """Call functions, each in a process of its own that has imported MindSpore and run nothing."""
    from forked_mindspore import ForkedMindSpore

    with ForkedMindSpore(tmp_path_factory.mktemp("forked")) as server:
        yield server
