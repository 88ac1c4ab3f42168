"""Where a tap sits in a graph, as one number: a compiled graph can hand over numbers, no names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

SLOTS = 1024
INNER = 16
_KINDS = 16

# What stands in the place of a number of dimensions (plain ints: a graph can hold them).
UNKNOWN_SHAPE = -1
BOOL = -2
INT = -3
FLOAT = -4
NOTHING = -5


class Kind(IntEnum):
    """What a tap sees."""

    ARGUMENT = 0
    KEYWORD = 1
    RESULT = 2
    PARAMETER = 3
    ARGUMENT_GRADIENT = 4
    RESULT_GRADIENT = 5
    PARAMETER_GRADIENT = 6

    @property
    def nests(self) -> bool:
        """Whether a slot can be a tuple; gradients are counted tensor by tensor instead."""
        return self < Kind.ARGUMENT_GRADIENT


@dataclass(frozen=True, slots=True)
class Place:
    """One tap.

    Attributes
    ----------
    cell : int
        Number of the Cell.
    kind : Kind
    slot : int
        Which argument, result, parameter, or which tensor of all arguments or results.
    inner : int
        Which element of an argument or result that is a tuple; 0 if it is none.
    nested : bool
        Whether it is a tuple.
    """

    cell: int
    kind: Kind
    slot: int
    inner: int = 0
    nested: bool = False

    @property
    def number(self) -> int:
        """The number that stands for this place."""
        first = first_number(self.cell, self.kind)
        if not self.kind.nests:
            return first + self.slot
        return first + self.slot * (INNER + 1) + (self.inner + 1 if self.nested else 0)

    @classmethod
    def from_number(cls, number: int) -> Place:
        """Return the place that a number stands for."""
        rest, within = divmod(number, SLOTS)
        cell, kind = divmod(rest, _KINDS)
        if not Kind(kind).nests:
            return cls(cell, Kind(kind), within)
        slot, inner = divmod(within, INNER + 1)
        return cls(cell, Kind(kind), slot, max(inner - 1, 0), nested=inner > 0)


def first_number(cell: int, kind: Kind) -> int:
    """Return the number of slot 0."""
    return (cell * _KINDS + kind) * SLOTS
