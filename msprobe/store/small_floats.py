"""Values of bfloat16 and the 8-bit floats, by their bits: numpy has no such dtypes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def widen_bfloat16(bits: NDArray[Any]) -> NDArray[np.float32]:
    """Return bfloat16 numbers, given as uint16, as float32: they are its upper half."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _decode(byte: int, exponent_bits: int, bias: int, *, finite: bool, unsigned_zero: bool) -> float:
    """Decode one 8-bit float (OCP 8-bit Floating Point Specification 1.0; the ``fnuz`` kinds: arXiv 2206.02915).

    Parameters
    ----------
    finite
        No infinities: only all ones is NaN (``fn``).
    unsigned_zero
        What would be -0 is the only NaN (``fnuz``).
    """
    mantissa_bits = 7 - exponent_bits
    sign = -1.0 if byte & 0x80 else 1.0
    exponent = (byte & 0x7F) >> mantissa_bits
    mantissa = byte & ((1 << mantissa_bits) - 1)
    if unsigned_zero:
        if byte == 0x80:
            return math.nan
    elif finite:
        if byte & 0x7F == 0x7F:
            return math.nan
    elif exponent == (1 << exponent_bits) - 1:
        return math.nan if mantissa else sign * math.inf
    fraction = mantissa / (1 << mantissa_bits)
    if exponent == 0:
        return sign * math.ldexp(fraction, 1 - bias)
    return sign * math.ldexp(1.0 + fraction, exponent - bias)


def _table(exponent_bits: int, bias: int, *, finite: bool = False, unsigned_zero: bool = False) -> NDArray[np.float32]:
    values = [_decode(b, exponent_bits, bias, finite=finite, unsigned_zero=unsigned_zero) for b in range(256)]
    return np.array(values, np.float32)


#: dtype -> float32 value of each byte.
FLOAT8_VALUES: Mapping[str, NDArray[np.float32]] = {
    "float8_e4m3fn": _table(4, 7, finite=True),
    "float8_e5m2": _table(5, 15),
    "float8_e4m3fnuz": _table(4, 8, unsigned_zero=True),
    "float8_e5m2fnuz": _table(5, 16, unsigned_zero=True),
    "float8_e8m0fnu": np.array([*(math.ldexp(1.0, b - 127) for b in range(255)), math.nan], np.float32),
}
