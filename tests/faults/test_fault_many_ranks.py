"""Eight ranks that dump into one path at the same time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fault_process import Outcome

from msprobe.store import read_dump

RANKS = 8


def test_eight_ranks_dump_together(processes: Callable[[list[dict[str, Any]]], list[Outcome]], place: Path) -> None:
    jobs = []
    for rank in range(RANKS):
        folder = place / f"process{rank}"
        folder.mkdir()
        arguments = {"rank": rank, "ranks": RANKS, "shared": str(place)}
        jobs.append(
            {
                "work": "disturbed_training:one_of_many_ranks",
                "folder": str(folder),
                "limit": 60.0,
                "together": RANKS,
                "quick": True,
                "arguments": arguments,
            }
        )
    outcomes = processes(jobs)
    assert len({outcome.answer for outcome in outcomes}) == 1
    assert not any(outcome.warnings for outcome in outcomes)
    assert not (place / "dump" / "earlier").exists()
    for step in range(3):
        found = {folder.name: read_dump(folder) for folder in (place / "dump" / f"step{step}").iterdir()}
        assert set(found) == {f"rank{rank}" for rank in range(RANKS)}
        for dump in found.values():
            assert dump.complete
            assert not dump.coverage["failures"]
            assert {"Distributed.all_reduce.3.forward", "Module.2.Linear.backward.0"} <= set(dump.data)
