"""Round a float64 to a narrower binary float format, without a framework.

All formats round to nearest, ties to even, as a tensor cast does.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

Pair: TypeAlias = tuple[float, float]
RoundPair: TypeAlias = Callable[[float, float], Pair]

#: Exponents of float64 as math.frexp gives them.
_EXPONENTS = range(-1073, 1025)


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A binary float format.

    Attributes
    ----------
    precision
        Significand bits, the hidden one included; at most 24.
    min_exponent
        `e` of the smallest normal number `1.0 * 2**e`.
    largest
        Largest finite value.
    saturates
        True when a cast of a larger finite value gives `largest` (formats without Infinity), not Infinity.
    """

    precision: int
    min_exponent: int
    largest: float
    saturates: bool = False

    def overflow(self, value: float) -> float:
        """Return what a value beyond `largest` becomes."""
        bound = self.largest if self.saturates and math.isfinite(value) else math.inf
        return math.copysign(bound, value)

    def unit(self, exponent: int) -> float:
        """Return the spacing of this format's numbers below ``2**exponent``."""
        return math.ldexp(1.0, max(exponent - 1, self.min_exponent) - self.precision + 1)


def pair_rounder(target: FloatFormat) -> RoundPair:
    """Return a function that rounds two numbers to `target`; NaN and infinities are kept.

    Adding ``1.5 * 2**52 * unit`` pushes every bit below the unit out of a float64, and the hardware rounds that sum to
    nearest even (the shift of T. J. Dekker, Numer. Math. 18, 1971, with the exponent looked up so that ties stay ties).
    """
    # Indexed by the exponent itself: negative ones count from the end of the list.
    shifts = [0.0] * (2 * len(_EXPONENTS))
    for exponent in _EXPONENTS:
        unit = target.unit(exponent)
        shifts[exponent] = 1.5 * 2.0**52 * unit if unit < 2.0**970 else math.inf
    frexp, largest = math.frexp, target.largest

    def settle(value: float, rounded: float) -> float:
        if math.isnan(value) or -largest <= rounded <= largest:
            return value if math.isnan(value) else rounded
        return target.overflow(value)

    def round_pair(first: float, second: float) -> Pair:
        shift = shifts[frexp(first)[1]]
        left = (first + shift) - shift
        shift = shifts[frexp(second)[1]]
        right = (second + shift) - shift
        if -largest <= left <= largest and -largest <= right <= largest:
            return left, right
        return settle(first, left), settle(second, right)

    return round_pair


def packing_rounder(target: FloatFormat, code: str) -> RoundPair:
    """Return the same for a format that `struct` knows as `code`: a third faster, and float32 is most of the work."""
    layout = struct.Struct(f"={code}{code}")
    pack, unpack = layout.pack, layout.unpack
    beyond = pair_rounder(target)

    def round_pair(first: float, second: float) -> Pair:
        try:
            return unpack(pack(first, second))
        except OverflowError:
            return beyond(first, second)

    return round_pair


#: The narrow formats, by the name of the dtype as torch, numpy and ml_dtypes spell it.
FORMATS: dict[str, FloatFormat] = {
    "float32": FloatFormat(24, -126, float.fromhex("0x1.fffffep+127")),
    "float16": FloatFormat(11, -14, 65504.0),
    "bfloat16": FloatFormat(8, -126, float.fromhex("0x1.fep+127")),
    "float8_e4m3fn": FloatFormat(4, -6, 448.0, saturates=True),
    "float8_e4m3fnuz": FloatFormat(4, -7, 240.0),
    "float8_e5m2": FloatFormat(3, -14, 57344.0),
    "float8_e5m2fnuz": FloatFormat(3, -15, 57344.0),
    "float8_e8m0fnu": FloatFormat(1, -127, math.ldexp(1.0, 127)),
    "float4_e2m1fn_x2": FloatFormat(2, 0, 6.0, saturates=True),
}

_PACKED = {"float32": "f", "float16": "e"}

#: Rounding to the dtype of this name; the others need none.
ROUND_PAIR: dict[str, RoundPair] = {
    name: packing_rounder(target, _PACKED[name]) if name in _PACKED else pair_rounder(target)
    for name, target in FORMATS.items()
}
ROUND_PAIR["complex64"] = ROUND_PAIR["float32"]
ROUND_PAIR["complex32"] = ROUND_PAIR["float16"]
