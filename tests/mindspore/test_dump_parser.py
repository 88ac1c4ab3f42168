"""MindSpore's own parser accepts every file that is generated, and refuses what we say it refuses."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "ms_static"))
from dump_scenarios import parse
from golden_dumps import FILES, Golden

if TYPE_CHECKING:
    from forked_mindspore import ForkedMindSpore


def as_on_cpu(content: dict[str, Any], *, quick: bool) -> dict[str, Any]:
    """The same file, with the one value replaced that the CPU build refuses.

    Without ``e2e_dump_settings``, as with O2, the parser warns three times, a second each: unless that is wanted, the
    block is added.
    """
    changed = {**content, "common_dump_settings": {**content["common_dump_settings"], "saved_data": "tensor"}}
    return {"e2e_dump_settings": {"enable": True, "trans_flag": True}, **changed} if quick else changed


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_generated_file_is_accepted(file: Path, fresh_mindspore: ForkedMindSpore, tmp_path: Path) -> None:
    content = Golden.read(file).plan(tmp_path, dump_path=str(tmp_path / "dump").replace(".", "_")).content
    changed = as_on_cpu(dict(content), quick=file.stem != "o2_statistics_list")
    assert fresh_mindspore.value(parse, changed, str(tmp_path)) == ""


@pytest.mark.parametrize("name", ["o0_statistics", "o2_overflow_all"])
def test_statistics_are_refused_on_cpu_which_is_why_we_write_them(
    name: str, fresh_mindspore: ForkedMindSpore, tmp_path: Path
) -> None:
    golden = next(file for file in FILES if file.stem == name)
    content = {"e2e_dump_settings": {"enable": True}, **Golden.read(golden).json}
    text = fresh_mindspore.value(parse, content, str(tmp_path))
    assert text.startswith("Dump Json parse failed, storing statistic dump is only supported on GPU and Ascend")


CHANGES = [
    ({"iteration": 3}, "iteration should be string type"),
    ({"dump_mode": 3}, "dump_mode should be 0, 1 or 2"),
    ({"path": "/tmp/a.b"}, "path"),
    ({"path": "relative"}, "absolute path"),
    ({"kernels": ["name-regex((?P<name>Conv))"], "dump_mode": 1}, ""),
    ({"kernels": ["name-regex((?i)conv)"], "dump_mode": 1}, ""),
    ({"kernels": ["name-regex((?<=a)b)"], "dump_mode": 1}, ""),
]


@pytest.mark.parametrize(("change", "text"), CHANGES)
def test_what_we_refuse_the_parser_refuses_too(
    change: dict[str, Any], text: str, fresh_mindspore: ForkedMindSpore, tmp_path: Path
) -> None:
    content = Golden.read(next(file for file in FILES if file.stem == "o0_tensor")).json
    content["common_dump_settings"] |= change
    said = fresh_mindspore.value(parse, content, str(tmp_path))
    assert said
    assert text in said


@pytest.mark.parametrize("pattern", ["(?:Conv|Dense)/.+", "(?=Default).+", "(?!Gradients).+", "[A-Z]+.*"])
def test_patterns_that_we_accept_the_parser_accepts(
    pattern: str, fresh_mindspore: ForkedMindSpore, tmp_path: Path
) -> None:
    content = Golden.read(next(file for file in FILES if file.stem == "o0_tensor")).json
    content["common_dump_settings"] |= {"kernels": [f"name-regex({pattern})"], "dump_mode": 1}
    assert fresh_mindspore.value(parse, content, str(tmp_path)) == ""
