"""Where a value comes from: the record of the same dump that made it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from msprobe.compare.dump_side import DumpSide
from msprobe.compare.entries import INPUT, OUTPUT, entry_of, leaves_of
from msprobe.compare.kinds import kind_of
from msprobe.compare.rows import Entry

#: How many records before a record are asked whether they made its input.
_REACH = 20_000
_DIGITS = 5

Fingerprint = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Producer:
    """A record that made a value, and which of its outputs that is."""

    number: int
    name: str
    leaf: str


def fingerprint(entry: Entry) -> Fingerprint | None:
    """Return what tells a value from others of its dump; None for what is no tensor or has no numbers.

    Shapes are left out, since views need not be recorded. Norm is rounded, as it depends on the order of the sum.
    """
    if entry.kind != "tensor":
        return None
    if entry.norm is None and entry.largest is None:
        return None if entry.checksum is None else (entry.checksum,)
    norm = entry.norm
    rounded = norm if norm is None else float(f"{float(norm):.{_DIGITS}g}")
    return _count(entry), entry.dtype, _plain(entry.largest), _plain(entry.smallest), _plain(rounded)


def _count(entry: Entry) -> int:
    count = 1
    for size in entry.shape or ():
        count *= size
    return count


def _plain(number: float | int | None) -> object:
    return "nan" if number is not None and number != number else number  # noqa: PLR0124 - NaN is not equal to itself


def find_producers(side: DumpSide, before: int, wanted: set[Fingerprint]) -> dict[Fingerprint, Producer]:
    """Return the nearest record before a place that made each value.

    A value that a record returns as it got it is followed to the record that made it.

    Parameters
    ----------
    side
        The dump.
    before
        Number of the record whose inputs are asked for.
    wanted
        Fingerprints of these inputs.
    """
    found: dict[Fingerprint, Producer] = {}
    left = set(wanted)
    for number in range(before - 1, max(before - _REACH, 0) - 1, -1):
        if not left:
            break
        for print_, producer in _made_by(side, number):
            if print_ in left:
                found[print_] = producer
                left.discard(print_)
    return found


def _made_by(side: DumpSide, number: int) -> Iterator[tuple[Fingerprint, Producer]]:
    name, record = side.index.record(number)
    kind = kind_of(name)
    if kind.tag or kind.direction == "parameters_grad":
        return
    made: list[tuple[Fingerprint, str]] = []
    taken: set[Fingerprint] = set()
    for leaf in leaves_of(record):
        if leaf.section not in {INPUT, OUTPUT}:
            continue
        print_ = fingerprint(entry_of(leaf.raw))
        if print_ is None:
            continue
        if leaf.section == INPUT:
            taken.add(print_)
        else:
            made.append((print_, leaf.name))
    for print_, leaf_name in made:
        if print_ not in taken:
            yield print_, Producer(number, name, leaf_name)
