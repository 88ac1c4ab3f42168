"""Reading dumps of ours and of other tools, whole and damaged."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from store_cases import open_writer, record

from msprobe.store import DumpReadError, iter_records, read_dump, recover


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """Return a rank folder as mindstudio-probe writes it: indented JSON, no coverage.json."""
    folder = tmp_path / "step0" / "rank0"
    folder.mkdir(parents=True)
    data = {f"Torch.relu.{index}.forward": record(math.nan) for index in range(3)}
    dump = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": "/gone", "data": data}
    (folder / "dump.json").write_text(json.dumps(dump, indent=1))
    (folder / "stack.json").write_text(json.dumps({"0": [["Torch.relu.0.forward"], ["f1", "f2"]]}, indent=1))
    (folder / "construct.json").write_text(json.dumps({"Torch.relu.0.forward": None}, indent=1))
    return folder


def test_a_dump_of_another_tool_is_read_and_counts_as_finished(foreign: Path) -> None:
    dump = read_dump(foreign)
    assert (dump.task, dump.level, dump.framework) == ("statistics", "L1", "pytorch")
    assert len(dump.data) == 3
    assert math.isnan(dump.data["Torch.relu.0.forward"]["output"][0]["Max"])
    assert dump.stacks == {"Torch.relu.0.forward": ["f1", "f2"]}
    assert dump.parents == {"Torch.relu.0.forward": None}
    assert dump.coverage is None
    assert dump.complete
    assert dump.tensor_folder is None
    assert [name for name, _ in iter_records(foreign)] == list(dump.data)
    assert [entry.state for entry in recover(foreign).folders] == ["fine"]


def test_a_damaged_dump_of_another_tool_is_reported_not_touched(foreign: Path) -> None:
    text = (foreign / "dump.json").read_bytes()
    (foreign / "dump.json").write_bytes(text[:500])
    with pytest.raises(DumpReadError, match=r"dump\.json: not JSON"):
        read_dump(foreign)
    (report,) = recover(foreign).folders
    assert report.state == "damaged"
    assert "cannot be repaired" in report.actions[0]
    assert (foreign / "dump.json").read_bytes() == text[:500]


def test_the_file_itself_may_be_named(foreign: Path) -> None:
    assert read_dump(str(foreign / "dump.json")).path == foreign / "dump.json"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no dump.json or debug.json here"),
        (" ", "not JSON"),
        ("[1]", "holds list instead of an object"),
        ('{"task": "statistics"}', 'no object under the key "data"'),
        ('{"data": []}', 'no object under the key "data"'),
    ],
)
def test_what_is_not_a_dump_is_refused_with_the_reason(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "dump.json").write_text(content)
    with pytest.raises(DumpReadError, match=message):
        read_dump(tmp_path)
    with pytest.raises(ValueError, match=str(tmp_path)):
        list(iter_records(tmp_path))


def test_recover_says_when_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(DumpReadError, match="give a dump_path"):
        recover(tmp_path)


def test_a_moved_dump_finds_its_tensors_beside_itself(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "a" / "rank0")
    writer.add("x", {})
    writer.finish({})
    (tmp_path / "a").rename(tmp_path / "b")
    assert read_dump(tmp_path / "b" / "rank0").tensor_folder == tmp_path / "b" / "rank0" / "dump_tensor_data"


def test_a_damaged_side_file_does_not_hide_the_dump(tmp_path: Path) -> None:
    folder = tmp_path / "step0" / "rank0"
    writer = open_writer(folder)
    writer.add("x", {})
    writer.finish({})
    for name in ("stack.json", "construct.json", "coverage.json"):
        (folder / name).write_text("\0\0")
    dump = read_dump(folder)
    assert list(dump.data) == ["x"]
    assert (dump.stacks, dump.parents, dump.coverage) == ({}, {}, None)
    assert not dump.complete


def test_records_are_streamed_with_bounded_memory(tmp_path: Path) -> None:
    import tracemalloc

    folder = tmp_path / "step0" / "rank0"
    writer = open_writer(folder, extra_info=False)
    for index in range(20_000):
        writer.add(str(index), record())
    writer.finish({})
    size = (folder / "dump.json").stat().st_size
    tracemalloc.start()
    count = sum(1 for _ in iter_records(folder))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 20_000
    assert peak < size / 20


def test_the_store_imports_no_framework() -> None:
    from store_cases import run

    done = run("print(sorted({'torch', 'mindspore', 'numpy', 'pydantic'} & set(sys.modules)))")
    loaded: Any = done.stdout.strip()
    assert loaded == "[]", done.stderr
