"""What the CPU kernels compute, in numpy: the definition the tests hold them to, and the path without a compiler.

Sums are formed in float64 and integers are exact, so the results agree with the kernels within the bounds given in
``_native.pyi``. The arrays may have any shape and strides; copies are made freely.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
#: max, min, sum, sum of squares, NaN count, Inf count, zero count.
Reduction: TypeAlias = tuple[float, float, float, float, int, int, int]

#: numpy (or ml_dtypes) name -> number of c10::ScalarType.
DTYPE_CODES: dict[str, int] = {
    "uint8": 0,
    "int8": 1,
    "int16": 2,
    "int32": 3,
    "int64": 4,
    "float16": 5,
    "float32": 6,
    "float64": 7,
    "complex64": 9,
    "complex128": 10,
    "bool": 11,
    "bfloat16": 15,
    "float8_e5m2": 23,
    "float8_e4m3fn": 24,
    "float8_e5m2fnuz": 25,
    "float8_e4m3fnuz": 26,
    "uint16": 27,
    "uint32": 28,
    "uint64": 29,
    "float8_e8m0fnu": 44,
}

GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xFF51AFD7ED558CCD
MIX_2 = 0xC4CEB9FE1A85EC53
_MASK = (1 << 64) - 1


@cache
def float8_values(code: int) -> NDArray[np.float64]:
    """Return the value of each of the 256 codes of a float8 dtype.

    Parameters
    ----------
    code
        23 e5m2, 24 e4m3fn, 25 e5m2fnuz, 26 e4m3fnuz, 44 e8m0fnu.

    Notes
    -----
    Formats: Micikevicius et al., "FP8 Formats for Deep Learning" (2022); the fnuz variants as in ONNX; E8M0 as in the
    OCP Microscaling Formats specification 1.0.
    """
    codes = np.arange(256)
    if code == 44:
        powers: NDArray[np.float64] = np.where(codes == 255, np.nan, np.ldexp(1.0, codes - 127))
        return powers
    mantissa_bits, bias = {23: (2, 15), 24: (3, 7), 25: (2, 16), 26: (3, 8)}[code]
    magnitude = codes & 0x7F
    exponent, mantissa = magnitude >> mantissa_bits, magnitude & ((1 << mantissa_bits) - 1)
    significand = np.where(exponent > 0, mantissa + (1 << mantissa_bits), mantissa).astype(np.float64)
    values = np.ldexp(significand, np.maximum(exponent, 1) - bias - mantissa_bits)
    if code == 23:
        values[magnitude == 0x7C] = np.inf
        values[magnitude > 0x7C] = np.nan
    elif code == 24:
        values[magnitude == 0x7F] = np.nan
    signed: NDArray[np.float64] = np.where(codes >= 128, -values, values)
    if code in (25, 26):
        signed[128] = np.nan
    return signed


def values_of(array: Array, code: int) -> Array:
    """Return the elements as float64 (or complex128, or their own integer dtype).

    Parameters
    ----------
    array
        Elements of dtype number `code`, or what stores them: unsigned integers of the same width for bfloat16 and
        float8, a trailing dimension of two float16 for complex32.
    code
        Number of the dtype, see `DTYPE_CODES`.

    Raises
    ------
    ValueError
        If no kernel reads this dtype.
    """
    if code == 15:
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if code in (23, 24, 25, 26, 44):
        return float8_values(code)[array.view(np.uint8)]
    if code == 8:
        return _complex(array.astype(np.float64))
    if code in (9, 10):
        return array.astype(np.complex128)
    if code in (5, 6, 7):
        return array.astype(np.float64)
    if code in (0, 1, 2, 3, 4, 11, 27, 28, 29):
        return array
    raise ValueError(f"reference statistics: no dtype with number {code}; known are {sorted(DTYPE_CODES.values())}")


def _complex(pair: Array) -> Array:
    """Return complex numbers from a trailing dimension of two; arithmetic would turn infinities into NaN."""
    values: Array = np.empty(pair.shape[:-1], np.complex128)
    values.real, values.imag = pair[..., 0], pair[..., 1]
    return values


def stats(array: Array, code: int) -> Reduction:
    """Return max, min, sum, sum of squares, NaN, Inf and zero count of an array with at least one element.

    Parameters
    ----------
    array, code
        As in `values_of`.

    Returns
    -------
    tuple
        Integers give exact ints for max and min, bools give bools, complex numbers the statistics of their modulus.
        With a NaN present the first four are NaN.

    Raises
    ------
    ValueError
        If the array is empty or the dtype unknown.
    """
    if array.size == 0:
        raise ValueError("reference statistics: an array without elements has no statistics")
    with np.errstate(all="ignore"):
        values = values_of(array, code).reshape(-1)
        if values.dtype.kind in "biu":
            return _integer_stats(values)
        if values.dtype.kind == "c":
            values = _modulus(values, narrow=code != 10)
        nan = int(np.count_nonzero(np.isnan(values)))
        inf = int(np.count_nonzero(np.isinf(values)))
        zero = int(np.count_nonzero(values == 0))
        squares = float(np.dot(values, values))
        return float(values.max()), float(values.min()), float(values.sum()), squares, nan, inf, zero


def _modulus(values: Array, *, narrow: bool) -> Array:
    """Return |z|, infinite when a part is even if the other one is NaN (C99 hypot).

    Squares of `narrow` parts, float32 at most, are exact in float64 and stay in range, so there the root is enough.
    """
    if not narrow:
        hypot: Array = np.hypot(values.real, values.imag)
        return hypot
    root = np.sqrt(values.real**2 + values.imag**2)
    return np.where(np.isinf(values.real) | np.isinf(values.imag), np.inf, root)


def _integer_stats(values: Array) -> Reduction:
    zero = values.size - int(np.count_nonzero(values))
    if values.dtype.kind == "b":
        true = float(values.size - zero)
        return true > 0, zero == 0, true, true, 0, 0, zero
    # Python integers are exact; halves keep their number small.
    wide = values.astype(np.uint64 if values.dtype.kind == "u" else np.int64)
    total = (int((wide >> 32).sum()) << 32) + int((wide & 0xFFFFFFFF).sum())
    floats = wide.astype(np.float64)
    exact = values.dtype.itemsize < 4
    squares = float(int(np.dot(wide, wide))) if exact else float(np.dot(floats, floats))
    return int(values.max()), int(values.min()), float(total), squares, 0, 0, zero


def find_nonfinite(array: Array, code: int) -> bool:
    """Return whether an element is NaN or infinite; `array` and `code` as in `values_of`."""
    values = values_of(array, code)
    return values.dtype.kind in "fc" and not bool(np.isfinite(values).all())


def content(array: Array) -> bytes:
    """Return the bytes of the elements in row-major order."""
    return array.tobytes(order="C")


def crc32(array: Array) -> int:
    """Return the CRC-32 (polynomial of zlib) of the content."""
    return zlib.crc32(content(array))


def words(data: bytes) -> NDArray[np.uint64]:
    """Return bytes as little-endian 64-bit words, zero padded."""
    return np.frombuffer(data + bytes(-len(data) % 8), dtype="<u8").astype(np.uint64)


def xor64(array: Array) -> int:
    """Return the XOR of the words of the content."""
    return int(np.bitwise_xor.reduce(words(content(array))))


def fmix64(value: int) -> int:
    """Return MurmurHash3's 64-bit finaliser (A. Appleby, public domain) of an unsigned 64-bit integer."""
    value ^= value >> 33
    value = value * MIX_1 & _MASK
    value ^= value >> 33
    value = value * MIX_2 & _MASK
    return value ^ value >> 33


def hash64(array: Array, shape: Iterable[int] | None = None) -> int:
    """Return the 64-bit hash of content and shape.

    With the words ``w_0 .. w_{n-1}`` of the content and arithmetic modulo 2**64::

        body   = sum_i fmix64(w_i + (i + 1) * 0x9E3779B97F4A7C15)
        salt   = fmix64(nbytes + 1), then salt = fmix64(salt ^ (size + 0x9E3779B97F4A7C15)) for each dimension
        result = fmix64(body ^ salt)

    The sum may be formed in any order, so threads and accelerators get the same value; the index in it tells
    permutations apart. It is no cryptographic hash: equal hashes can be constructed.

    Parameters
    ----------
    array
        Content; any strides.
    shape
        Shape to hash if not that of the array.
    """
    data = content(array)
    word = words(data)
    x = word + np.arange(1, word.size + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    x = (x ^ (x >> np.uint64(33))) * np.uint64(MIX_1)
    x = (x ^ (x >> np.uint64(33))) * np.uint64(MIX_2)
    body = int((x ^ (x >> np.uint64(33))).sum(dtype=np.uint64))
    salt = fmix64(len(data) + 1)
    for size in array.shape if shape is None else shape:
        salt = fmix64(salt ^ (size + GOLDEN & _MASK))
    return fmix64(body ^ salt)


def norm(array: Array, code: int) -> float:
    """Return the L2 norm, scaled so that squares of very large or small elements stay in range.

    ``norm = s * sqrt(sum((x / s)**2))`` with ``s = max |x|``, as BLAS dnrm2 does.
    """
    values = values_of(array, code).reshape(-1)
    with np.errstate(all="ignore"):
        scale = float(np.abs(values).max())
        if scale == 0 or not math.isfinite(scale):
            return scale
        scaled = np.abs(values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)) / scale
        return scale * math.sqrt(float(np.dot(scaled, scaled)))
