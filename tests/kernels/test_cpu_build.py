"""Installation never fails for want of a compiler, unless the native kernels are required."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the parts of the project that the build reads."""
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("msprobe", "kernels"):
        ignore = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignore)
    return tmp_path


def build(project: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MSPROBE_")}
    return subprocess.run(
        [sys.executable, "setup.py", *command],
        cwd=project,
        env=clean | environment,
        capture_output=True,
        text=True,
        check=False,
    )


BROKEN = {"CC": "/nonexistent/cc", "CXX": "/nonexistent/c++"}


def test_without_compiler_the_build_succeeds_with_one_warning(project):
    done = build(project, "build_ext", "--inplace", **BROKEN)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("WARNING: msprobe's native CPU kernels were not built") == 1
    assert "install g++ or clang++" in done.stderr
    assert not list((project / "kernels").glob("_native*.so"))


def test_a_compiler_that_rejects_the_sources_does_not_stop_the_build(project):
    with (project / "kernels" / "cpu" / "stats.cpp").open("a") as source:
        source.write("#error this compiler cannot\n")
    done = build(project, "build_ext", "--inplace", CC="false", CXX="false")
    assert done.returncode == 0, done.stderr
    assert "native CPU kernels were not built" in done.stderr


def test_required_kernels_make_a_failed_build_fatal(project):
    done = build(project, "build_ext", "--inplace", MSPROBE_REQUIRE_NATIVE="1", **BROKEN)
    assert done.returncode != 0
    assert "/nonexistent/c" in done.stderr


def test_kernels_can_be_left_out(project):
    done = build(project, "build", MSPROBE_NO_NATIVE="1", **BROKEN)
    assert done.returncode == 0, done.stderr
    assert "WARNING: msprobe" not in done.stderr
    built = {path.name for path in (project / "build").rglob("*")}
    assert "bindings.py" in built
    assert not any(name.startswith("_native") and not name.endswith(".pyi") for name in built)
