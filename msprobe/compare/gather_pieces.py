"""Values of several ranks put together: shards, replicas, partial sums, parts of a batch.

A `Piece` is a value of one rank, or the whole that several make. Its statistics follow from those of its parts where
that is exact:

* Max and Min of a whole are those of its parts, Norm is the root of the sum of their squares, Mean is the mean weighted
  by their numbers of elements.
* Of a sum or a mean over ranks only Mean follows. Max, Min and Norm are null: they depend on the elements.

Elements are read when they are compared, and only then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from msprobe.compare.entries import entry_of
from msprobe.compare.judge import is_nan
from msprobe.compare.rows import Entry, Number

Array = NDArray[Any]
Reduction = Literal["sum", "mean", "max", "min"]
#: Reads the elements of one file; None if it cannot be read.
ReadFile = Callable[[str], "Array | None"]
#: Reads the elements of a piece; None if they are not recorded.
Elements = Callable[[ReadFile], "Array | None"]

_REDUCTIONS: Mapping[str, Callable[[Sequence[Array]], Array]] = {
    "sum": lambda arrays: np.sum([_wide(array) for array in arrays], axis=0),
    "mean": lambda arrays: np.mean([_wide(array) for array in arrays], axis=0),
    "max": lambda arrays: np.max(np.stack(arrays), axis=0),
    "min": lambda arrays: np.min(np.stack(arrays), axis=0),
}
#: Why statistics of a sum over ranks are null.
ONLY_MEAN = "only the mean of a sum over ranks follows from their statistics; record the task tensor"


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank has of a whole.

    Attributes
    ----------
    rank
        Folder name: ``rank1``.
    entry
        The rank's own value.
    shard
        How it is placed: ``Shard(dim=0) 1 of 2``, ``replica``, ``part of the batch``; empty for all of it.
    begin
        Index of its first element in the whole; None if it is one term of a sum.
    factor
        What its elements are multiplied by in the whole.
    """

    rank: str
    entry: Entry
    shard: str = ""
    begin: tuple[int, ...] | None = ()
    factor: float = 1.0

    def box(self) -> tuple[slice, ...]:
        """Return the place of the part in the whole."""
        begins = self.begin or ()
        return tuple(slice(b, b + size) for b, size in zip(begins, self.entry.shape or (), strict=True))


@dataclass(frozen=True, slots=True)
class Piece:
    """A value of one rank, or of several put together.

    Attributes
    ----------
    entry
        Its shape, dtype and statistics.
    elements
        How to read its elements.
    parts
        What it was put together from; replicas other than the first are not among them.
    apart
        Ranks that should have the same value and do not, each with its value. Empty if all agree.
    copies
        Ranks that have the whole, if it is the same on several.
    twins
        Parts of the replicas that are not among ``parts``, and agree with those that are.
    """

    entry: Entry
    elements: Elements
    parts: tuple[Part, ...]
    apart: tuple[Part, ...] = ()
    copies: tuple[str, ...] = ()
    twins: tuple[Part, ...] = ()


def piece_of(rank: str, raw: Mapping[str, Any], stage: str = "") -> Piece:
    """Return the value of one rank, from its JSON with ``data_name`` as a whole path; ``stage`` is said of its part."""
    entry = entry_of(raw)
    begin = (0,) * len(entry.shape or ())

    def read(read_file: ReadFile) -> Array | None:
        if 0 in (entry.shape or ()):
            return np.empty(entry.shape or ())  # empty shards have no file
        return read_file(entry.data_name) if entry.data_name else None

    return Piece(entry, read, (Part(rank, entry, stage, begin),), copies=(rank,))


def same_value(a: Entry, b: Entry) -> bool:
    """Tell whether two ranks recorded the same value: by checksum if there is one, else by statistics."""
    if (a.kind, a.dtype, a.shape) != (b.kind, b.dtype, b.shape):
        return False
    if a.checksum is not None and b.checksum is not None and a.checksum != b.checksum:
        return False
    ours = (a.largest, a.smallest, a.mean, a.norm, a.nan, a.inf, a.value)
    theirs = (b.largest, b.smallest, b.mean, b.norm, b.nan, b.inf, b.value)
    return all(x == y or (is_nan(x) and is_nan(y)) for x, y in zip(ours, theirs, strict=True))


def joined(pieces: Sequence[Piece], dim: int, what: str) -> Piece:
    """Return the whole that shards make along a dimension; they may be uneven or empty.

    Parameters
    ----------
    pieces
        In their order along the dimension, with equal other sizes.
    what
        What the parts are called in messages.
    """
    entries = [piece.entry for piece in pieces]
    shape = list(max((entry.shape or () for entry in entries), key=math.prod))
    shape[dim] = sum((entry.shape or ())[dim] for entry in entries)
    parts: list[Part] = []
    apart: list[Part] = []
    twins: list[Part] = []
    begin = 0
    for number, piece in enumerate(pieces, start=1):
        label = f"{what} {number} of {len(pieces)}"
        for found, own in ((parts, piece.parts), (apart, piece.apart), (twins, piece.twins)):
            found += [_moved(part, dim, begin, label) for part in own]
        begin += (piece.entry.shape or ())[dim]

    def read(read_file: ReadFile) -> Array | None:
        arrays = _read_all(pieces, read_file)
        return None if arrays is None else np.concatenate(arrays, axis=dim)

    return Piece(_joined_entry(entries, tuple(shape)), read, tuple(parts), tuple(apart), twins=tuple(twins))


def replicas(pieces: Sequence[Piece]) -> Piece:
    """Return the first of some replicas; those that differ from what most have are said to be apart."""
    first = pieces[0]
    groups: list[list[Piece]] = []
    for piece in pieces:
        group = next((group for group in groups if same_value(group[0].entry, piece.entry)), None)
        if group is None:
            groups.append([piece])
        else:
            group.append(piece)
    if len(groups) == 1:
        copies, twins = sum((piece.copies for piece in pieces), ()), _twins(pieces)
        return replace(first, apart=_all_apart(pieces), copies=copies, twins=twins)
    most = max(groups, key=len)
    if len(groups) == len(pieces):
        most = []  # nobody agrees with anybody: any of them may be wrong
    apart = tuple(replace(part, shard=part.shard or "replica") for p in pieces if p not in most for part in p.parts)
    return replace(most[0] if most else first, apart=_all_apart(pieces) + apart, twins=_twins(most))


def reduced(pieces: Sequence[Piece], how: Reduction) -> Piece:
    """Return the sum, mean, maximum or minimum over ranks."""
    entries = [piece.entry for piece in pieces]
    means = [entry.mean for entry in entries]
    mean = None
    if how in {"sum", "mean"} and None not in means:
        mean = math.fsum(float(m or 0.0) for m in means) / (len(means) if how == "mean" else 1)
    single = not entries[0].shape and mean is not None
    entry = replace(
        entries[0],
        largest=mean if single else None,
        smallest=mean if single else None,
        mean=mean,
        norm=None if not single or mean is None else abs(mean),
        checksum=None,
        data_name=_any_file(entries),
        nan=0,
        inf=0,
        reason="" if single else ONLY_MEAN,
    )
    parts = tuple(
        replace(part, begin=None, shard=f"term {number} of a {how}")
        for number, piece in enumerate(pieces, start=1)
        for part in piece.parts
    )

    def read(read_file: ReadFile) -> Array | None:
        arrays = _read_all(pieces, read_file)
        return None if arrays is None else _REDUCTIONS[how](arrays)

    return Piece(entry, read, parts, _all_apart(pieces))


def scaled(piece: Piece, factor: float) -> Piece:
    """Return a piece times a positive number."""
    inner = piece.elements

    def read(read_file: ReadFile) -> Array | None:
        array = inner(read_file)
        return None if array is None else _wide(array) * factor

    parts, apart, twins = (
        tuple(replace(p, entry=_scaled_entry(p.entry, factor), factor=p.factor * factor) for p in own)
        for own in (piece.parts, piece.apart, piece.twins)
    )
    entry = _scaled_entry(piece.entry, factor)
    return replace(piece, entry=entry, elements=read, parts=parts, apart=apart, twins=twins)


def _scaled_entry(entry: Entry, factor: float) -> Entry:
    def times(value: Number | None) -> Number | None:
        return None if value is None else value * factor

    return replace(
        entry,
        largest=times(entry.largest),
        smallest=times(entry.smallest),
        mean=times(entry.mean),
        norm=times(entry.norm),
        checksum=None,
    )


def _joined_entry(entries: Sequence[Entry], shape: tuple[int, ...]) -> Entry:
    filled = [entry for entry in entries if math.prod(entry.shape or ())]
    if not filled:
        return replace(entries[0], shape=shape, checksum=None)
    return replace(
        filled[0],
        shape=shape,
        largest=_extreme(max, [entry.largest for entry in filled]),
        smallest=_extreme(min, [entry.smallest for entry in filled]),
        mean=_weighted_mean(filled),
        norm=_norm([entry.norm for entry in filled]),
        checksum=filled[0].checksum if len(entries) == 1 else None,
        data_name=_any_file(filled),
        nan=sum(entry.nan for entry in filled),
        inf=sum(entry.inf for entry in filled),
        reason=next((entry.reason for entry in filled if entry.reason), ""),
    )


def _extreme(choose: Callable[[list[Number]], Number], values: Sequence[Number | None]) -> Number | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return next((value for value in known if is_nan(value)), None) or choose(known)


def _weighted_mean(entries: Sequence[Entry]) -> float | None:
    if any(entry.mean is None for entry in entries):
        return None
    counts = [math.prod(entry.shape or ()) for entry in entries]
    terms = [float(entry.mean or 0.0) * count for entry, count in zip(entries, counts, strict=True)]
    return sum(terms) / sum(counts)  # not fsum: it refuses infinities of both signs


def _norm(values: Sequence[Number | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return math.hypot(*known) if len(known) == len(values) else None


def _any_file(entries: Sequence[Entry]) -> str | None:
    return entries[0].data_name if all(entry.data_name for entry in entries) else None


def _moved(part: Part, dim: int, offset: int, label: str) -> Part:
    shard = f"{label}, {part.shard}" if part.shard else label
    if part.begin is None:
        return replace(part, shard=shard)
    begin = list(part.begin)
    begin[dim] += offset
    return replace(part, begin=tuple(begin), shard=shard)


def _twins(pieces: Sequence[Piece]) -> tuple[Part, ...]:
    """Return the parts of replicas that agree, without those of the first one."""
    own = tuple(part for piece in pieces for part in piece.twins)
    return own + tuple(part for piece in pieces[1:] for part in piece.parts)


def _all_apart(pieces: Sequence[Piece]) -> tuple[Part, ...]:
    return tuple(part for piece in pieces for part in piece.apart)


def _read_all(pieces: Sequence[Piece], read_file: ReadFile) -> list[Array] | None:
    arrays = [array for piece in pieces if (array := piece.elements(read_file)) is not None]
    return arrays if len(arrays) == len(pieces) else None


def _wide(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
