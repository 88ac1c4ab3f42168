"""How the kernels read the elements of every torch dtype.

Narrow floats (up to 32 bits) are accumulated in float32 lanes that are widened to float64 every few elements, wide ones
in float64, integers in integers as far as they are exact. float8 is decoded by integer arithmetic: no architecture
needs to know the format, Triton's interpreter gets NaN right, and there is no look-up table to keep on each device.
"""

# ruff: noqa: SIM300 - Triton spells compile-time arguments in capitals

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import triton
import triton.language as tl

Family = Literal["narrow", "wide", "integer"]

_INT32 = (-(1 << 31), (1 << 31) - 1)
_INT64 = (-(1 << 63), (1 << 63) - 1)
_FLOAT = (float("-inf"), float("inf"))


@dataclass(frozen=True, slots=True)
class Element:
    """How to read one dtype.

    Attributes
    ----------
    stored
        Triton type of the words in memory.
    decode
        Which branch of `decoded` turns a word into a number.
    lane
        Type of the extremes while they are searched.
    sum, square
        Types in which a few numbers and their squares are added before they are widened to float64.
    low, high
        Start values of the search for the largest and the smallest.
    block
        Elements that the program reads at a time: 16 bytes or more for each of 128 threads.
    reals
        Words per element: 2 for complex numbers.
    """

    stored: Any
    decode: str
    lane: Any
    sum: Any
    square: Any
    low: float
    high: float
    block: int
    reals: int = 1

    @property
    def family(self) -> Family:
        """``narrow`` and ``wide`` floats, or ``integer``."""
        if self.lane == tl.float32:
            return "narrow"
        return "wide" if self.lane == tl.float64 else "integer"

    def constants(self) -> dict[str, Any]:
        """Return the compile-time arguments that the statistics kernels take."""
        return {
            "STORED": self.stored,
            "DECODE": self.decode,
            "LANE": self.lane,
            "SUM": self.sum,
            "SQUARE": self.square,
            "LOW": self.low,
            "HIGH": self.high,
            "BLOCK": self.block,
        }


def _narrow(stored: Any, decode: str = "cast", block: int = 1024) -> Element:
    return Element(stored, decode, tl.float32, tl.float32, tl.float32, *_FLOAT, block)


def _wide(stored: Any, decode: str = "cast", reals: int = 1) -> Element:
    return Element(stored, decode, tl.float64, tl.float64, tl.float64, *_FLOAT, 512, reals)


def _integers() -> dict[str, Element]:
    i32, i64, f64 = tl.int32, tl.int64, tl.float64
    return {
        "bool": Element(tl.uint8, "bool", i32, i32, i32, *_INT32, 1024),
        "uint8": Element(tl.uint8, "cast", i32, i32, i32, *_INT32, 1024),
        "int8": Element(tl.int8, "cast", i32, i32, i32, *_INT32, 1024),
        "int16": Element(tl.int16, "cast", i32, i32, i64, *_INT32, 1024),
        "uint16": Element(tl.uint16, "cast", i32, i32, i64, *_INT32, 1024),
        "int32": Element(tl.int32, "cast", i32, i64, f64, *_INT32, 1024),
        "uint32": Element(tl.uint32, "cast", i64, i64, f64, *_INT64, 1024),
        "int64": Element(tl.int64, "cast", i64, f64, f64, *_INT64, 512),
        "uint64": Element(tl.int64, "uint64", i64, f64, f64, *_INT64, 512),
    }


def _elements() -> dict[torch.dtype, Element]:
    named = {
        "float16": _narrow(tl.float16),
        "bfloat16": _narrow(tl.bfloat16),
        "float32": _narrow(tl.float32),
        "float64": _wide(tl.float64),
        "complex32": _wide(tl.float16, "complex", reals=2),
        "complex64": _wide(tl.float32, "complex", reals=2),
        "complex128": _wide(tl.float64, "complex", reals=2),
        **_integers(),
    }
    for name in ("e5m2", "e5m2fnuz", "e4m3fn", "e4m3fnuz", "e8m0fnu"):
        named[f"float8_{name}"] = _narrow(tl.uint8, name, block=2048)
    return {getattr(torch, name): element for name, element in named.items() if hasattr(torch, name)}


#: Powers of two between the bias of float32 and that of a float8 format (127 - 7, 8, 15 and 16).
_E4M3FN = tl.constexpr(2.0**120)
_E4M3FNUZ = tl.constexpr(2.0**119)
_E5M2 = tl.constexpr(2.0**112)
_E5M2FNUZ = tl.constexpr(2.0**111)

#: Every dtype that the kernels read. Packed float4 and quantised tensors are left to the caller.
ELEMENTS: dict[torch.dtype, Element] = _elements()


@triton.jit
def float8(words, DECODE: tl.constexpr):
    """Decode a float8 byte: its magnitude bits as the top of a float32, times a power of two for the other bias.

    Exact for subnormal numbers too: they become subnormal float32 numbers, and the product is normal.
    """
    bits = words.to(tl.int32)
    magnitude = bits & 0x7F
    if DECODE == "e4m3fn":
        value = (magnitude << 20).to(tl.float32, bitcast=True) * _E4M3FN
        unusable = magnitude == 0x7F
    elif DECODE == "e4m3fnuz":
        value = (magnitude << 20).to(tl.float32, bitcast=True) * _E4M3FNUZ
        unusable = bits == 0x80
    elif DECODE == "e5m2":
        value = (magnitude << 21).to(tl.float32, bitcast=True) * _E5M2
        value = tl.where(magnitude == 0x7C, float("inf"), value)
        unusable = magnitude > 0x7C
    elif DECODE == "e5m2fnuz":
        value = (magnitude << 21).to(tl.float32, bitcast=True) * _E5M2FNUZ
        unusable = bits == 0x80
    else:  # e8m0fnu: an exponent without sign and significand
        value = tl.where(bits == 0, 1 << 22, bits << 23).to(tl.float32, bitcast=True)
        unusable = bits == 0xFF
    if DECODE != "e8m0fnu":
        value = tl.where(bits > 0x7F, -value, value)
    return tl.where(unusable, float("nan"), value)


@triton.jit
def modulus(real, imaginary, STORED: tl.constexpr):
    """Return ``hypot(real, imaginary)`` in float64: Infinity if either is infinite, else NaN if either is NaN."""
    first = tl.abs(real.to(tl.float64))
    second = tl.abs(imaginary.to(tl.float64))
    if STORED == tl.float64:
        larger = tl.maximum(first, second)
        usable = (larger > 0) & (larger < float("inf"))
        ratio = tl.where(usable, tl.minimum(first, second) / tl.where(usable, larger, 1.0), 0.0)
        value = larger * tl.sqrt(ratio * ratio + 1.0)
    else:  # squares of float32 numbers are within the range of float64
        value = tl.sqrt(first * first + second * second)
    infinite = (first == float("inf")) | (second == float("inf"))
    value = tl.where((first != first) | (second != second), float("nan"), value)
    return tl.where(infinite, float("inf"), value)


@triton.jit
def decoded(words, DECODE: tl.constexpr, LANE: tl.constexpr):
    """Turn stored words into numbers of the lane type. uint64 keeps its order, not its value; see `number`."""
    if DECODE == "cast":
        value = words.to(LANE)
    elif DECODE == "bool":
        value = (words != 0).to(LANE)
    elif DECODE == "uint64":
        value = words ^ -0x8000000000000000
    else:
        value = float8(words, DECODE)
    return value


@triton.jit
def number(lanes, DECODE: tl.constexpr, TARGET: tl.constexpr):
    """Return decoded lanes as numbers to be added."""
    if DECODE == "uint64":
        value = (lanes ^ -0x8000000000000000).to(tl.uint64, bitcast=True).to(TARGET)
    else:
        value = lanes.to(TARGET)
    return value
