"""How the merged coverage of all ranks looks in a terminal, and in the notes of a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from msprobe.report.rank_coverage import CoverageTable, RankCoverage

_MOST_RANKS = 64
_MOST_REASONS = 5


def show_coverage(console: Console, coverage: CoverageTable) -> None:
    """Print one row per rank, a column for each reason why calls were not recorded, and the ranks that are missing."""
    reasons = [reason for reason, _ in coverage.not_recorded.most_common(_MOST_REASONS)]
    table = Table(title="What was recorded", title_justify="left", title_style="bold")
    table.add_column("rank", no_wrap=True)
    for column in ("steps", "records", "not recorded"):
        table.add_column(column, justify="right")
    for reason in reasons:
        table.add_column(reason, justify="right", overflow="fold")
    table.add_column("remarks", overflow="fold")
    for rank in coverage.ranks[:_MOST_RANKS]:
        counts = [str(rank.not_recorded[reason]) for reason in reasons]
        known = len(rank.unknown) < len(rank.steps)
        numbers = [str(rank.records), str(rank.not_recorded.total())] if known else ["?", "?"]
        table.add_row(_name(rank), str(len(rank.steps)), *numbers, *counts, "; ".join(_remarks(rank)))
    console.print(table)
    if len(coverage.ranks) > _MOST_RANKS:
        console.print(f"... and {len(coverage.ranks) - _MOST_RANKS} more ranks; the page has all of them")
    for sentence in coverage.missing:
        console.print(f"note: {sentence}", markup=False, soft_wrap=True)


def coverage_notes(coverage: CoverageTable) -> list[str]:
    """Return the table as sentences, one per rank, those about missing ranks first."""
    return [*coverage.missing, *[_sentence(rank) for rank in coverage.ranks]]


def _sentence(rank: RankCoverage) -> str:
    steps = f"{len(rank.steps)} step{'s' if len(rank.steps) > 1 else ''}"
    parts = [f"{rank.records} records in {steps}"] if len(rank.unknown) < len(rank.steps) else []
    if rank.not_recorded:
        parts.append(f"{rank.not_recorded.total()} calls not recorded ({_listed(rank.not_recorded)})")
    return f"{_name(rank)}: {'; '.join([*parts, *_remarks(rank)])}"


def _remarks(rank: RankCoverage) -> Iterator[str]:
    if rank.unknown:
        yield f"no coverage.json in {_steps(rank.unknown)}"
    if rank.unfinished:
        yield f"not finished: {_steps(rank.unfinished)}"
    if rank.null_statistics:
        yield f"{rank.null_statistics.total()} statistics are null ({_listed(rank.null_statistics)})"
    if rank.failures:
        yield f"failed: {_listed(rank.failures)}"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in counts.most_common(_MOST_REASONS))


def _steps(steps: list[str]) -> str:
    return steps[0] if len(steps) == 1 else f"{len(steps)} steps"


def _name(rank: RankCoverage) -> str:
    return f"{rank.run} {rank.rank}" if rank.run else rank.rank
