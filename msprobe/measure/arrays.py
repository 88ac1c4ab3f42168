"""Statistics of numpy arrays: arguments of calls, and the tensors of a framework that hands out arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msprobe.measure.backends import COUNTS, native_module
from msprobe.measure.kernel_codes import CODE_OF
from msprobe.measure.records import Reduction, Statistics, mean_and_norm, needs_scaling
from msprobe.measure.rounding import ROUND_PAIR

Array = NDArray[Any]

_CHUNK = 1 << 16


def summarise_array(array: Array, *, low: bool) -> Statistics:
    """Return the statistics of a numpy array; see `msprobe.measure.statistics`."""
    name = array.dtype.name
    numeric = array.dtype.kind in "biufc" or name in CODE_OF
    if not numeric:
        return Statistics.unmeasured(f"array of {name}: no numbers")
    if array.size == 0:
        return Statistics.unmeasured("empty array")
    found = _reduce(array)
    largest, smallest = found[0], found[1]
    if needs_scaling(found) and array.dtype.kind in "fc":
        mean, norm = _scaled_mean_and_norm(array, max(abs(largest), abs(smallest)))
    else:
        mean, norm = mean_and_norm(found, array.size)
    round_pair = ROUND_PAIR.get(name)
    if low and round_pair is not None:
        mean, norm = round_pair(mean, norm)
        largest, smallest = round_pair(largest, smallest)
    if array.dtype.kind == "b":
        largest, smallest = bool(largest), bool(smallest)
    return Statistics(largest, smallest, mean, norm, found[4], found[5], found[6])


def widened_bfloat16(array: Array) -> Array:
    """Return the values of a bfloat16 array as float32, which holds them exactly; numpy itself cannot cast them."""
    bits = np.ascontiguousarray(array).reshape(array.shape).view(np.uint16)
    wide: Array = (bits.astype(np.uint32) << 16).view(np.float32)
    return wide


def _reduce(array: Array) -> Reduction:
    native = native_module()
    code = CODE_OF.get(array.dtype.name)
    found: Reduction
    contiguous = array.flags.c_contiguous or array.flags.f_contiguous
    split = not contiguous and any(step % array.itemsize for step in array.strides)
    if native is None or code is None or split or not array.dtype.isnative:
        COUNTS.torch += 1
        return _reduce_by_numpy(widened_bfloat16(array) if array.dtype.name == "bfloat16" else array)
    COUNTS.native += 1
    if contiguous:
        found = native.stats(array.ctypes.data, array.size, code, 1)
    else:
        strides = tuple(stride // array.itemsize for stride in array.strides)
        found = native.stats_strided(array.ctypes.data, array.shape, strides, code, 1)
    return found


def _pieces(array: Array) -> Iterator[Array]:
    """Yield float64 values (the modulus of complex ones) in memory order, `_CHUNK` at a time."""
    wide = np.complex128 if array.dtype.kind == "c" else np.float64
    walk = np.nditer(
        array,
        flags=["external_loop", "buffered"],
        op_dtypes=[wide],
        order="K",
        casting="unsafe",
        buffersize=_CHUNK,
    )
    for block in walk:
        values: Array = block  # type: ignore[assignment]
        for start in range(0, values.size, _CHUNK):
            piece = values[start : start + _CHUNK]
            yield np.abs(piece) if array.dtype.kind == "c" else piece


def _reduce_by_numpy(array: Array) -> Reduction:
    largest, smallest, total, squares = -math.inf, math.inf, 0.0, 0.0
    nan = inf = zero = 0
    with np.errstate(all="ignore"):
        for piece in _pieces(array):
            largest = max(largest, float(piece.max()))
            smallest = min(smallest, float(piece.min()))
            total += float(piece.sum())
            squares += float(np.dot(piece, piece))
            nan += int(np.count_nonzero(np.isnan(piece)))
            inf += int(np.count_nonzero(np.isinf(piece)))
            zero += int(np.count_nonzero(piece == 0))
    if nan:
        return math.nan, math.nan, math.nan, math.nan, nan, inf, zero
    if array.dtype.kind in "iu":
        return int(array.max()), int(array.min()), total, squares, 0, 0, zero
    return largest, smallest, total, squares, nan, inf, zero


def _scaled_mean_and_norm(array: Array, scale: float) -> tuple[float, float]:
    """Return mean and norm of values whose squares leave the float64 range, as `reductions` does."""
    total = squares = 0.0
    for piece in _pieces(array):
        scaled = piece / scale
        total += float(scaled.sum())
        squares += float(np.dot(scaled, scaled))
    return scale * (total / array.size), scale * math.sqrt(squares)
