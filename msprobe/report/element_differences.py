"""Where two tensors of the same shape differ, element by element."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from msprobe.compare.metrics import compare_arrays
from msprobe.compare.rows import Metrics
from msprobe.report.tensor_summary import Array, Largest, Value, element_at, pieces
from msprobe.store.tensor_reader import ReadTensor


@dataclass(frozen=True, slots=True)
class ElementDifference:
    """One element of both sides.

    ``difference`` is |first - second|, ``ulp`` the same in units in the last place of the coarser dtype. Both are None
    where one side is not finite; ``ulp`` also for dtypes that are no floats.
    """

    index: tuple[int, ...]
    first: Value
    second: Value
    difference: float | None
    ulp: float | None


@dataclass(frozen=True, slots=True)
class TensorDifferences:
    """How two tensors differ.

    Attributes
    ----------
    different
        How many elements differ; NaN on both sides at one place is equal, and so is the same infinity.
    size
        How many elements there are.
    metrics
        Cosine, largest differences and so on.
    worst
        Pairs of which one is not finite, in the order of the tensor, then those of the largest difference.
    """

    different: int
    size: int
    metrics: Metrics
    worst: tuple[ElementDifference, ...]


def element_differences(first: ReadTensor, second: ReadTensor, top: int) -> TensorDifferences:
    """Compare two tensors.

    Parameters
    ----------
    first, second
        Tensors of the same shape; dtypes may differ.
    top
        How many elements ``worst`` may have.

    Raises
    ------
    ValueError
        The shapes differ.
    """
    dtypes = (first.dtype, second.dtype)
    metrics = compare_arrays(first.array, second.array, dtypes)
    special: list[int] = []
    largest = Largest(top)
    different = 0
    for (start, a), (_, b) in zip(pieces(first.array), pieces(second.array), strict=True):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        finite = np.isfinite(a) & np.isfinite(b)
        different += int(np.count_nonzero(~same))
        if len(special) < top:
            special += [start + int(place) for place in np.flatnonzero(~same & ~finite)[: top - len(special)]]
        with np.errstate(invalid="ignore", over="ignore"):
            largest.add(start, np.where(finite & ~same, np.abs(a - b), -1.0))
    places = (special + largest.places)[:top]
    worst = tuple(_difference(first.array, second.array, place, dtypes) for place in places)
    return TensorDifferences(different, first.array.size, metrics, worst)


def _difference(first: Array, second: Array, place: int, dtypes: tuple[str, str]) -> ElementDifference:
    a, b = element_at(first, place), element_at(second, place)
    if not (np.isfinite(a.value) and np.isfinite(b.value)):
        return ElementDifference(a.index, a.value, b.value, None, None)
    single = compare_arrays(first[a.index].reshape(1), second[b.index].reshape(1), dtypes)
    return ElementDifference(a.index, a.value, b.value, single.max_abs, single.max_ulp)
