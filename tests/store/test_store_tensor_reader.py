"""Tensor files are read without torch, and cannot run code."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import msprobe.store.tensor_reader as tensor_reader
from msprobe.store.tensor_reader import TensorReadError, read_tensor

FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]
PLAIN = [
    torch.float16, torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
]  # fmt: skip


def check(tensor: torch.Tensor, file: Path) -> None:
    torch.save(tensor, file)
    read = read_tensor(file)
    small = tensor.dtype in {torch.bfloat16, *FLOAT8}
    expected = tensor.detach().float() if small else tensor.detach()
    assert read.array.shape == tuple(tensor.shape)
    assert read.dtype == str(tensor.dtype).removeprefix("torch.")
    np.testing.assert_array_equal(read.array, expected.numpy())


@pytest.mark.parametrize("dtype", PLAIN, ids=str)
def test_dtypes(dtype: torch.dtype, tmp_path: Path) -> None:
    check((torch.randn(3, 4) * 5).to(dtype), tmp_path / "x.pt")


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_every_float8_number(dtype: torch.dtype, tmp_path: Path) -> None:
    check(torch.arange(256, dtype=torch.uint8).view(dtype), tmp_path / "x.pt")


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(4, 5).t(),
        lambda: torch.randn(4, 5)[1:, ::2],
        lambda: torch.randn(4, 1).expand(4, 3),
        lambda: torch.tensor(3.0),
        lambda: torch.empty(0, 3),
        lambda: torch.nn.Parameter(torch.randn(3)),
        lambda: torch.randn(2, dtype=torch.complex64),
    ],
)
def test_layouts(make: Callable[[], torch.Tensor], tmp_path: Path) -> None:
    check(make(), tmp_path / "x.pt")


def test_large_file_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_reader, "MAPPED_FROM", 100)
    check(torch.randn(50, 50), tmp_path / "x.pt")
    np.save(tmp_path / "x.npy", np.arange(100.0))
    assert read_tensor(tmp_path / "x.npy").array[7] == 7.0


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("exit 1",)


@pytest.mark.parametrize("value", [Evil(), {"a": torch.ones(2)}, [torch.ones(2)], 3], ids=lambda v: type(v).__name__)
def test_anything_but_one_tensor_is_refused_and_nothing_runs(value: Any, tmp_path: Path) -> None:
    torch.save(value, tmp_path / "x.pt")
    with pytest.raises(TensorReadError, match=r"x\.pt.*not one strided tensor"):
        read_tensor(tmp_path / "x.pt")


def test_sparse_tensor_is_refused(tmp_path: Path) -> None:
    torch.save(torch.eye(2).to_sparse(), tmp_path / "x.pt")
    with pytest.raises(TensorReadError, match="not one strided tensor"):
        read_tensor(tmp_path / "x.pt")


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    torch.save(torch.randn(100), tmp_path / "x.pt")
    text = (tmp_path / "x.pt").read_bytes()
    (tmp_path / "x.pt").write_bytes(text[:300])
    for name in ("x.pt", "nothing.pt"):
        with pytest.raises(TensorReadError, match=name):
            read_tensor(tmp_path / name)
    np.save(tmp_path / "words.npy", np.array(["a"]))
    with pytest.raises(TensorReadError, match="no numbers"):
        read_tensor(tmp_path / "words.npy")
