"""What a fetched row of eight words means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from msprobe.kernels.triton.crc32 import finish_crc32
from msprobe.kernels.triton.elements import Element
from msprobe.kernels.triton.hash64 import finish_hash64
from msprobe.kernels.triton.tensor_statistics import Reduction

Checksum: TypeAlias = Literal["xor", "hash", "crc32"]
#: A row as integers, and the same bits as floats.
Words: TypeAlias = list[int]
Floats: TypeAlias = list[float]

_SIGN = 1 << 63
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class TensorStatistics:
    """What a kernel found out about a tensor.

    Attributes
    ----------
    reduction
        Max, min, sum, sum of squares, and counts of NaN, Inf and zero of all elements; extremes of integers are ints.
        With a NaN the first four are NaN.
    scale
        The mean is ``scale * sum / numel`` and the norm ``scale * sqrt(squares)``. Not 1 only when squares would leave
        the range of float64.
    """

    reduction: Reduction
    scale: float


def read_statistics(element: Element, repeats: int, words: Words, floats: Floats) -> TensorStatistics:
    """Return what a row of `chunk_reduction` says about a tensor whose distinct elements count `repeats` times."""
    largest, smallest, total, squares = floats[:4]
    if element.family == "integer":
        offset = _SIGN if element.decode == "uint64" else 0
        largest, smallest = words[0] + offset, words[1] + offset
    nan, inf, zero = (count * repeats for count in words[4:7])
    return TensorStatistics((largest, smallest, total * repeats, squares * repeats, nan, inf, zero), floats[7])


def read_checksum(mode: Checksum, nbytes: int, shape: Sequence[int], words: Words) -> int:
    """Return the checksum whose device part is in the first word of a row."""
    if mode == "xor":
        return words[0] & _MASK
    if mode == "hash":
        return finish_hash64(words[0], nbytes, shape)
    return finish_crc32(words[0], nbytes) if nbytes else 0
