"""What a page carries: columns of records, and blocks of details that are unpacked only when they are looked at.

Every block is JSON, compressed with gzip and written as base64 in an element of the page. A page has, for each *part*
(one step and rank), blocks of details for `BLOCK_RECORDS` records each and one block of columns for the list; and one
block ``page`` for the whole. Nothing but columns stays in memory while a page is written.
"""

from __future__ import annotations

import base64
import gzip
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from msprobe.compare.rows import Entry, FxNode
from msprobe.store.json_bytes import dumps_json

BLOCK_RECORDS = 400
_LEVEL = 5
#: Beyond, JavaScript has not every integer.
_EXACT = 1 << 53


@dataclass(frozen=True, slots=True)
class Block:
    """A compressed piece of a page: its name (an id in the document) and its base64 text."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class RecordEntry:
    """One record of a part.

    Attributes
    ----------
    name, other_name
        Its name, and the name on the other side where that one differs; empty if there is none.
    module
        Dotted path of the module it is or runs in.
    status
        Place in the page's list of statuses.
    cells
        One value per column of the page's list; str, number or None.
    detail
        What the detail view shows: JSON without NaN (see `plain`).
    """

    name: str
    other_name: str
    module: str
    status: int
    cells: tuple[Any, ...]
    detail: Any


class StringTable:
    """Texts that occur again and again, by number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the number of a text."""
        return self._numbers.setdefault(text, len(self._numbers))

    def texts(self) -> list[str]:
        """Return all texts in the order of their numbers."""
        return list(self._numbers)


@dataclass(slots=True)
class PartColumns:
    """The list of one part as columns; ``status`` may be corrected until `block` is called."""

    columns: int
    names: list[str] = field(default_factory=list)
    status: list[int] = field(default_factory=list)
    _other: dict[int, str] = field(default_factory=dict)
    _modules: StringTable = field(default_factory=StringTable)
    _module: list[int] = field(default_factory=list)
    _texts: StringTable = field(default_factory=StringTable)
    _cells: list[list[Any]] = field(init=False)

    def __post_init__(self) -> None:
        self._cells = [[] for _ in range(self.columns)]

    def add(self, record: RecordEntry) -> None:
        """Append a record."""
        if record.other_name:
            self._other[len(self.names)] = record.other_name
        self.names.append(record.name)
        self.status.append(record.status)
        self._module.append(self._modules.number(record.module))
        for column, value in zip(self._cells, record.cells, strict=True):
            # a text is its number in the table, in a list of one, so that it is not taken for a number
            column.append([self._texts.number(value)] if isinstance(value, str) else plain(value))

    def block(self, part: int) -> Block:
        """Return the columns as a block."""
        content = {
            "names": self.names,
            "other": {str(place): name for place, name in self._other.items()},
            "status": self.status,
            "modules": self._modules.texts(),
            "module": self._module,
            "texts": self._texts.texts(),
            "cells": self._cells,
        }
        return pack(f"list-{part}", content)


def part_blocks(part: int, records: Iterable[RecordEntry], columns: PartColumns) -> Iterator[Block]:
    """Yield the detail blocks of a part, and fill its columns on the way."""
    details: list[Any] = []
    number = 0
    for record in records:
        columns.add(record)
        details.append(record.detail)
        if len(details) == BLOCK_RECORDS:
            yield pack(f"detail-{part}-{number}", details)
            number, details = number + 1, []
    if details:
        yield pack(f"detail-{part}-{number}", details)


def pack(name: str, content: Any) -> Block:
    """Return JSON content as a block."""
    try:
        text = orjson.dumps(content)  # nothing here is NaN any more: the search for it in `dumps_json` can be saved
    except TypeError:
        text = dumps_json(content)  # a lone surrogate in a text
    return Block(name, base64.b64encode(gzip.compress(text, _LEVEL, mtime=0)).decode("ascii"))


def plain(value: Any) -> Any:
    """Return a value as JSON that JavaScript reads exactly: NaN, infinities and large integers become texts."""
    kind = value.__class__
    if kind is float:
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if kind is complex or (kind is int and abs(value) > _EXACT):
        return str(value)
    return value


def fx_cells(found: FxNode | None) -> list[Any] | None:
    """Return graph and node of what comes from a compiled program, as the views want it."""
    return None if found is None else [found.graph, found.node]


def entry_cells(entry: Entry | None) -> list[Any] | None:
    """Return one side of a value as the detail view wants it.

    Order: kind, dtype, shape, Max, Min, Mean, Norm, NaN, Inf, requires_grad, checksum, file, value, reason.
    """
    if entry is None:
        return None
    return [
        entry.kind,
        entry.dtype,
        None if entry.shape is None else list(entry.shape),
        plain(entry.largest),
        plain(entry.smallest),
        plain(entry.mean),
        plain(entry.norm),
        entry.nan,
        entry.inf,
        entry.requires_grad,
        entry.checksum,
        entry.data_name,
        None if entry.value is None else _short_text(entry.value),
        entry.reason,
    ]


def _short_text(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else text[:200] + "..."
