"""Comparing one rank of one step: records streamed through, rows to files, a summary back."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from msprobe.compare.align import Alignment, Options, align
from msprobe.compare.columns import TableKind, table_lines
from msprobe.compare.dump_side import DumpSide
from msprobe.compare.gather_sides import gather_notes, with_shard
from msprobe.compare.gather_stages import SideLayout, gathered_sides
from msprobe.compare.kinds import kind_of
from msprobe.compare.locate import Locator, is_nonfinite_source
from msprobe.compare.records import RecordComparer, Tolerance
from msprobe.compare.rows import Divergence, InheritedGroup, PairSummary, RecordRow

_NAMES_KEPT = 200
_GROUPS_KEPT = 500
_OTHER_MODULES = "(other modules)"
_BATCH = 500
_BUFFER = 1 << 20


@dataclass(frozen=True, slots=True)
class PairJob:
    """One comparison of two rank folders; plain data, so that another process can do it.

    Attributes
    ----------
    step, rank
        Folder names.
    target, golden
        Dump files; None if that side lacks this step or rank.
    target_ranks, golden_ranks
        Dump files of all ranks, to be put together; empty if ``target`` and ``golden`` are compared as they are.
    stages, golden_stages
        How many stages of a pipeline the ranks of either side are, each of as many consecutive ranks.
    reference
        Dump of the run that limits are measured from; None without one.
    table
        File for the rows of the result table, without a header.
    rows
        File for the `RecordRow` objects; None if nobody asks for them.
    kind
        Which columns.
    """

    step: str
    rank: str
    target: Path | None
    golden: Path | None
    reference: Path | None
    table: Path
    rows: Path | None
    kind: TableKind
    options: Options
    tolerance: Tolerance
    target_ranks: tuple[Path, ...] = ()
    golden_ranks: tuple[Path, ...] = ()
    stages: int = 1
    golden_stages: int = 1


@dataclass(slots=True)
class _Tally:
    """What is counted while rows pass."""

    records: Counter[str] = field(default_factory=Counter)
    values: Counter[str] = field(default_factory=Counter)
    only_target: list[str] = field(default_factory=list)
    only_golden: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    inherited: dict[tuple[str, str], InheritedGroup] = field(default_factory=dict)
    trend: dict[str, float] = field(default_factory=dict)
    first_error: int | None = None
    first_warning: int | None = None

    def add(self, row: RecordRow) -> None:
        """Count one record."""
        self.records[row.verdict] += 1
        for leaf in row.leaves:
            self.values[leaf.decision.verdict] += 1
        if row.role == "unmatched":
            self._add_unmatched(row)
            return
        worst = row.worst
        if worst.number is not None and worst.threshold:
            ratio = worst.number / worst.threshold
            module = row.module or (kind_of(row.name).operation if ratio > 0 else "")
            if ratio > self.trend.get(module, -1.0):
                self.trend[module] = ratio
        if row.verdict == "error" and self.first_error is None:
            self.first_error = row.position
        if row.verdict == "warning" and self.first_warning is None:
            self.first_warning = row.position
        if row.role == "source" and len(self.sources) < _NAMES_KEPT:
            self.sources.append(row.name)
        elif row.role == "inherits":
            self._add_inherited(row)

    def _add_unmatched(self, row: RecordRow) -> None:
        names = self.only_golden if row.target is None else self.only_target
        if len(names) < _NAMES_KEPT:
            names.append(row.name)
        self.records["only_golden" if row.target is None else "only_target"] += 1
        if row.target is not None and self.first_error is None and is_nonfinite_source(row):
            self.first_error = row.position

    def _add_inherited(self, row: RecordRow) -> None:
        kind = kind_of(row.name)
        key = (row.module or kind.operation, kind.direction)
        if key not in self.inherited and len(self.inherited) >= _GROUPS_KEPT:
            key = (_OTHER_MODULES, kind.direction)
        group = self.inherited.get(key)
        number = row.worst.number
        if group is None:
            self.inherited[key] = InheritedGroup(*key, 1, row.name, row.name, number)
            return
        worst = max((n for n in (group.worst_number, number) if n is not None and not math.isnan(n)), default=None)
        self.inherited[key] = InheritedGroup(*key, group.records + 1, group.first, row.name, worst)


def compare_pair(job: PairJob) -> PairSummary:
    """Compare two dumps and write their rows.

    Returns
    -------
    PairSummary
        With the first divergence, explained.

    Raises
    ------
    DumpReadError
        A dump cannot be read.
    OSError
        The rows cannot be written.
    """
    if job.target is None or job.golden is None:
        job.table.touch()
        side = "golden" if job.golden is None else "the target"
        note = f"{side} has no dump of {'/'.join(part for part in (job.step, job.rank) if part)}"
        return PairSummary(job.step, job.rank, _text(job.target), _text(job.golden), {}, {}, notes=(note,))
    with ExitStack() as stack:
        sides = _open(job, stack)
        tally = _Tally()
        _write(job, tally, sides.rows())
        position = tally.first_error if tally.first_error is not None else tally.first_warning
        divergence = None
        if position is not None:
            locator = Locator(sides.target, sides.golden, sides.alignment, sides.comparer)
            divergence = sides.with_shard(locator.explain(position, job.step, job.rank))
        return _summary(job, tally, divergence, sides)


@dataclass(frozen=True, slots=True)
class _Sides:
    """Two open dumps, how they are aligned, and what compares their records."""

    target: DumpSide
    golden: DumpSide
    alignment: Alignment
    comparer: RecordComparer

    def rows(self) -> Iterator[RecordRow]:
        """Yield the rows in execution order."""
        replaced, moved = self.alignment.replaced, self.alignment.moved
        for position, numbers in enumerate(zip(self.alignment.target, self.alignment.golden, strict=True)):
            yield self.comparer.compare(position, *numbers, replaced=position in replaced, moved=position in moved)

    def with_shard(self, divergence: Divergence) -> Divergence:
        """Add whose shard it is, where ranks were put together."""
        if self.target.rank_count == 1:
            return divergence
        numbers = self.alignment.target[divergence.position], self.alignment.golden[divergence.position]
        row = self.comparer.compare(divergence.position, *numbers, replaced=False, moved=False)
        leaf = next((leaf for leaf in row.leaves if leaf.name == divergence.leaf), None)
        return with_shard(divergence, leaf, self.target)

    def notes(self) -> Iterator[str]:
        """Yield what a reader should know."""
        for what, side in (("target", self.target), ("golden", self.golden)):
            if not side.index.complete:
                rest = f"its {len(side)} complete records were compared"
                yield f"{what}: {side.index.head.path} ends in the middle; {rest}"
            elif not len(side):
                yield f"{what}: {side.index.head.path} holds no records"
        for what, side in (("target", self.target), ("golden", self.golden)):
            yield from gather_notes(what, side)
        alignment = self.alignment
        if any(alignment.tagged):
            ours, theirs = alignment.tagged
            yield f"records with a tag (#recompute, #2) were left out: {ours} here, {theirs} in golden"
        if any(alignment.partial_sums):
            ours, theirs = alignment.partial_sums
            what = "gradients that the other side has only as sums over micro-batches"
            yield f"{what} were left out: {ours} here, {theirs} in golden"
        if alignment.replaced:
            count = len(alignment.replaced)
            yield f"{count} records are of another operation than golden's, and are judged by what both share"
        if alignment.moved:
            yield f"{len(alignment.moved)} calls have another place in the order than in golden"
        yield from self.comparer.findings.unreadable


def _open(job: PairJob, stack: ExitStack) -> _Sides:
    assert job.target is not None  # noqa: S101 - asked before
    assert job.golden is not None  # noqa: S101
    rule = job.tolerance.gather
    if rule is None:
        target, golden = DumpSide(job.target), DumpSide(job.golden)
    else:
        layouts = SideLayout(job.target_ranks, job.stages), SideLayout(job.golden_ranks, job.golden_stages)
        target, golden = gathered_sides(*layouts, rule)
    stack.callback(target.close)
    stack.callback(golden.close)
    reference = None
    if job.reference is not None:
        other = DumpSide(job.reference)
        stack.callback(other.close)
        reference = other, _numbers(align(golden, other, job.options))
    alignment = align(target, golden, job.options)
    return _Sides(target, golden, alignment, RecordComparer(target, golden, job.tolerance, reference))


def read_rows(file: Path) -> Iterator[RecordRow]:
    """Yield the rows that `compare_pair` has written to `PairJob.rows`."""
    with file.open("rb") as stream:
        while stream.peek(1):
            yield from pickle.load(stream)  # noqa: S301 - written by this run


def _numbers(alignment: Alignment) -> Mapping[int, int]:
    return {t: g for t, g in zip(alignment.target, alignment.golden, strict=True) if t >= 0 and g >= 0}


def _write(job: PairJob, tally: _Tally, rows: Iterator[RecordRow]) -> None:
    with ExitStack() as stack:
        table = stack.enter_context(job.table.open("wb", buffering=_BUFFER))
        stream = stack.enter_context(job.rows.open("wb")) if job.rows is not None else None
        batch: list[RecordRow] = []
        for row in rows:
            tally.add(row)
            table.writelines(table_lines(job.kind, job.step, job.rank, row))
            if stream is not None:
                batch.append(row)
                if len(batch) >= _BATCH:
                    pickle.dump(batch, stream, pickle.HIGHEST_PROTOCOL)
                    batch = []
        if stream is not None:
            pickle.dump(batch, stream, pickle.HIGHEST_PROTOCOL)


def _summary(job: PairJob, tally: _Tally, divergence: Divergence | None, sides: _Sides) -> PairSummary:
    records = dict(tally.records)
    only_target, only_golden = records.pop("only_target", 0), records.pop("only_golden", 0)
    return PairSummary(
        step=job.step,
        rank=job.rank,
        target=_text(job.target),
        golden=_text(job.golden),
        records=records,
        values=dict(tally.values),
        only_target=only_target,
        only_golden=only_golden,
        only_target_names=tuple(tally.only_target),
        only_golden_names=tuple(tally.only_golden),
        mode=sides.comparer.findings.mode,
        divergence=divergence,
        sources=tuple(tally.sources),
        inherited=tuple(tally.inherited.values()),
        notes=tuple(sides.notes()),
        trend=tally.trend,
    )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
