"""What is said about an NPU installation: torch_npu with and without CANN, built and unbuilt operators."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msprobe.kernels.npu import availability as npu
from msprobe.kernels.npu import extension
from msprobe.kernels.npu.build import BuildError, build, library_name

if TYPE_CHECKING:
    from conftest import FakeCann

REPORT = "from msprobe.kernels.npu.availability import {0}; print({0}())"


def report(function: str, environment: dict[str, str]) -> str:
    """What a fresh process says."""
    done = subprocess.run(
        [sys.executable, "-c", REPORT.format(function)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_an_installation_with_built_operators_lacks_nothing(fake_cann: FakeCann, built_operators: Path) -> None:
    assert fake_cann.folder.is_dir()
    found = npu.availability()
    assert found == npu.NpuAvailability("2.13.0", 2, built_operators, ())


def test_unbuilt_operators_are_named_with_the_command_that_builds_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(extension.FOLDER_VARIABLE, str(tmp_path))
    found = npu.availability()
    assert found.operators is None
    (reason,) = found.reasons
    assert "not built" in reason
    assert "python -m msprobe.kernels.npu.build" in reason


def test_operators_for_another_torch_are_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(extension.FOLDER_VARIABLE, str(tmp_path))
    (tmp_path / "libmsprobe_npu-torch1.0-torch_npu1.0.so").touch()
    library, reason = extension.find()
    assert library is None
    assert reason is not None
    assert "libmsprobe_npu-torch1.0-torch_npu1.0.so" in reason
    assert library_name() in reason


def test_torch_npu_without_cann_is_a_reason_and_no_crash() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TORCH_DEVICE_BACKEND_AUTOLOAD"}
    text = report("availability", environment)
    assert "NpuAvailability(torch_npu=None, devices=0" in text
    assert "torch_npu cannot be imported: ImportError: libhccl.so" in text
    assert "set_env.sh" in text


def test_the_register_needs_saturation_mode_and_a_recent_cann(fake_cann: FakeCann) -> None:
    assert npu.register_problems() == ()
    older = fake_cann.environment(FAKE_CANN_VERSION="8.3.RC1", INF_NAN_MODE_FORCE_DISABLE="0")
    text = report("register_problems", older)
    assert "INF_NAN_MODE_FORCE_DISABLE is '0'" in text
    assert "CANN 8.3.RC1 is too old for the float status register: install 8.5 or newer" in text


def test_a_build_without_a_compiler_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"compiler 'no-such-compiler' not found; install g\+\+"):
        build(tmp_path / "new", "no-such-compiler")
    assert not (tmp_path / "new").exists()


def test_a_failed_build_shows_the_command_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"false .*float_status\.cpp.*\nfailed with:"):
        build(tmp_path, "false")
    assert list(tmp_path.iterdir()) == []
