"""What is known by record name in ``construct.json`` and ``stack.json``, in 12 bytes a record.

A dictionary of a million names takes some 300 MB. Here a name is its 64-bit hash in a sorted array, and what belongs to
it the number of one of few distinct values. Two names of one dump share a hash with a probability of n^2 / 2^65.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from msprobe.store.json_bytes import loads_json
from msprobe.store.members import iter_members
from msprobe.store.reader import DumpReadError
from msprobe.store.stacks import JOURNAL_FILE, STACK_FILE, read_journal
from msprobe.store.step_files import CONSTRUCT_FILE

#: Members that are decoded together: one call of the decoder for many short ones.
_BATCH = 1 << 16
#: A hash is looked for among those that share its uppermost 16 bits: of a million some 16, not a million.
_SHIFT = 48
_HALF = 1 << 15


class NameMap:
    """Names -> values, for many names and few distinct values.

    Parameters
    ----------
    items
        Pairs of name and value; a later one of the same name wins. Values must be hashable.
    """

    __slots__ = ("_hashes", "_numbers", "_starts", "_values")

    def __init__(self, items: Iterable[tuple[str, Any]] = ()) -> None:
        known: dict[Any, int] = {}
        hashes, numbers = array("q"), array("i")
        for name, value in items:
            hashes.append(hash(name))
            numbers.append(known.setdefault(value, len(known)))
        order = np.argsort(np.frombuffer(hashes, np.int64), kind="stable") if hashes else np.empty(0, np.int64)
        self._hashes = array("q", np.frombuffer(hashes, np.int64)[order].tobytes() if hashes else b"")
        self._numbers = array("i", np.frombuffer(numbers, np.int32)[order].tobytes() if numbers else b"")
        self._values = list(known)
        edges = np.arange(-_HALF, _HALF, dtype=np.int64) << _SHIFT
        starts = np.searchsorted(np.frombuffer(self._hashes, np.int64), edges) if hashes else np.zeros_like(edges)
        self._starts = array("q", np.append(starts, len(hashes)).tobytes())

    def __len__(self) -> int:
        return len(self._hashes)

    def get(self, name: str) -> Any:
        """Return the value of a name; None if it is not there."""
        wanted = hash(name)
        bucket = (wanted >> _SHIFT) + _HALF
        end = self._starts[bucket + 1]
        place = bisect_left(self._hashes, wanted, self._starts[bucket], end)
        found = -1
        while place < end and self._hashes[place] == wanted:
            found, place = place, place + 1
        return None if found < 0 else self._values[self._numbers[found]]


def parent_names(folder: Path) -> NameMap:
    """Return the enclosing record of each record of a rank folder; empty without ``construct.json``.

    A damaged file gives what comes before the damage: it only helps to understand the records.
    """
    return NameMap(_parents(folder / CONSTRUCT_FILE))


def call_stacks(folder: Path) -> NameMap:
    """Return the frames of each record of a rank folder as a tuple, innermost first; empty without ``stack.json``."""
    return NameMap(_stacks(folder))


def _parents(file: Path) -> Iterator[tuple[str, str]]:
    for name, parent in _members(file):
        value = parent[0] if isinstance(parent, list) and parent else parent  # [parent, micro step]
        if isinstance(value, str):
            yield name, value


def _stacks(folder: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    for key, entry in _members(folder / STACK_FILE):
        if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], list):
            names, frames = entry
            value = _texts(frames)
            for name in _texts(names):
                yield name, value
        elif isinstance(entry, list):
            yield key, _texts(entry)  # older layout of mindstudio-probe: name to frames
    journal = folder / JOURNAL_FILE
    if journal.is_file():
        for name, frames in read_journal(journal).items():
            yield name, _texts(frames)


def _texts(value: Any) -> tuple[str, ...]:
    """Return the strings of a list in a file that may hold anything."""
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def _members(file: Path) -> Iterator[tuple[str, Any]]:
    if not file.is_file():
        return
    try:
        batch: list[bytes] = []
        size = 0
        for member in iter_members(file):
            batch.append(member)
            size += len(member)
            if size > _BATCH:
                yield from _decoded(batch)
                batch, size = [], 0
        yield from _decoded(batch)
    except (OSError, DumpReadError):
        return


def _decoded(members: list[bytes]) -> Iterator[tuple[str, Any]]:
    try:
        yield from loads_json(b"{" + b",".join(members) + b"}").items()
    except ValueError:
        if len(members) > 1:  # one of them is cut off
            for member in members:
                yield from _decoded([member])
