"""Processes that die or fork in the middle of a step: what was added a second before is there."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_cases import open_writer, record, run, script

from msprobe.store import iter_records, read_dump, recover
from msprobe.store.part_file import TAIL_DUMP, TAIL_OBJECT, cut_back, salvage

ENDLESS = """
folder = Path(sys.argv[1])
writer = open_writer(folder, flush_every=0.5)
out = os.fdopen(1, "w", buffering=1)
index = 0
while True:
    name = f"Torch.relu.{index}.forward"
    writer.add(name, record(float("nan") if index % 7 == 0 else 1.0))
    writer.add_parent(name, None)
    writer.add_stack(name, index % 11)
    print(index, time.monotonic(), file=out)
    index += 1
    if index % 50 == 0:
        time.sleep(0.002)
"""


def added_before(output: bytes, moment: float) -> int:
    """Return how many records had been added one second, or 1,000 records, before a moment."""
    lines = [line.split() for line in output.decode().rpartition("\n")[0].splitlines() if line.count(" ") == 1]
    return max(sum(float(when) < moment - 1.0 for _, when in lines), len(lines) - 1000)


@pytest.mark.parametrize("seed", range(2))
def test_a_killed_process_loses_less_than_a_second(tmp_path: Path, seed: int) -> None:
    folder = tmp_path / "step0" / "rank0"
    process = subprocess.Popen([*script(ENDLESS), str(folder)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    deadline = time.monotonic() + 1.6 + random.Random(seed).random()
    collected = b""
    while time.monotonic() < deadline:
        collected += process.stdout.read1()
    killed = time.monotonic()
    process.send_signal(signal.SIGKILL)
    collected += process.stdout.read()
    process.wait()
    expected = [f"Torch.relu.{index}.forward" for index in range(added_before(collected, killed))]
    assert len(expected) > 100

    dump = read_dump(folder)
    assert not dump.complete
    for names in (list(dump.data), list(dump.parents), [name for name, _ in iter_records(folder)]):
        assert names[: len(expected)] == expected
    assert dump.stacks[expected[-1]] == [f"File a.py, line {(len(expected) - 1) % 11}, in f"]

    report = recover(tmp_path)
    assert [entry.state for entry in report.folders] == ["repaired"]
    assert report.folders[0].records == len(dump.data)
    assert list(json.loads((folder / "dump.json").read_bytes())["data"]) == list(dump.data)
    assert list(json.loads((folder / "construct.json").read_bytes())) == list(dump.parents)
    stacks = json.loads((folder / "stack.json").read_bytes())
    assert len(stacks) == 11
    assert {name for names, _ in stacks.values() for name in names} == set(dump.stacks)
    assert [entry.state for entry in recover(tmp_path).folders] == ["fine"]


@pytest.mark.parametrize(
    ("ending", "complete"),
    [
        ("os._exit(3)", False),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)", False),
        ("os.abort()", False),
        ("raise RuntimeError('user error')", True),
        ("sys.exit(0)", True),
        ("pass", True),
        ("threading.Thread(target=time.sleep, args=(0.1,)).start()", True),
    ],
)
def test_however_the_process_ends_the_step_is_readable(tmp_path: Path, ending: str, complete: bool) -> None:
    folder = tmp_path / "step0" / "rank0"
    body = f"""
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    writer = open_writer(Path(sys.argv[1]), flush_every=0.1, coverage=lambda: {{"why": "exit"}})
    for index in range(1500):
        writer.add(str(index), record())
        writer.add_stack(str(index), 1)
    if {not complete}:
        time.sleep(1.0)
    {ending}
    """
    run(body, folder)
    dump = read_dump(folder)
    assert list(dump.data) == [str(index) for index in range(1500)]
    assert len(dump.stacks) == 1500
    assert dump.complete == complete
    assert dump.coverage is not None
    assert dump.coverage.get("why") == ("exit" if complete else None)
    json.loads((folder / "dump.json").read_bytes())


def test_a_forked_child_writes_nothing_and_does_not_hang(tmp_path: Path) -> None:
    """Forks at random moments while another thread holds the writer's lock most of the time."""
    folder = tmp_path / "step0" / "rank0"
    body = """
    import warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    writer = open_writer(Path(sys.argv[1]), flush_every=0.0001)
    stop = threading.Event()
    def work():
        index = 0
        while not stop.is_set():
            writer.add(f"parent{index}", record())
            index += 1
            if index % 200 == 0:
                writer.flush()
    thread = threading.Thread(target=work)
    thread.start()
    for round in range(8):
        child = os.fork()
        if child == 0:
            for index in range(1200):
                writer.add(f"child{index}", {})
                writer.add_stack(f"child{index}", 1)
            assert writer.write_tensor("child.pt", lambda file: file.write(b"x")) is None
            writer.note_failure("child")
            writer.flush(); writer.pause()
            if round % 2:
                writer.finish({})
                os._exit(0)
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
    stop.set()
    thread.join()
    writer.add("last", {})
    writer.finish({})
    """
    done = run(body, folder)
    assert done.returncode == 0, done.stderr
    dump = read_dump(folder)
    assert dump.complete
    assert "last" in dump.data
    assert not [name for name in dump.data if name.startswith("child")]
    assert list((folder / "dump_tensor_data").iterdir()) == []
    assert not (folder / "dump_error_info.log").exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cut") / "step0" / "rank0"
    writer = open_writer(folder)
    for index, name in enumerate(["a", 'b"}}\n', "层,\n", "d"]):
        writer.add(name, {"x": [None, float("nan"), {"i": index}]})
        writer.add_parent(name, None if index == 0 else "a")
        writer.add_stack(name, index % 2)
        writer.flush()
    writer.finish({})
    return folder


def test_a_file_cut_at_any_byte_keeps_every_complete_record(finished: Path) -> None:
    for name, tail in (("dump.json", TAIL_DUMP), ("construct.json", TAIL_OBJECT)):
        text = (finished / name).read_bytes()
        head = text.index(b"\n") + 1
        ends = [place for place, byte in enumerate(text) if byte == 10]
        for length in range(head, len(text)):
            fixed = cut_back(text[:length], tail)
            assert fixed is not None
            content = json.loads(fixed)
            members = content["data"] if name == "dump.json" else content
            complete = sum(end < length for end in ends[1:])  # a record is complete when its line break was written
            assert len(members) in {min(complete, 4), min(complete + 1, 4)}
            assert list(members) == ["a", 'b"}}\n', "层,\n", "d"][: len(members)]


@given(st.data())
@settings(max_examples=60)
def test_holes_of_zero_bytes_cost_only_the_records_they_hit(finished: Path, data: st.DataObject) -> None:
    text = bytearray((finished / "dump.json").read_bytes())
    head = text.index(b"\n") + 1
    start = data.draw(st.integers(head, len(text)))
    end = data.draw(st.integers(start, len(text)))
    text[start:end] = bytes(end - start)
    fixed = salvage(bytes(text), TAIL_DUMP)
    assert fixed is not None
    names = list(json.loads(fixed)["data"])
    assert names == [name for name in ["a", 'b"}}\n', "层,\n", "d"] if name in names]
    hit = text[head:start].count(b"\n")
    assert len(names) >= min(hit, 4)


def test_a_half_written_file_is_read_and_recovered_on_disk(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "step0" / "rank0"
    folder.mkdir(parents=True)
    text = (finished / "dump.json").read_bytes()
    (folder / "dump.json").write_bytes(text[: text.index(b'"d"') + 8])
    (folder / "construct.json").write_bytes(b'{\n"a":null,\n"b":"a')
    (folder / "stack.json.part").write_bytes(b'{"stack":0,"frames":["f"]}\n{"stack":0,"names":["a"]}\n{"stack":0,"na')
    (folder / "dump_tensor_data").mkdir()
    (folder / "dump_tensor_data" / ".7.0.tmp").write_bytes(b"half")
    dump = read_dump(folder)
    assert (list(dump.data), dump.parents, dump.stacks) == (["a", 'b"}}\n', "层,\n"], {"a": None}, {"a": ["f"]})
    assert not dump.complete
    report = recover(folder / "dump.json")
    assert report.repaired == 1
    assert report.folders[0].records == 3
    assert len(report.folders[0].actions) == 4
    assert len(json.loads((folder / "dump.json").read_bytes())["data"]) == 3
    assert json.loads((folder / "stack.json").read_bytes()) == {"0": [["a"], ["f"]]}
    assert list((folder / "dump_tensor_data").iterdir()) == []


def test_recover_leaves_a_step_alone_that_a_living_process_writes(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "step0" / "rank0")
    writer.add("a", record())
    writer.add_stack("a", 1)
    writer.flush()
    assert [entry.state for entry in recover(tmp_path).folders] == ["open"]
    writer.finish({})
    assert [entry.state for entry in recover(tmp_path).folders] == ["fine"]
    assert read_dump(tmp_path / "step0" / "rank0").complete


def test_a_process_that_was_killed_before_its_first_line_leaves_an_empty_dump(tmp_path: Path) -> None:
    folder = tmp_path / "step0" / "rank0"
    folder.mkdir(parents=True)
    others = {"construct.json": {}, "stack.json": {}, "coverage.json": {"complete": False}}
    for name in ("dump.json", *others):
        (folder / name).touch()
    assert not read_dump(folder).complete
    (report,) = recover(tmp_path).folders
    assert (report.state, len(report.actions)) == ("repaired", 4)
    assert json.loads((folder / "dump.json").read_bytes())["data"] == {}
    for name, content in others.items():
        assert json.loads((folder / name).read_bytes()) == content
    assert not read_dump(folder).complete
    assert [report.state for report in recover(tmp_path).folders] == ["fine"]


@pytest.mark.parametrize("name", ["dump.json", "debug.json"])
def test_a_file_of_a_process_killed_before_its_first_line_holds_no_record(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    dump = read_dump(tmp_path)
    assert (dump.data, dump.complete) == ({}, False)
    assert list(iter_records(tmp_path)) == []
    recover(tmp_path)
    assert read_dump(tmp_path).data == {}
