"""The NPU side of an installation without torch and torch_npu: nothing is imported, the reason is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msprobe.kernels


def run_bare(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the standard library and msprobe's kernels only."""
    package = folder / "msprobe"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "kernels").symlink_to(Path(msprobe.kernels.__file__).parent)
    command = [sys.executable, "-S", *arguments]
    return subprocess.run(command, cwd=folder, env={}, capture_output=True, text=True, check=False)


def test_availability_without_torch_npu_tells_the_reason_and_imports_nothing(tmp_path: Path) -> None:
    code = "import sys\nfrom msprobe.kernels.npu.availability import *\nprint(availability(), 'torch' in sys.modules)"
    done = run_bare(tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("NpuAvailability(torch_npu=None, devices=0, operators=None")
    assert "torch_npu is not installed" in done.stdout
    assert done.stdout.endswith("False\n")


def test_build_without_torch_exits_with_2_and_one_message(tmp_path: Path) -> None:
    done = run_bare(tmp_path, "-m", "msprobe.kernels.npu.build", "--output", str(tmp_path / "out"))
    assert done.returncode == 2
    assert done.stderr.startswith("NPU operators: torch is not installed for ")
    assert "Traceback" not in done.stderr
