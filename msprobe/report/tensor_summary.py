"""What is in a tensor: statistics, histogram, and the elements that stand out. Large files are read in pieces."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msprobe.measure.arrays import summarise_array
from msprobe.measure.records import Statistics

Array = NDArray[Any]
Value = float | int | complex | bool

BINS = 16
_PIECE = 1 << 18


@dataclass(frozen=True, slots=True)
class Element:
    """One element: its index in the tensor, and its value."""

    index: tuple[int, ...]
    value: Value


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of finite elements (the modulus of complex ones) in bins of equal width between two borders."""

    low: float
    high: float
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorSummary:
    """What is in a tensor.

    Attributes
    ----------
    shape, dtype
        As in the file.
    statistics
        Max, Min, Mean, Norm and the counts of NaN, Inf and zeros.
    histogram
        None without a finite element.
    worst
        Elements that are not finite, in the order of the tensor, then those of the largest magnitude.
    """

    shape: tuple[int, ...]
    dtype: str
    statistics: Statistics
    histogram: Histogram | None
    worst: tuple[Element, ...]


def summarise(array: Array, dtype: str, top: int) -> TensorSummary:
    """Return what is in an array of numbers of any shape.

    Parameters
    ----------
    array
        The elements.
    dtype
        Name of the dtype in the file, which numpy may not have.
    top
        How many elements ``worst`` may have.
    """
    return TensorSummary(array.shape, dtype, summarise_array(array, low=False), _histogram(array), _worst(array, top))


def pieces(array: Array) -> Iterator[tuple[int, Array]]:
    """Yield offset and elements, in row-major order, as float64 (complex numbers as complex128)."""
    wide = np.complex128 if array.dtype.kind == "c" else np.float64
    flat = array.reshape(-1)
    for start in range(0, flat.size, _PIECE):
        yield start, flat[start : start + _PIECE].astype(wide)


def element_at(array: Array, place: int) -> Element:
    """Return the element at a place in row-major order."""
    index = tuple(int(number) for number in np.unravel_index(place, array.shape))
    return Element(index, array[index].item())


class Largest:
    """The places of the largest numbers of a long sequence that comes in pieces; equal ones in their order.

    Parameters
    ----------
    count
        How many to keep.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._places = np.empty(0, np.int64)
        self._sizes = np.empty(0, np.float64)

    def add(self, start: int, sizes: Array) -> None:
        """Take in the next piece, which begins at ``start``; negative numbers and NaN never count."""
        chosen = np.flatnonzero(sizes >= 0)
        if self._sizes.size == self._count and self._count:
            chosen = chosen[sizes[chosen] > self._sizes[-1]]
        places = np.concatenate([self._places, chosen + start])
        merged = np.concatenate([self._sizes, sizes[chosen]])
        order = np.argsort(-merged, kind="stable")[: self._count]
        self._places, self._sizes = places[order], merged[order]

    @property
    def places(self) -> list[int]:
        """Places, the largest number first."""
        return [int(place) for place in self._places]


def _worst(array: Array, top: int) -> tuple[Element, ...]:
    special: list[int] = []
    largest = Largest(top)
    for start, piece in pieces(array):
        finite = np.isfinite(piece)
        if not finite.all() and len(special) < top:
            special += [start + int(place) for place in np.flatnonzero(~finite)[: top - len(special)]]
        with np.errstate(invalid="ignore"):
            largest.add(start, np.where(finite, np.abs(piece), -1.0))
    return tuple(element_at(array, place) for place in (special + largest.places)[:top])


def _histogram(array: Array) -> Histogram | None:
    low, high = math.inf, -math.inf
    for _, piece in pieces(array):
        values = _finite(piece)
        if values.size:
            low, high = min(low, float(values.min())), max(high, float(values.max()))
    if low > high:
        return None
    counts = np.zeros(BINS if high > low else 1, np.int64)
    half_width = high / 2 - low / 2  # the width itself can be beyond the largest float64
    for _, piece in pieces(array):
        values = _finite(piece)
        if half_width > 0:
            part = (values / 2 - low / 2) / half_width
            bins = np.minimum((part * BINS).astype(np.int64), BINS - 1)
            counts += np.bincount(bins, minlength=BINS)
        else:
            counts[0] += values.size
    return Histogram(low, high, tuple(int(count) for count in counts))


def _finite(piece: Array) -> Array:
    values = np.abs(piece) if piece.dtype.kind == "c" else piece
    found: Array = values[np.isfinite(values)]
    return found
