"""`msprobe report` merges the coverage of all ranks into one table and says which ranks are missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from msprobe.cli import app
from msprobe.report.coverage_table import coverage_notes
from msprobe.report.rank_coverage import merge_coverage


def dumped(run: Path, step: int, rank: int, coverage: dict[str, Any] | None) -> None:
    folder = run / f"step{step}" / f"rank{rank}"
    folder.mkdir(parents=True)
    head = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    (folder / "dump.json").write_text(json.dumps({**head, "data": {}}))
    if coverage is not None:
        (folder / "coverage.json").write_text(json.dumps(coverage))


def content(records: int, world: int = 4, **more: Any) -> dict[str, Any]:
    group = {"process_group": {"rank": 0, "world_size": world}}
    return {"records": records, "complete": True, "notes": group, "not_recorded": {}, "failures": [], **more}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    place = tmp_path / "run"
    for step in range(2):
        dumped(place, step, 0, content(10, not_recorded={"filtered by scope or list": 3}))
        unfinished = {"complete": False, "writer": {"pid": 1}} if step else content(7)
        dumped(place, step, 1, unfinished)
    dumped(place, 1, 2, content(5, null_statistics={"meta tensor": 2}, lost_records=4))
    return place


def test_counts_are_added_over_the_steps_of_each_rank(run: Path) -> None:
    table = merge_coverage([run])
    assert [(rank.rank, rank.records, len(rank.steps)) for rank in table.ranks] == [
        ("rank0", 20, 2),
        ("rank1", 7, 2),
        ("rank2", 5, 1),
    ]
    assert table.not_recorded == {"filtered by scope or list": 6}
    assert table.ranks[1].unfinished == ["step1"]
    assert table.ranks[2].failures == {"records lost": 4}


def test_missing_ranks_are_said_by_the_size_of_the_group(run: Path) -> None:
    first, second = merge_coverage([run]).missing
    assert first.startswith("no dump of rank2, rank3 of 4 in step0")
    assert second.startswith("no dump of rank3 of 4 in step1")


def test_a_single_rank_folder_says_nothing_of_other_ranks(run: Path) -> None:
    assert merge_coverage([run / "step0/rank0"]).missing == ()


def test_ranks_without_coverage_are_no_zeros(tmp_path: Path) -> None:
    dumped(tmp_path, 0, 0, None)
    (note,) = coverage_notes(merge_coverage([tmp_path]))
    assert note == "rank0: no coverage.json in step0"


def test_command_prints_the_table_and_the_page_has_it(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = CliRunner().invoke(app, ["report", str(run), "-o", str(page)])
    assert result.exit_code == 0, result.output
    for text in ("rank0", "20", "filtered by", "2 statistics are null (2 meta tensor)", "no dump of rank2, rank3 of 4"):
        assert text in result.output
