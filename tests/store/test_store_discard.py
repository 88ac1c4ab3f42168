"""Steps that are discarded: nothing of them stays, and other ranks of the same step are not touched."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import pytest
from store_cases import open_step, record

from msprobe.store import RunLayout, read_dump
from msprobe.store.step_folder import StepFolder


def test_a_discarded_step_leaves_no_folder_and_its_number_is_free(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    layout = RunLayout(tmp_path, rank=0)
    first = open_step(layout)
    first.add("Torch.tanh.0.forward", record())
    first.finish({})
    layout.discard(first)
    assert not (tmp_path / "step0").exists()
    second = open_step(layout)
    second.add("Torch.relu.0.forward", record())
    second.finish({})
    assert list(read_dump(tmp_path / "step0" / "rank0").data) == ["Torch.relu.0.forward"]
    assert not (tmp_path / "earlier").exists()
    assert not caplog.records


def test_the_folder_of_another_rank_stays(tmp_path: Path) -> None:
    layouts = [RunLayout(tmp_path, rank=rank) for rank in range(2)]
    writers = [open_step(layout) for layout in layouts]
    for writer in writers:
        writer.add("Torch.tanh.0.forward", record())
        writer.finish({})
    layouts[0].discard(writers[0])
    assert [entry.name for entry in (tmp_path / "step0").iterdir()] == ["rank1"]


def test_a_step_that_nothing_was_written_for_can_be_discarded(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path / "dump", rank=0)
    writer = open_step(layout)
    writer.finish({})
    layout.discard(writer)
    assert {entry.name for entry in (tmp_path / "dump").iterdir()} <= {".msprobe.lock"}


def test_a_folder_that_cannot_be_deleted_stays_and_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    layout = RunLayout(tmp_path, rank=0)
    writer = open_step(layout)
    writer.add("Torch.tanh.0.forward", record())
    writer.finish({})
    (tmp_path / "step0").rename(tmp_path / "moved")
    layout.discard(writer)
    assert "cannot delete" in caplog.text


def test_ranks_that_discard_and_open_the_same_step_at_once_lose_nothing(tmp_path: Path) -> None:
    failures: list[str] = []

    def warm_up(rank: int) -> None:
        layout = RunLayout(tmp_path, rank=rank)
        for number in range(60):
            writer = open_step(layout)
            writer.add("Torch.tanh.0.forward", record())
            writer.finish({})
            failures.extend(writer.failures)
            if number < 59:
                layout.discard(writer)

    threads = [threading.Thread(target=warm_up, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(entry.name for entry in (tmp_path / "step0").iterdir()) == ["rank0", "rank1", "rank2"]


def test_a_step_folder_that_comes_and_goes_is_made_all_the_same(tmp_path: Path) -> None:
    step = tmp_path / "step0"
    over = threading.Event()

    def other_rank() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                step.mkdir()
            with contextlib.suppress(OSError):
                step.rmdir()
            time.sleep(1e-5)  # a rank does something between two steps

    thread = threading.Thread(target=other_rank)
    thread.start()
    try:
        for _ in range(3000):
            folder = StepFolder(step / "rank0")
            folder.close()
            (step / "rank0").rmdir()
    finally:
        over.set()
        thread.join()
