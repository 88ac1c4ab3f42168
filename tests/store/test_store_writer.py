"""The writer of one step: content of the files, order, life cycle, threads, callbacks that fail."""

from __future__ import annotations

import json
import math
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from store_cases import open_writer, record

from msprobe.store import StepWriter, iter_records, read_dump


def load(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_bytes())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "out" / "step0" / "rank0"


def test_files_are_valid_as_soon_as_there_is_something_to_write(folder: Path) -> None:
    writer = open_writer(folder)
    assert not folder.exists()
    writer.add("a", {})
    writer.flush()
    assert load(folder, "dump.json") == {
        "task": "statistics",
        "level": "L1",
        "framework": "pytorch",
        "dump_data_dir": str(folder / "dump_tensor_data"),
        "data": {"a": {}},
    }
    assert load(folder, "stack.json") == load(folder, "construct.json") == {}
    assert not read_dump(folder).complete
    writer.finish({})


def test_every_flush_leaves_complete_json_with_all_records_in_order(folder: Path) -> None:
    writer = open_writer(folder)
    names = [f"Torch.relu.{index}.forward" for index in range(25)]
    for index, name in enumerate(names):
        writer.add(name, {"n": index})
        if index % 10 == 0:
            writer.flush()
            assert list(load(folder, "dump.json")["data"]) == names[: index + 1]
    writer.finish({"calls": 25})
    dump = read_dump(folder)
    assert list(dump.data) == names
    assert dump.complete
    assert dump.coverage is not None
    assert dump.coverage["calls"] == dump.coverage["records"] == 25


def test_one_record_per_line_so_that_text_tools_and_streams_work(folder: Path) -> None:
    writer = open_writer(folder)
    for index in range(3):
        writer.add(f"a\n{index}", {"x": [None, math.nan]})
    writer.finish({})
    lines = (folder / "dump.json").read_text().splitlines()
    assert len(lines) == 1 + 3 + 1
    assert [name for name, _ in iter_records(folder)] == ["a\n0", "a\n1", "a\n2"]


def test_a_full_batch_is_written_without_asking(folder: Path) -> None:
    writer = open_writer(folder, batch=10)
    for index in range(25):
        writer.add(str(index), {})
    assert len(load(folder, "dump.json")["data"]) == 20
    writer.finish({})


def test_the_background_thread_writes_within_a_second(folder: Path) -> None:
    writer = open_writer(folder, flush_every=0.05)
    writer.add("a", {})
    deadline = threading.Event()
    for _ in range(100):
        if (folder / "dump.json").exists() and b'"a"' in (folder / "dump.json").read_bytes():
            break
        deadline.wait(0.01)
    assert load(folder, "dump.json")["data"] == {"a": {}}
    writer.finish({})
    for _ in range(200):  # the thread ends when it next wakes up and finds no writer open
        if not [thread for thread in threading.enumerate() if thread.name == "msprobe-flush"]:
            break
        deadline.wait(0.01)
    assert not [thread for thread in threading.enumerate() if thread.name == "msprobe-flush"]


def test_one_thread_serves_all_steps_and_each_at_its_own_pace(tmp_path: Path) -> None:
    slow = open_writer(tmp_path / "slow", flush_every=60.0)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "msprobe-flush"]
    fast = open_writer(tmp_path / "fast", flush_every=0.02)
    assert [other for other in threading.enumerate() if other.name == "msprobe-flush"] == [thread]
    fast.add("a", {})
    for _ in range(200):
        file = tmp_path / "fast" / "dump.json"
        if file.exists() and b'"a"' in file.read_bytes():
            break
        threading.Event().wait(0.01)
    assert load(tmp_path / "fast", "dump.json")["data"] == {"a": {}}
    slow.finish({})
    fast.finish({})


def test_asynchronous_mode_writes_nothing_before_the_pause(folder: Path) -> None:
    writer = open_writer(folder, batch=None, flush_every=None)
    for index in range(3000):
        writer.add(str(index), {})
    assert not folder.exists()
    writer.pause()
    assert len(load(folder, "dump.json")["data"]) == 3000
    writer.finish({})


def test_stacks_are_stored_once_with_all_names_that_share_them(folder: Path) -> None:
    writer = open_writer(folder)
    for index in range(6):
        writer.add_stack(f"call{index}", index % 2)
    writer.pause()
    assert load(folder, "stack.json") == {
        "0": [["call0", "call2", "call4"], ["File a.py, line 0, in f"]],
        "1": [["call1", "call3", "call5"], ["File a.py, line 1, in f"]],
    }
    writer.finish({})


def test_stacks_are_complete_after_every_pause_and_merged_at_the_end(folder: Path) -> None:
    writer = open_writer(folder)
    rendered: list[int] = []
    writer._render_stack = lambda key: rendered.append(key) or [f"line {key}"]
    for part in range(3):
        writer.add_stack(f"call{part}", 7)
        writer.pause()
        names = [name for names, _ in load(folder, "stack.json").values() for name in names]
        assert names == [f"call{index}" for index in range(part + 1)]
    writer.finish({})
    assert load(folder, "stack.json") == {"0": [["call0", "call1", "call2"], ["line 7"]]}
    assert rendered == [7]
    assert not (folder / "stack.json.part").exists()


def test_keys_with_equal_frames_share_one_entry(folder: Path) -> None:
    writer = open_writer(folder, render_stack=lambda key: ["same"])
    writer.add_stack("a", 1)
    writer.add_stack("b", 2)
    writer.finish({})
    assert load(folder, "stack.json") == {"0": [["a", "b"], ["same"]]}


def test_parents_are_written_with_null_for_the_top(folder: Path) -> None:
    writer = open_writer(folder)
    writer.add_parent("Torch.relu.0.forward", "Module.a.A.forward.0")
    writer.add_parent("Module.a.A.forward.0", None)
    writer.finish({})
    expected = {"Torch.relu.0.forward": "Module.a.A.forward.0", "Module.a.A.forward.0": None}
    assert load(folder, "construct.json") == read_dump(folder).parents == expected


def test_without_extra_info_and_tensors_only_the_dump_is_made(folder: Path) -> None:
    writer = open_writer(folder, extra_info=False, tensors=False)
    writer.add("a", {})
    writer.add_parent("a", None)
    writer.add_stack("a", 1)
    assert writer.write_tensor("a.pt", lambda file: file.write(b"x")) is None
    writer.finish({})
    assert sorted(entry.name for entry in folder.iterdir()) == ["coverage.json", "dump.json"]
    assert load(folder, "dump.json")["dump_data_dir"] is None


def test_level_debug_writes_debug_json_alone(folder: Path) -> None:
    writer = open_writer(folder, level="debug")
    writer.add("a.0.debug", {"x": 1})
    writer.add_parent("a.0.debug", None)
    writer.finish({})
    assert {"coverage.json", "debug.json", "dump_tensor_data"} == {entry.name for entry in folder.iterdir()}
    assert read_dump(folder).data == {"a.0.debug": {"x": 1}}


def test_a_name_given_twice_keeps_the_last_record_and_is_counted(folder: Path) -> None:
    writer = open_writer(folder)
    for value in (1, 2):
        writer.add("a", {"v": value})
    writer.flush()
    writer.add("a", {"v": 3})
    writer.finish({})
    dump = read_dump(folder)
    assert dump.data == {"a": {"v": 3}}
    assert dump.coverage is not None
    assert (dump.coverage["records"], dump.coverage["duplicates"]) == (3, 2)


def test_results_are_resolved_before_they_are_written(folder: Path) -> None:
    entry = {"Max": None}
    writer = open_writer(folder, resolve=lambda: entry.update(Max=math.inf))
    writer.add("a", {"output": [entry]})
    writer.finish({})
    assert read_dump(folder).data["a"]["output"] == [{"Max": math.inf}]


def test_threads_may_add_at_the_same_time(folder: Path) -> None:
    writer = open_writer(folder, batch=50, flush_every=0.001)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def work(number: int) -> None:
        for index in range(2000):
            writer.add(f"{number}.{index}", {"i": index})
            writer.add_parent(f"{number}.{index}", None)

    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    writer.finish({})
    dump = read_dump(folder)
    assert len(dump.data) == len(dump.parents) == 8000
    for number in range(4):
        assert [name for name in dump.data if name.startswith(f"{number}.")] == [f"{number}.{i}" for i in range(2000)]


def test_failing_callbacks_cost_their_own_result_only(folder: Path) -> None:
    def fail(*_: object) -> Any:
        raise KeyError("broken")

    writer = open_writer(folder, resolve=fail, render_stack=fail)
    writer.add("a", {})
    writer.add_stack("a", 1)
    assert writer.write_tensor("a.pt", fail) is None
    writer.finish({})
    assert list(read_dump(folder).data) == ["a"]
    assert len(writer.failures) == 3
    assert all("KeyError" in reason for reason in writer.failures)
    assert (folder / "dump_error_info.log").read_text().count("KeyError") == 3
    assert list((folder / "dump_tensor_data").iterdir()) == []


def test_a_record_without_json_form_is_left_empty_and_named(folder: Path) -> None:
    loop: list[Any] = []
    loop.append(loop)
    writer = open_writer(folder)
    for name, value in [("a", {"x": 1}), ("bad", {"x": object()}), ("loop", {"x": loop}), ("b", {"x": math.nan})]:
        writer.add(name, value)
    writer.finish({})
    data = read_dump(folder).data
    assert data["a"] == {"x": 1}
    assert data["bad"] == data["loop"] == {}
    assert math.isnan(data["b"]["x"])
    assert "record bad" in writer.failures[0]
    assert "record loop" in writer.failures[1]


def test_a_coverage_without_json_form_still_finishes_the_step(folder: Path) -> None:
    writer = open_writer(folder)
    writer.add("a", {})
    writer.finish({"odd": object()})
    coverage = load(folder, "coverage.json")
    assert coverage["complete"]
    assert coverage["records"] == 1
    assert "TypeError" in coverage["coverage_error"]


def test_what_comes_after_the_end_is_dropped_with_one_message(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = open_writer(folder)
    writer.add("in time", {})
    writer.finish({})
    for index in range(10):
        writer.add(str(index), {})
        writer.add_parent(str(index), None)
        writer.add_stack(str(index), 1)
    writer.pause()
    writer.finish({})
    assert read_dump(folder).data == {"in time": {}}
    assert len(caplog.messages) == 1
    assert "after the end of the step" in caplog.messages[0]


def test_a_flush_from_inside_a_callback_neither_blocks_nor_corrupts(folder: Path) -> None:
    holder: list[StepWriter] = []

    def resolve() -> None:
        holder[0].add("inner", {})
        holder[0].flush()

    holder.append(open_writer(folder, resolve=resolve))
    holder[0].add("outer", {})
    holder[0].flush()
    holder[0].finish({})
    assert {"outer", "inner"} <= set(read_dump(folder).data)


def test_an_interrupted_flush_is_repeated_in_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A KeyboardInterrupt may arrive after the write and before it is counted."""
    import os

    writer = open_writer(folder)
    writer.add("a", {"long": "x" * 1000})
    real = os.pwrite

    def interrupt(descriptor: int, content: memoryview, offset: int) -> int:
        written = real(descriptor, content, offset)
        if b'"a"' in content.tobytes():
            monkeypatch.setattr(os, "pwrite", real)
            raise KeyboardInterrupt
        return written

    monkeypatch.setattr(os, "pwrite", interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.flush()
    writer.add("b", {})
    writer.finish({})
    assert list(load(folder, "dump.json")["data"]) == ["a", "b"]


def test_memory_does_not_grow_with_the_records_written(folder: Path) -> None:
    writer = open_writer(folder, extra_info=True)
    shared = record()

    def fill(start: int) -> None:
        for index in range(start, start + 20_000):
            name = f"Torch.relu.{index}.forward"
            writer.add(name, shared)
            writer.add_parent(name, "Module.a.A.forward.0")
            writer.add_stack(name, index % 50)
        writer.flush()

    tracemalloc.start()
    fill(0)
    before = tracemalloc.get_traced_memory()[0]
    fill(20_000)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    writer.finish({})
    assert grown < 20_000 * 16  # eight bytes per name, and slack of the array


def test_pause_and_resume_cost_the_same_however_large_the_file_is(folder: Path) -> None:
    """Counted in bytes written, not in time: a pause with nothing new must not touch the files."""
    writer = open_writer(folder)
    for index in range(5000):
        writer.add(str(index), record())
        writer.add_stack(str(index), 1)
    writer.pause()
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    for _ in range(50):
        writer.pause()
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    writer.finish({})


def test_relocate_moves_the_open_step_and_corrects_the_head(folder: Path) -> None:
    writer = open_writer(folder.with_name("proc123456"))
    writer.add("a", {})
    writer.flush()
    writer.relocate(folder)
    writer.add("b", {})
    assert writer.write_tensor("b.pt", lambda file: file.write(b"x")) == "b.pt"
    writer.finish({})
    assert writer.folder == folder
    assert list(read_dump(folder).data) == ["a", "b"]
    assert load(folder, "dump.json")["dump_data_dir"] == str(folder / "dump_tensor_data")
    assert (folder / "dump_tensor_data" / "b.pt").read_bytes() == b"x"


def test_a_file_for_another_program_is_written_over_and_a_refusal_is_noted(folder: Path) -> None:
    writer = open_writer(folder)
    for number in (1, 2):
        assert writer.write_file("acl.json", {"number": number}) == folder / "acl.json"
        assert load(folder, "acl.json") == {"number": number}
    assert writer.write_file("no/such/folder.json", {}) is None
    assert "no/such/folder.json" in writer.failures[0]
    writer.finish({})
