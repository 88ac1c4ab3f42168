"""Records of a dump file one by one, whatever its layout and wherever it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import msprobe.store.members as members
from msprobe.store.members import MemberIndex, first_records, name_of, read_head
from msprobe.store.reader import DumpReadError

RECORDS: dict[str, Any] = {
    "Torch.relu.0.forward": {"input_args": [{"type": "str", "value": 'a\\"}],\n  "b'}], "output": [float("nan")]},
    'odd \\ "name" {[,': {"input": [None, {"x": [1, {"y": []}]}]},
    "层.0.forward": {},
    "Torch.relu.1.forward": {"output": [float("inf"), -1e-30, True]},
}
HEAD = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
LAYOUTS: dict[str, dict[str, Any]] = {
    "indent 1": {"indent": 1},
    "indent 4": {"indent": 4},
    "one line": {},
    "compact": {"separators": (",", ":"), "ensure_ascii": False},
}


def text_of(layout: str) -> str:
    return json.dumps({**HEAD, "data": RECORDS}, **LAYOUTS[layout])


def read(file: Path) -> tuple[list[str], list[Any], bool]:
    index = MemberIndex(file)
    pairs = [index.record(number) for number in range(len(index))]
    assert [name_of(index.raw(number)) for number in range(len(index))] == [name for name, _ in pairs]
    index.close()
    return [name for name, _ in pairs], [json.dumps(content) for _, content in pairs], index.complete


@pytest.mark.parametrize("chunk", [1 << 20, 50, 7])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_read_in_pieces_of_any_size(
    tmp_path: Path, layout: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "_CHUNK", chunk)
    monkeypatch.setattr(members, "_BLOCK", chunk)
    file = tmp_path / "dump.json"
    file.write_text(text_of(layout), encoding="utf-8")
    assert read(file) == (list(RECORDS), [json.dumps(content) for content in RECORDS.values()], True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cut_file_yields_its_complete_records(tmp_path: Path, layout: str) -> None:
    text = text_of(layout).encode()
    start = text.index(b'"data"') + 9
    file = tmp_path / "dump.json"
    for end in range(start, len(text) - 1, 5):
        file.write_bytes(text[:end])
        names, contents, complete = read(file)
        assert names == list(RECORDS)[: len(names)]
        assert contents == [json.dumps(content) for content in RECORDS.values()][: len(names)]
        assert not complete or len(names) == len(RECORDS)


def test_what_is_no_dump_is_named(tmp_path: Path) -> None:
    file = tmp_path / "dump.json"
    for text, message in (("", "no object under"), ("[1]", "no object under"), ('{"a": x, "data": {', "not JSON")):
        file.write_text(text)
        with pytest.raises(DumpReadError, match=message):
            read_head(file)


def test_first_records_stop_early(tmp_path: Path) -> None:
    file = tmp_path / "dump.json"
    file.write_text(text_of("indent 1"), encoding="utf-8")
    assert [name for name, _ in first_records(file, 2)] == list(RECORDS)[:2]
    assert read_head(file).framework == "pytorch"
