"""The NPU lane (`make test-npu`): the real torch_npu wheel on a fake CANN, built before torch is imported.

Without torch_npu, as in the venv of the other tests, only the files that need no device are collected.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

HERE = Path(__file__).parent
HAS_TORCH_NPU = importlib.util.find_spec("torch_npu") is not None
collect_ignore_glob = [] if HAS_TORCH_NPU else ["test_npu_*.py"]

sys.path.append(str(HERE))  # fake_cann_build, aten_emulation

if TYPE_CHECKING:
    from aten_emulation import Emulation


@dataclass(frozen=True, slots=True)
class FakeCann:
    """The loaded fake, and the folder of its libraries for other processes."""

    folder: Path
    runtime: ctypes.CDLL

    def calls(self, counter: str, thread: int = 0) -> int:
        """How often the runtime was called, by one thread (``native_id``) or by all; names as in fake.h."""
        names = ("synchronise", "copy_to_host", "copy_to_device", "status_clear", "status_read")
        return int(self.runtime.fake_cann_calls(names.index(counter), thread))

    def dump_events(self) -> list[str]:
        """Calls of the kernel dump switch so far: ``init``, ``set PATH``, ``finalize``."""
        return str(self.runtime.fake_cann_dump_events().decode()).splitlines()

    def environment(self, **extra: str) -> dict[str, str]:
        """Environment of a process that finds the fake by itself."""
        return {**os.environ, "LD_LIBRARY_PATH": str(self.folder), "PYTHONPATH": str(HERE), **extra}


_FAKE = pytest.StashKey[FakeCann]()


def pytest_configure(config: pytest.Config) -> None:
    """Build and load the fake: torch_npu needs it at import, and test modules import torch when they are collected."""
    if not HAS_TORCH_NPU:
        if os.environ.get("MSPROBE_REQUIRE_NPU") == "1":
            raise pytest.UsageError("MSPROBE_REQUIRE_NPU=1, but torch_npu is not installed in this venv")
        return
    from fake_cann_build import build, load

    folder = tempfile.TemporaryDirectory(prefix="fake_cann_")
    config.add_cleanup(folder.cleanup)
    os.environ.pop("ASCEND_HOME_PATH", None)
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    # The emulated operators run at once, so the real ones must not wait in torch_npu's queue.
    os.environ["TASK_QUEUE_ENABLE"] = "0"
    os.environ["INF_NAN_MODE_FORCE_DISABLE"] = "1"
    build(Path(folder.name))
    config.stash[_FAKE] = FakeCann(Path(folder.name), load(Path(folder.name)))


@pytest.fixture(scope="session")
def fake_cann(pytestconfig: pytest.Config) -> FakeCann:
    """The fake runtime that this process runs on."""
    return pytestconfig.stash[_FAKE]


@pytest.fixture(scope="session")
def emulation(fake_cann: FakeCann) -> Emulation:
    """Operators of ``npu:0`` on the fake."""
    import torch_npu  # noqa: F401 - registers the device
    from aten_emulation import Emulation

    return Emulation(fake_cann.runtime)


@pytest.fixture(scope="session")
def built_operators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The compiled operators, built once with the headers of the wheels, and found by msprobe."""
    from msprobe.kernels.npu import extension
    from msprobe.kernels.npu.build import build

    folder = tmp_path_factory.mktemp("operators")
    os.environ[extension.FOLDER_VARIABLE] = str(folder)
    extension.loaded.cache_clear()
    yield build(folder)
    del os.environ[extension.FOLDER_VARIABLE]
