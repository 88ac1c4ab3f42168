"""Statistics of a CPU tensor by torch operations: the reference that the native kernel must equal.

One piece of at most `chunks.CHUNK` elements is converted to float64 at a time. Accumulation is in float64 whatever
the dtype; integer extremes are exact Python ints.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import torch

from msprobe.measure.chunks import CHUNK, logical_chunks, memory_order
from msprobe.measure.dtypes import DtypeInfo
from msprobe.measure.records import Reduction

_NAN = math.nan
_SIGN = -(1 << 63)
_ORDERED_INTS = frozenset((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))


def reduce_tensor(tensor: torch.Tensor, info: DtypeInfo, *, zeros: bool = True) -> Reduction:
    """Return the reduction of a strided CPU tensor with at least one element.

    Parameters
    ----------
    tensor
        Any shape and strides, no conjugate or negative bit pending for real dtypes (`resolve` handles complex).
    info
        Description of its dtype, not ``opaque`` or ``quantised``.
    zeros
        False skips the count of zeros, which is then 0.
    """
    if tensor.numel() <= CHUNK:
        return _reduce_chunk(tensor, info, zeros=zeros)
    view, repeats = memory_order(tensor)
    parts = (_reduce_chunk(chunk, info, zeros=zeros) for chunk in logical_chunks(view))
    return repeat(fold(parts), repeats)


def fold(parts: Iterator[Reduction]) -> Reduction:
    """Combine the reductions of disjoint pieces in the order given."""
    largest, smallest, total, squares, nan, inf, zero = next(parts)
    for part in parts:
        largest = part[0] if part[0] > largest else largest
        smallest = part[1] if part[1] < smallest else smallest
        total += part[2]
        squares += part[3]
        nan += part[4]
        inf += part[5]
        zero += part[6]
    if nan:
        return _NAN, _NAN, _NAN, _NAN, nan, inf, zero
    return largest, smallest, total, squares, nan, inf, zero


def repeat(reduction: Reduction, times: int) -> Reduction:
    """Return the reduction of the same elements taken `times` times."""
    if times == 1:
        return reduction
    largest, smallest, total, squares, nan, inf, zero = reduction
    return largest, smallest, total * times, squares * times, nan * times, inf * times, zero * times


def _reduce_chunk(chunk: torch.Tensor, info: DtypeInfo, *, zeros: bool) -> Reduction:
    if info.kind == "int":
        return _reduce_ints(chunk, info, zeros=zeros)
    if info.kind == "bool":
        true = int(torch.count_nonzero(chunk))
        count = chunk.numel()
        return true > 0, true == count, float(true), float(true), 0, 0, count - true
    values = wide_values(chunk, info).reshape(-1)
    low, high = torch.aminmax(values)
    squares = torch.dot(values, values).item()
    nan = inf = 0
    if not math.isfinite(squares):
        nan = int(torch.count_nonzero(torch.isnan(values)))
        inf = int(torch.count_nonzero(values.abs() == math.inf))
    zero = values.numel() - int(torch.count_nonzero(values)) if zeros else 0
    return high.item(), low.item(), values.sum().item(), squares, nan, inf, zero


def _reduce_ints(chunk: torch.Tensor, info: DtypeInfo, *, zeros: bool) -> Reduction:
    low, high = integer_extremes(chunk, info)
    values = chunk.to(torch.float64).reshape(-1)
    zero = values.numel() - int(torch.count_nonzero(values)) if zeros else 0
    return high, low, values.sum().item(), torch.dot(values, values).item(), 0, 0, zero


def integer_extremes(chunk: torch.Tensor, info: DtypeInfo) -> tuple[int, int]:
    """Return the exact smallest and largest element of an integer tensor."""
    low, high = torch.aminmax(ordered_integers(chunk))
    return unordered_integer(low.item(), info), unordered_integer(high.item(), info)


def ordered_integers(chunk: torch.Tensor) -> torch.Tensor:
    """Return integers (or bools) as a signed dtype that torch can order, in the same order."""
    if chunk.dtype == torch.uint64:
        # torch orders no uint64: flip the top bit, so that the signed order is the unsigned one.
        return chunk.view(torch.int64) ^ _SIGN
    if chunk.dtype == torch.bool:
        return chunk.view(torch.uint8)
    return chunk if chunk.dtype in _ORDERED_INTS else chunk.to(torch.int64)


def unordered_integer(value: int, info: DtypeInfo) -> int:
    """Undo `ordered_integers` for one element of a tensor of the given dtype."""
    return value - _SIGN if info.name == "torch.uint64" else value


def wide_values(chunk: torch.Tensor, info: DtypeInfo, wide: torch.dtype = torch.float64) -> torch.Tensor:
    """Return the values of a piece as real floats: the modulus of complex ones, decoded float4.

    Parameters
    ----------
    chunk
        Strided tensor of a ``float`` or ``complex`` dtype.
    info
        Description of that dtype.
    wide
        float64, or float32 on devices without it.
    """
    if info.kind == "complex":
        return chunk.to(torch.complex128 if wide is torch.float64 else torch.complex64).abs()
    if info.numbers == 2:
        codes = chunk.view(torch.uint8).to(torch.int64)
        return _float4_pairs(chunk.device, wide)[codes]
    return chunk.to(wide)


@cache
def _float4_pairs(device: torch.device, wide: torch.dtype) -> torch.Tensor:
    """Table [256, 2]: the two e2m1 numbers of a byte, low nibble first (OCP Microscaling Formats v1.0, 5.3.3)."""
    magnitudes = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    numbers = [*magnitudes, *(-value for value in magnitudes)]
    rows = [[numbers[byte & 15], numbers[byte >> 4]] for byte in range(256)]
    return torch.tensor(rows, dtype=wide, device=device)


def scaled_mean_and_norm(tensor: torch.Tensor, info: DtypeInfo, scale: float) -> tuple[float, float]:
    """Return mean and L2 norm when squares leave the float64 range.

    ``norm = s * sqrt(sum((x / s) ** 2))`` with ``s = max |x|``, as in BLAS dnrm2 (Hammarling's method).
    """
    view, repeats = memory_order(tensor)
    total = squares = 0.0
    count = 0
    for chunk in logical_chunks(view):
        values = wide_values(chunk, info).reshape(-1) / scale
        total += values.sum().item()
        squares += torch.dot(values, values).item()
        count += values.numel()
    return scale * (total / count), scale * math.sqrt(squares * repeats)
