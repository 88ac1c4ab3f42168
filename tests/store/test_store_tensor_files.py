"""Tensor files: names that stay inside the folder and do not collide, content that is complete or absent."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from store_cases import open_writer

from msprobe.store import safe_file_name

names = st.text(st.characters(), max_size=60) | st.text(st.sampled_from("ab./\\%~\0\ud800层"), max_size=300)


@given(names)
def test_a_file_name_is_one_component_that_every_file_system_takes(name: str) -> None:
    safe = safe_file_name(name)
    assert 0 < len(safe.encode()) <= 240
    assert not safe.startswith(".")
    assert not set(safe) & set('/\\\0\n:*?"<>|')
    assert safe.isprintable()


@given(names, names)
def test_different_records_never_share_a_file(left: str, right: str) -> None:
    assert (safe_file_name(left) == safe_file_name(right)) == (left == right)


def test_ordinary_names_are_kept_as_they_are() -> None:
    for name in ["Functional.linear.0.forward.input.0.pt", "Module.层.Linear.forward.0.parameters.weight.pt"]:
        assert safe_file_name(name) == name


def test_a_long_name_keeps_its_beginning_and_extension() -> None:
    safe = safe_file_name("Module." + "very." * 200 + "forward.0.input.0.pt")
    assert safe.startswith("Module.very.")
    assert safe.endswith(".pt")


def test_a_name_cannot_leave_the_folder(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "s" / "r")
    for name in ["../../outside.pt", "/etc/outside.pt", "..", ".", ""]:
        written = writer.write_tensor(name, lambda file: file.write(b"x"))
        assert written is not None
        assert (tmp_path / "s" / "r" / "dump_tensor_data" / written).read_bytes() == b"x"
    writer.finish({})
    assert not list(tmp_path.rglob("outside.pt"))


def test_a_tensor_saved_by_torch_is_read_back_by_torch(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "s" / "r")
    value = torch.arange(6.0).reshape(2, 3)
    name = writer.write_tensor("Torch.f.0.forward.input.0.pt", lambda file: torch.save(value, file))
    writer.finish({})
    assert name == "Torch.f.0.forward.input.0.pt"
    path = tmp_path / "s" / "r" / "dump_tensor_data" / name
    assert torch.equal(torch.load(path, weights_only=True), value)
    assert path.stat().st_mode & 0o777 == 0o640


def test_the_same_name_again_replaces_the_file_in_one_step(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "s" / "r")
    folder = tmp_path / "s" / "r" / "dump_tensor_data"
    writer.write_tensor("a.pt", lambda file: file.write(b"old"))

    def save(file: BinaryIO) -> None:
        file.write(b"new")
        file.flush()
        assert (folder / "a.pt").read_bytes() == b"old"

    writer.write_tensor("a.pt", save)
    writer.finish({})
    assert (folder / "a.pt").read_bytes() == b"new"


@pytest.mark.parametrize("error", [ValueError("bad"), OSError(5, "Input/output error")])
def test_a_failed_save_leaves_nothing_and_keeps_the_old_file(tmp_path: Path, error: Exception) -> None:
    writer = open_writer(tmp_path / "s" / "r")
    folder = tmp_path / "s" / "r" / "dump_tensor_data"
    writer.write_tensor("a.pt", lambda file: file.write(b"old"))

    def save(file: BinaryIO) -> None:
        file.write(b"half")
        raise error

    assert writer.write_tensor("a.pt", save) is None
    writer.finish({})
    assert [file.name for file in folder.iterdir()] == ["a.pt"]
    assert (folder / "a.pt").read_bytes() == b"old"
    assert writer.failures


def test_a_file_of_another_program_gets_a_second_name_or_a_copy(tmp_path: Path) -> None:
    source = tmp_path / "source.npy"
    source.write_bytes(b"content")
    writer = open_writer(tmp_path / "s" / "r")
    wanted = "Kernel.Default/fc/MatMul-op0.MatMul.0.forward.input.0.npy"
    name = writer.link_tensor(wanted, source)
    assert name is not None
    linked = tmp_path / "s" / "r" / "dump_tensor_data" / name
    assert linked.samefile(source)
    source.unlink()
    source.write_bytes(b"other")
    assert linked.read_bytes() == b"content"
    assert writer.link_tensor(wanted, source) == name  # the name is taken: replaced by a copy
    assert linked.read_bytes() == b"other"
    assert not linked.samefile(source)


def test_a_file_that_cannot_be_stored_is_named_once_per_cause_and_each_in_the_log(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "s" / "r")
    names = ["Kernel.Default/fc.0.forward.input.0.npy", "100%.npy"]
    for name in names:
        assert writer.link_tensor(name, tmp_path / "missing") is None
    writer.finish({})
    cause = f"{tmp_path / 's' / 'r' / 'dump_tensor_data'}: No such file or directory (errno 2)"
    assert writer.failures == [f"{cause}: {names[0]}"]
    log = (tmp_path / "s" / "r" / "dump_error_info.log").read_text().splitlines()
    assert [line.partition(" ")[2] for line in log] == [f"{cause}: {name}" for name in names]
