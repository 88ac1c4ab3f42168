"""What is in a dump: counts, dtypes, and the records whose values stand out."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from msprobe.compare.entries import entry_of, leaves_of
from msprobe.compare.rows import Entry
from msprobe.core.names import parse_name
from msprobe.report.nonfinite import is_nonfinite
from msprobe.store.members import MemberIndex


@dataclass(frozen=True, slots=True)
class DumpValue:
    """A value of a record, and its name with the place in the record."""

    record: str
    place: str
    entry: Entry


@dataclass(frozen=True, slots=True)
class DumpSummary:
    """What is in one dump file.

    Attributes
    ----------
    path, task, level, framework
        Of the file.
    complete
        False if it is cut off.
    records
        Number of records by direction (``forward``, ``backward``, ``parameters_grad``, ``other``).
    dtypes
        Number of tensors by dtype.
    nonfinite
        Number of values with NaN or infinity.
    unmeasured
        Number of tensors without statistics, by reason.
    files
        Number of tensors that have a file.
    worst
        Values with NaN or infinity in the order of the file, then those of the largest magnitude.
    """

    path: Path
    task: str
    level: str
    framework: str
    complete: bool
    records: Counter[str]
    dtypes: Counter[str]
    nonfinite: int
    unmeasured: Counter[str]
    files: int
    worst: tuple[DumpValue, ...]


def summarise_dump(path: Path, top: int) -> DumpSummary:
    """Read a dump file record by record.

    Parameters
    ----------
    path
        ``dump.json``, ``debug.json`` or the rank folder that has it.
    top
        How many values ``worst`` may have.

    Raises
    ------
    DumpReadError
        It is not a dump.
    """
    index = MemberIndex(path)
    records: Counter[str] = Counter()
    dtypes: Counter[str] = Counter()
    unmeasured: Counter[str] = Counter()
    special: list[DumpValue] = []
    largest: list[tuple[float, int, DumpValue]] = []
    nonfinite = files = number = 0
    try:
        for value in _values(index, records):
            entry = value.entry
            number += 1
            if entry.kind == "tensor":
                dtypes[entry.dtype] += 1
                files += entry.data_name is not None
                if entry.largest is None and not is_nonfinite(entry):
                    unmeasured[entry.reason or "no statistics in this dump"] += 1
            if is_nonfinite(entry):
                nonfinite += 1
                if len(special) < top:
                    special.append(value)
            elif entry.largest is not None and entry.smallest is not None:
                _keep(largest, top, (max(abs(entry.largest), abs(entry.smallest)), -number, value))
    finally:
        index.close()
    ordered = [value for *_, value in sorted(largest, key=lambda item: item[:2], reverse=True)]
    head = index.head
    return DumpSummary(
        path=head.path,
        task=head.task,
        level=head.level,
        framework=head.framework,
        complete=index.complete,
        records=records,
        dtypes=dtypes,
        nonfinite=nonfinite,
        unmeasured=unmeasured,
        files=files,
        worst=tuple((special + ordered)[:top]),
    )


def _values(index: MemberIndex, records: Counter[str]) -> Iterator[DumpValue]:
    """Yield every value; counts records by direction on the way."""
    for number in range(len(index)):
        name, content = index.record(number)
        parsed = parse_name(name)
        records["other" if parsed is None else parsed.direction] += 1
        for leaf in leaves_of(content):
            if leaf.name != "is_nan":
                yield DumpValue(name, leaf.name, entry_of(leaf.raw))


def _keep(heap: list[tuple[float, int, DumpValue]], top: int, item: tuple[float, int, DumpValue]) -> None:
    if not top or not math.isfinite(item[0]):
        return
    if len(heap) < top:
        heapq.heappush(heap, item)
    elif item[:2] > heap[0][:2]:
        heapq.heapreplace(heap, item)
