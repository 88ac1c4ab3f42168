"""The statistics that MindSpore's kernel dump can be asked for, of a dumped tensor, where MindSpore makes none."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from msprobe.measure.arrays import summarise_array
from msprobe.measure.records import Statistics
from msprobe.measure.rounding import ROUND_PAIR, RoundPair

Array: TypeAlias = NDArray[Any]
Value: TypeAlias = float | int | bool | str | None

_CHUNK = 1 << 20
_FROM_STATISTICS = {
    "max": "max",
    "min": "min",
    "avg": "mean",
    "l2norm": "norm",
    "nan count": "nan",
    "zero count": "zero",
}
_HASHES = {"md5": "md5", "hash:md5": "md5", "hash": "sha1", "hash:sha1": "sha1"}


def measure_categories(array: Array, categories: Iterable[str], *, low: bool) -> dict[str, Value]:
    """Return the value of each category.

    Parameters
    ----------
    array
        Any shape, numeric or bool; a memory map is read piece by piece.
    categories
        Words of MindSpore's ``statistic_category``. Its "negative zero count" and "positive zero count" are the numbers
        of elements below and above zero.
    low
        Round max, min, avg and l2norm to the array's own dtype.

    Returns
    -------
    dict
        None where there is no such value, as for the maximum of an empty array.
    """
    found: Statistics | None = None
    values: dict[str, Value] = {}
    for category in categories:
        if category in _FROM_STATISTICS:
            found = found or summarise_array(array, low=low)
            values[category] = getattr(found, _FROM_STATISTICS[category])
        elif category in _HASHES:
            values[category] = _digest(_HASHES[category], array)
        else:
            values[category] = _count(array, category)
    return values


def _digest(name: str, array: Array) -> str:
    content = np.ascontiguousarray(array)
    return hashlib.new(name, content.data, usedforsecurity=False).hexdigest()


def _count(array: Array, category: str) -> int | None:
    if category == "count":
        return int(array.size)
    if array.dtype.kind not in "biuf":
        return None
    if category.endswith("inf count") and array.dtype.kind != "f":
        return 0
    return sum(_count_piece(piece, category) for piece in _pieces(array))


def _count_piece(piece: Array, category: str) -> int:
    if category == "negative zero count":
        return int(np.count_nonzero(piece < 0))
    if category == "positive zero count":
        return int(np.count_nonzero(piece > 0))
    sign = -np.inf if category == "negative inf count" else np.inf
    return int(np.count_nonzero(piece == sign))


def _pieces(array: Array) -> Iterator[Array]:
    flat = array.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        yield flat[start : start + _CHUNK]


def tensor_entry(array: Array, dtype: str, *, low: bool) -> dict[str, Any]:
    """Return the dump entry of a MindSpore tensor that is at hand as an array.

    Parameters
    ----------
    array
        Its values; bfloat16 as float32.
    dtype
        Its dtype as MindSpore spells it, for example ``Float32``.
    low
        Round statistics to the array's dtype.
    """
    narrow = low and dtype == "BFloat16"  # files hold it as float32
    statistics = summarise_array(array, low=low and not narrow)
    if narrow and statistics.reason is None:  # rounded once: by way of float32 some would come out otherwise
        statistics = _rounded(statistics, ROUND_PAIR["bfloat16"])
    entry: dict[str, Any] = {"type": "mindspore.Tensor", "dtype": dtype, "shape": list(array.shape)}
    entry |= {"Max": statistics.max, "Min": statistics.min, "Mean": statistics.mean, "Norm": statistics.norm}
    counts = {"NaN": statistics.nan, "Inf": statistics.inf, "reason": statistics.reason}
    entry |= {name: value for name, value in counts.items() if value}
    return entry


def _rounded(statistics: Statistics, round_pair: RoundPair) -> Statistics:
    mean, norm = round_pair(float(statistics.mean or 0), float(statistics.norm or 0))
    largest, smallest = round_pair(float(statistics.max or 0), float(statistics.min or 0))
    return replace(statistics, max=largest, min=smallest, mean=mean, norm=norm)
