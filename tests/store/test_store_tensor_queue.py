"""Tensor files that a thread writes, or that wait for the end of the step: complete, bounded, no silent loss."""

from __future__ import annotations

import errno
import os
import threading
import time
import weakref
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from store_cases import open_writer, run

from msprobe.measure.tensor_files import FileMaker
from msprobe.store import read_dump
from msprobe.store.memory_bound import free_memory, memory_bound

MAKER = FileMaker()


class Text:
    """A content that counts what is held, may be slow and may be refused by the disk."""

    held = 0
    most_held = 0
    in_host_memory = True

    def __init__(
        self, text: bytes = b"x", key: object = None, gate: Any = None, error: Exception | None = None
    ) -> None:
        self.text, self.key, self.gate, self.error = text, key, gate, error
        self.host_bytes = len(text)
        self.lost = self.is_held = False

    def fingerprint(self) -> object:
        return self.key

    def hold(self) -> None:
        self.is_held = True
        Text.held += self.host_bytes
        Text.most_held = max(Text.most_held, Text.held)

    def pieces(self) -> list[bytes]:
        if self.gate is not None:
            assert self.gate.wait(20)
        if self.error is not None:
            raise self.error
        return [self.text[:1], self.text[1:]]

    def release(self) -> None:
        Text.held -= self.host_bytes * self.is_held
        self.is_held = False

    def lose(self) -> None:
        self.lost = True

    def __call__(self, destination: BinaryIO) -> None:
        destination.write(b"".join(self.pieces()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Text.held = Text.most_held = 0
    return tmp_path / "step0" / "rank0"


def names_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.glob("dump_tensor_data/*"))


def data_of(folder: Path, name: str) -> bytes:
    return (folder / "dump_tensor_data" / name).read_bytes()


def test_a_record_becomes_readable_only_after_the_files_that_it_names(folder: Path) -> None:
    gate = threading.Event()
    writer = open_writer(folder, flush_every=0.02)
    name = writer.write_tensor("a.pt", Text(gate=gate))
    writer.add("a", {"output": [{"data_name": name}]})
    time.sleep(0.2)
    assert b'"a"' not in (folder / "dump.json").read_bytes()
    gate.set()
    for _ in range(200):
        if read_dump(folder).data:
            break
        time.sleep(0.01)
    assert read_dump(folder).data == {"a": {"output": [{"data_name": "a.pt"}]}}
    assert data_of(folder, "a.pt") == b"x"
    writer.finish({})


def test_a_thread_writes_while_the_training_goes_on_and_ends_with_the_step(folder: Path) -> None:
    writer = open_writer(folder)
    for index in range(3):
        writer.write_tensor(f"{index}.pt", Text(b"y" * (2 << 20)))
    last = folder / "dump_tensor_data" / "2.pt"
    for _ in range(500):  # a file has its name before it is complete; no record names it yet
        if last.exists() and last.stat().st_size == 2 << 20:
            break
        time.sleep(0.01)
    assert data_of(folder, "2.pt") == b"y" * (2 << 20)
    writer.finish({})
    assert not [thread for thread in threading.enumerate() if thread.name == "msprobe-tensors"]
    assert Text.held == 0


def test_without_a_spare_core_a_tensor_is_written_at_once_and_not_copied(folder: Path) -> None:
    writer = open_writer(folder, spare_core=False)
    values = {
        "a": torch.randn(50),
        "b": torch.randn(4, 5).t(),
        "c": torch.ones(3).to_sparse(),
        "d": torch.tensor(1 + 2j),
    }
    for _ in range(2):  # the second time each file is a link, or replaced
        for name, value in values.items():
            assert writer.write_tensor(f"{name}.pt", MAKER.content(value)) == f"{name}.pt"
            loaded = torch.load(folder / "dump_tensor_data" / f"{name}.pt", weights_only=True)
            assert torch.equal(loaded.to_dense(), value.to_dense())
    assert writer.write_tensor("e.pt", Text()) == "e.pt"
    assert Text.most_held == 0
    full = OSError(errno.ENOSPC, "No space left on device")
    assert writer.write_tensor("f.pt", Text(error=full, key=1)) is None
    assert writer.write_tensor("g.pt", Text(b"later", key=1)) == "g.pt"
    assert not [thread for thread in threading.enumerate() if thread.name == "msprobe-tensors"]
    writer.finish({})
    assert names_in(folder) == ["a.pt", "b.pt", "c.pt", "d.pt", "e.pt", "g.pt"]


def test_without_a_spare_core_a_thread_still_waits_for_the_device(folder: Path) -> None:
    gate = threading.Event()
    content = Text(gate=gate)
    content.in_host_memory = False
    writer = open_writer(folder, spare_core=False)
    assert writer.write_tensor("a.pt", content) == "a.pt"  # the gate is closed, and this returns
    gate.set()
    writer.finish({})
    assert data_of(folder, "a.pt") == b"x"


def test_copies_never_take_more_memory_than_the_bound(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSPROBE_BUFFER_MB", "1")
    writer = open_writer(folder)
    for index in range(40):
        writer.write_tensor(f"{index}.pt", Text(bytes([index]) * 300_000))
    writer.write_tensor("big.pt", Text(b"b" * (3 << 20)))
    writer.finish({})
    assert 0 < Text.most_held <= 1 << 20
    assert [data_of(folder, f"{index}.pt")[:2] for index in range(40)] == [bytes([index]) * 2 for index in range(40)]
    assert len(data_of(folder, "big.pt")) == 3 << 20


def test_equal_contents_are_one_file_with_several_names(folder: Path) -> None:
    writer = open_writer(folder)
    values = {"a": torch.ones(50), "b": torch.ones(50), "c": torch.zeros(50), "d": torch.ones(100)[::2]}
    for name, value in values.items():
        writer.write_tensor(f"{name}.pt", MAKER.content(value))
    writer.finish({})
    inodes = {name: (folder / "dump_tensor_data" / f"{name}.pt").stat().st_ino for name in values}
    assert inodes["a"] == inodes["b"] == inodes["d"] != inodes["c"]
    for name, value in values.items():
        assert torch.equal(torch.load(folder / "dump_tensor_data" / f"{name}.pt", weights_only=True), value)
    coverage = read_dump(folder).coverage
    assert coverage is not None
    assert coverage["linked_files"] == 2


@pytest.mark.parametrize("how", [{}, {"spare_core": False}, {"asynchronous": True}], ids=str)
def test_a_name_written_again_has_the_last_content_and_its_links_keep_the_first(
    folder: Path, how: dict[str, bool]
) -> None:
    writer = open_writer(folder, **how)
    for name, text in [("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1"), ("d", b"2"), ("b", b"3"), ("a", b"1")]:
        writer.write_tensor(name, Text(text, key=text))
    writer.finish({})
    assert [data_of(folder, name) for name in "abcd"] == [b"1", b"3", b"1", b"2"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_waiting_file_keeps_no_tensor_alive(folder: Path, asynchronous: bool) -> None:
    writer = open_writer(folder, asynchronous=asynchronous)
    dead = []
    for name in "ab":
        tensor = torch.ones(50)
        writer.write_tensor(f"{name}.pt", MAKER.content(tensor))
        dead.append(weakref.ref(tensor))
        del tensor
    assert [reference() for reference in dead] == [None, None]
    writer.finish({})
    assert len(names_in(folder)) == 2


def test_the_thread_ends_when_nothing_comes_and_starts_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("msprobe.store.tensor_queue._IDLE_POLLS", 1)
    writer = open_writer(folder)
    for name in "ab":
        writer.write_tensor(name, Text())
        for _ in range(200):
            if not [thread for thread in threading.enumerate() if thread.name == "msprobe-tensors"]:
                break
            time.sleep(0.02)
        else:
            pytest.fail("the thread goes on without work")
        assert data_of(folder, name) == b"x"
    writer.finish({})


def test_without_hard_links_equal_contents_are_copies(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    writer = open_writer(folder)
    for name in "abc":
        writer.write_tensor(name, Text(b"same", key=1))
    writer.finish({})
    assert [data_of(folder, name) for name in "abc"] == [b"same"] * 3
    coverage = read_dump(folder).coverage
    assert coverage is not None
    assert "linked_files" not in coverage
    assert coverage["failures"] == []


def test_a_file_that_the_disk_refuses_is_taken_out_of_its_record(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = open_writer(folder)
    full = OSError(errno.ENOSPC, "No space left on device")
    gate = threading.Event()
    contents = [Text(key=1, error=full, gate=gate), Text(key=1), Text(b"other", key=2), Text(error=full)]
    for index, content in enumerate(contents):
        assert writer.write_tensor(f"{index}.pt", content) == f"{index}.pt"
    gate.set()
    writer.pause()
    assert [content.lost for content in contents] == [True, True, False, True]
    assert writer.write_tensor("later.pt", Text(key=1)) == "later.pt"  # space may be there again
    writer.finish({})
    assert names_in(folder) == ["2.pt", "later.pt"]
    coverage = read_dump(folder).coverage
    assert coverage is not None
    assert coverage["lost_files"] == 3
    assert [text for text in coverage["failures"] if "No space left" in text]
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
    assert Text.held == 0


def test_an_asynchronous_step_writes_no_file_before_the_pause(folder: Path) -> None:
    writer = open_writer(folder, asynchronous=True)
    tensor = torch.ones(3)
    for index in range(3000):
        name = writer.write_tensor(f"{index}.pt", MAKER.content(tensor))
        writer.add(str(index), {"data_name": name})
        tensor.add_(1)
    assert not folder.exists()
    assert not [thread for thread in threading.enumerate() if thread.name == "msprobe-tensors"]
    writer.pause()
    assert len(names_in(folder)) == 3000
    assert len(read_dump(folder).data) == 3000
    assert torch.equal(torch.load(folder / "dump_tensor_data" / "2.pt"), torch.full((3,), 3.0))
    writer.write_tensor("again.pt", Text(b"z"))
    writer.finish({})
    assert data_of(folder, "again.pt") == b"z"


def test_a_large_asynchronous_step_is_written_by_two_threads(folder: Path) -> None:
    writer = open_writer(folder, asynchronous=True)
    for index in range(6):
        writer.write_tensor(f"{index}.pt", Text(bytes([index]) * (1 << 20), key=index % 3))
    writer.finish({})
    assert [data_of(folder, f"{index}.pt")[0] for index in range(6)] == [0, 1, 2, 0, 1, 2]
    assert not [thread for thread in threading.enumerate() if thread.name == "msprobe-tensors"]


def test_beyond_the_bound_an_asynchronous_step_writes_at_once_and_says_so_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MSPROBE_BUFFER_MB", "1")
    writer = open_writer(folder, asynchronous=True)
    for index in range(6):
        writer.write_tensor(f"{index}.pt", Text(bytes([index]) * 400_000))
    assert names_in(folder) == [f"{index}.pt" for index in range(2, 6)]
    assert Text.most_held <= 1 << 20
    writer.finish({})
    assert [data_of(folder, f"{index}.pt")[0] for index in range(6)] == list(range(6))
    (message,) = [record.getMessage() for record in caplog.records]
    assert "async_dump" in message
    assert "1 MiB" in message
    assert "MSPROBE_BUFFER_MB" in message
    coverage = read_dump(folder).coverage
    assert coverage is not None
    assert [text for text in coverage["failures"] if "1 MiB of host memory" in text]


def test_too_many_records_of_an_asynchronous_step_are_written_inside_it_with_a_message(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = open_writer(folder, asynchronous=True, extra_info=False)
    for index in range(100_001):
        writer.add(str(index), {})
    assert writer.recorded == 100_000
    (message,) = [record.getMessage() for record in caplog.records]
    assert "100000 records wait" in message
    writer.finish({})
    assert writer.recorded == 100_001


def test_a_signal_handler_that_flushes_in_the_middle_of_a_file_does_not_hang(folder: Path) -> None:
    writer = open_writer(folder, asynchronous=True)

    class Interrupted(Text):
        def pieces(self) -> list[bytes]:
            writer.flush()
            writer.pause()
            return [b"x"]

    writer.write_tensor("a.pt", Interrupted())
    writer.write_tensor("b.pt", Text(b"y"))
    writer.add("a", {})
    writer.finish({})
    assert (data_of(folder, "a.pt"), data_of(folder, "b.pt")) == (b"x", b"y")


def test_after_a_kill_every_readable_record_names_complete_files(tmp_path: Path) -> None:
    done = run(
        """
        import torch
        from msprobe.measure.tensor_files import FileMaker
        maker = FileMaker()
        writer = open_writer(Path(sys.argv[1]), flush_every=0.02)
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        for index in range(10**9):
            name = writer.write_tensor(f"{index}.pt", maker.content(torch.full((50_000,), float(index // 2))))
            writer.add(str(index), {"data_name": name})
        """,
        tmp_path / "s" / "r",
    )
    assert done.returncode == -9, done.stderr
    dump = read_dump(tmp_path / "s" / "r")
    for name, record in dump.data.items():
        loaded = torch.load(tmp_path / "s" / "r" / "dump_tensor_data" / record["data_name"], weights_only=True)
        assert torch.equal(loaded, torch.full((50_000,), float(int(name) // 2)))
    assert dump.data


def test_files_that_wait_are_written_when_the_interpreter_exits(tmp_path: Path) -> None:
    body = """
    import torch
    from msprobe.measure.tensor_files import FileMaker
    writers = [open_writer(Path(sys.argv[1], f"s{kind}", "r"), asynchronous=bool(kind)) for kind in (0, 1)]
    for writer in writers:
        for index in range(30):
            name = writer.write_tensor(f"{index}.pt", FileMaker().content(torch.ones(9)))
            writer.add(str(index), {"data_name": name})
    """
    done = run(body, tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("s0", "s1"):
        place = tmp_path / name / "r"
        assert len(names_in(place)) == len(read_dump(place).data) == 30


def test_a_file_that_stops_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    done = run(
        """
        import resource, torch
        from msprobe.measure.tensor_files import FileMaker
        writer = open_writer(Path(sys.argv[1]))
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        for size in (100, 10_000, 200):
            writer.write_tensor(f"{size}.pt", FileMaker().content(torch.ones(size)))
        writer.finish({})
        """,
        tmp_path / "s" / "r",
    )
    assert done.returncode == 0, done.stderr
    assert names_in(tmp_path / "s" / "r") == ["100.pt", "200.pt"]
    assert done.stderr.count("LOG msprobe WARNING") == 1
    assert "file size limit" in done.stderr


def test_a_forked_child_leaves_the_queue_to_its_parent(tmp_path: Path) -> None:
    done = run(
        """
        import torch
        from msprobe.measure.tensor_files import FileMaker
        writer = open_writer(Path(sys.argv[1]))
        writer.write_tensor("a.pt", FileMaker().content(torch.ones(9)))
        child = os.fork()
        if child == 0:
            assert writer.write_tensor("b.pt", FileMaker().content(torch.ones(9))) is None
            writer.pause()
            writer.finish({})
            os._exit(7)
        _, status = os.waitpid(child, 0)
        writer.finish({})
        print(os.waitstatus_to_exitcode(status), os.listdir(Path(sys.argv[1]) / "dump_tensor_data"))
        """,
        tmp_path / "s" / "r",
    )
    assert done.stdout.strip() == "7 ['a.pt']", done.stderr


GIB = 1 << 30


@pytest.mark.parametrize(
    ("environment", "asynchronous", "bound"),
    [
        ({}, True, 4 * GIB),
        ({"LOCAL_WORLD_SIZE": "8"}, True, GIB // 2),
        ({}, False, 256 << 20),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "64"}, False, GIB // 16),
        ({"MSPROBE_BUFFER_MB": "10"}, True, 10 << 20),
        ({"MSPROBE_BUFFER_MB": "10"}, False, 10 << 20),
        ({"MSPROBE_BUFFER_MB": "ten", "LOCAL_WORLD_SIZE": "-"}, True, 4 * GIB),
    ],
)
def test_the_bound_is_what_the_user_says_or_a_share_of_the_free_memory(
    environment: dict[str, str], asynchronous: bool, bound: int
) -> None:
    assert memory_bound(environment, asynchronous=asynchronous, free=16 * GIB) == bound


def test_free_memory_is_what_the_system_says(tmp_path: Path) -> None:
    table = tmp_path / "meminfo"
    table.write_text("MemTotal: 9 kB\nMemAvailable:   2048 kB\n")
    assert free_memory(table) == 2 << 20
    assert free_memory(tmp_path / "absent") == 4 * GIB
    assert free_memory() > 0
