"""What every rank recorded and did not record, and which ranks are missing: all ``coverage.json`` in one table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msprobe.compare.pairing import find_dumps, first_of
from msprobe.report.step_order import in_order, number_in
from msprobe.store.coverage_file import COVERAGE_FILE
from msprobe.store.json_bytes import loads_json

_RANK = re.compile(r"rank(\d+)\Z")
_MOST_NAMED = 16


@dataclass(slots=True)
class RankCoverage:
    """Coverage of one rank over all steps.

    Attributes
    ----------
    run, rank
        The path as given if there are several, and the folder name.
    steps
        Steps that have a folder of this rank.
    records
        Records written.
    not_recorded, null_statistics
        Calls, and statistics, by the reason why there is nothing.
    failures
        What failed, and how often: lost records, full disks.
    unfinished
        Steps that were not finished: killed, or still open.
    unknown
        Steps without a readable coverage.json: dumps of another tool.
    """

    run: str
    rank: str
    steps: list[str] = field(default_factory=list)
    records: int = 0
    not_recorded: Counter[str] = field(default_factory=Counter)
    null_statistics: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    unfinished: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CoverageTable:
    """Coverage of all ranks.

    Attributes
    ----------
    ranks
        In the order of their numbers.
    missing
        One sentence for each set of ranks that has no dump in some steps.
    """

    ranks: tuple[RankCoverage, ...]
    missing: tuple[str, ...]

    @property
    def not_recorded(self) -> Counter[str]:
        """Calls that were not recorded by reason, over all ranks."""
        total: Counter[str] = Counter()
        for rank in self.ranks:
            total += rank.not_recorded
        return total


def merge_coverage(paths: list[Path]) -> CoverageTable:
    """Read the coverage of every step and rank.

    Parameters
    ----------
    paths
        Runs, steps, rank folders or dump files.

    Raises
    ------
    DumpReadError
        A path has no dump.
    """
    ranks: dict[tuple[str, str], RankCoverage] = {}
    missing: dict[tuple[str, ...], list[str]] = {}
    for path in paths:
        run = "" if len(paths) == 1 else str(path)
        whole_step = path.is_dir() and not any(path.glob("*.json"))
        for step, files in in_order(find_dumps(path)):
            world = 0
            for rank, file in files:
                coverage = _read(file.parent / COVERAGE_FILE)
                _add(ranks.setdefault((run, rank), RankCoverage(run, rank)), step, coverage)
                world = max(world, _world_size(coverage))
            absent = _absent([rank for rank, _ in files], world) if whole_step else ()
            if absent:
                missing.setdefault((run, str(world), *absent), []).append(step)
    ordered = sorted(ranks.values(), key=lambda rank: (rank.run, number_in(rank.rank)))
    return CoverageTable(tuple(ordered), tuple(_sentences(missing)))


def _read(file: Path) -> Mapping[str, Any] | None:
    """Read a coverage file; None without a readable one, which the table says."""
    try:
        content = loads_json(file.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _add(found: RankCoverage, step: str, coverage: Mapping[str, Any] | None) -> None:
    found.steps.append(step)
    if coverage is None:
        found.unknown.append(step)
        return
    if not coverage.get("complete"):
        found.unfinished.append(step)
    found.records += _count(coverage.get("records"))
    found.not_recorded.update(_counts(coverage.get("not_recorded")))
    found.null_statistics.update(_counts(coverage.get("null_statistics")))
    lost = _count(coverage.get("lost_records"))
    if lost:
        found.failures["records lost"] += lost
    failures = coverage.get("failures")
    for failure in failures if isinstance(failures, list) else ():
        found.failures[str(failure)] += 1


def _counts(value: Any) -> dict[str, int]:
    return {str(key): _count(count) for key, count in value.items()} if isinstance(value, Mapping) else {}


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _world_size(coverage: Mapping[str, Any] | None) -> int:
    notes = (coverage or {}).get("notes")
    group = notes.get("process_group") if isinstance(notes, Mapping) else None
    return _count(group.get("world_size")) if isinstance(group, Mapping) else 0


def _absent(ranks: list[str], world: int) -> tuple[str, ...]:
    """Return the ranks without a folder, below the size of the group and below the largest one that is there."""
    numbers = {int(match.group(1)) for rank in ranks if (match := _RANK.match(rank))}
    return tuple(f"rank{rank}" for rank in range(max([world - 1, *numbers], default=-1) + 1) if rank not in numbers)


def _sentences(missing: Mapping[tuple[str, ...], list[str]]) -> Iterator[str]:
    for (run, world, *ranks), steps in missing.items():
        of = f" of {world}" if int(world) else ""
        where = steps[0] if len(steps) == 1 else f"{steps[0]}..{steps[-1]} ({len(steps)} steps)"
        names = first_of(ranks, _MOST_NAMED)
        text = f"no dump of {names}{of} in {where}: left out by `rank`, not started, or its folder was not copied here"
        yield f"{run}: {text}" if run else text
