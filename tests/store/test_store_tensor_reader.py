"""Tensor files are read without torch, and cannot run code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
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


BOMBS = {
    "memo": b"\x80\x02K\x01r\xff\xff\xff\x7f.",
    "memo in text": b"\x80\x02K\x01p2000000000\n.",
    "array of bytes": b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b"ab.",
    "frame": b"\x80\x04\x95" + (1 << 40).to_bytes(8, "little") + b"K\x01.",
    "marks": b"\x80\x02" + b"(" * 100_000 + b".",
    "lists": b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".",
}
LIMITED = """
import resource, sys
from msprobe.store.tensor_reader import TensorReadError, read_tensor
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
for path in sys.argv[1:]:
    try:
        read_tensor(path)
    except TensorReadError as error:
        print(error)
"""


def test_a_pickle_that_is_made_to_take_memory_is_refused_before_it_does(tmp_path: Path) -> None:
    files = []
    for name, content in BOMBS.items():
        files.append(tmp_path / f"{name}.pt")
        with zipfile.ZipFile(files[-1], "w") as archive:
            archive.writestr("archive/data.pkl", content)
    done = subprocess.run([sys.executable, "-c", LIMITED, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(BOMBS)
    assert not [line for line in lines if "memory" in line], lines


@pytest.mark.parametrize("damage", [(4, 64), (8, 1), (8, 32), (10, 99), (10, 12), (10, 14)])
def test_what_zipfile_refuses_is_named_with_its_file(tmp_path: Path, damage: tuple[int, int]) -> None:
    """Version, encryption, patches, compressions: in the central directory, at these offsets."""
    file = tmp_path / "a.pt"
    torch.save(torch.ones(2), file)
    content = bytearray(file.read_bytes())
    start = content.index(b"PK\x01\x02")
    content[start + damage[0] + (2 if damage[0] == 4 else 0)] = damage[1]
    file.write_bytes(content)
    with pytest.raises(TensorReadError, match=re.escape(str(file))):
        read_tensor(file)
