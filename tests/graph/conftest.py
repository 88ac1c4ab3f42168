"""Compiled models for tests of this folder; the compiler starts anew in each test."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parent))  # modules that several test files share


@pytest.fixture(autouse=True)
def fresh_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No compiled code of an earlier test, and a cache folder of its own."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Only references decide what lives."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for the kernels of Inductor: equal ones of several tests are compiled once."""
    return tmp_path_factory.mktemp("inductor")


@pytest.fixture
def quick_inductor(fresh_compiler: None, kernels: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compile without optimisation and debug symbols: most of the time of such tests is spent in the C++ compiler."""
    import torch._inductor.config as settings

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(kernels))
    monkeypatch.setenv("TORCHINDUCTOR_DEBUG_COMPILE", "1")
    symbols = "torch._inductor.cpp_builder._get_inductor_debug_symbol_cflags"
    monkeypatch.setattr(symbols, lambda: ([], []), raising=False)
    with settings.patch({"cpp.vec_isa_ok": True}):  # else programs are compiled to find out
        yield
