"""What is known about every torch dtype: kernel code, width, kind, and how `precision = low` rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from msprobe.measure import rounding
from msprobe.measure.rounding import RoundPair

Kind: TypeAlias = Literal["float", "int", "bool", "complex", "quantised", "packed", "opaque"]


@dataclass(frozen=True, slots=True)
class DtypeInfo:
    """One dtype.

    Attributes
    ----------
    name
        As written in a dump, for example ``torch.float32``.
    code
        The number of this dtype in c10::ScalarType, which the native kernels take; -1 when they do not know it.
    itemsize
        Bytes of one element as stored.
    kind
        ``packed``: quantised below one byte; ``opaque``: bits without arithmetic meaning.
    round_pair
        Rounds mean and norm to this dtype for low precision; None when float64 already is the answer.
    numbers
        Numbers in one stored element: 2 for packed float4.
    """

    name: str
    code: int
    itemsize: int
    kind: Kind
    round_pair: RoundPair | None = None
    numbers: int = 1


_FLOATS: dict[str, tuple[int, RoundPair | None]] = {
    "float16": (5, rounding.round_pair_float16),
    "float32": (6, rounding.round_pair_float32),
    "float64": (7, None),
    "bfloat16": (15, rounding.BFLOAT16.round_pair),
    "float8_e5m2": (23, rounding.FLOAT8_E5M2.round_pair),
    "float8_e4m3fn": (24, rounding.FLOAT8_E4M3FN.round_pair),
    "float8_e5m2fnuz": (25, rounding.FLOAT8_E5M2FNUZ.round_pair),
    "float8_e4m3fnuz": (26, rounding.FLOAT8_E4M3FNUZ.round_pair),
    "float8_e8m0fnu": (44, rounding.FLOAT8_E8M0FNU.round_pair),
    "float4_e2m1fn_x2": (-1, rounding.FLOAT4_E2M1FN.round_pair),
}
_INTS = {
    "uint8": 0,
    "int8": 1,
    "int16": 2,
    "int32": 3,
    "int64": 4,
    "uint16": 27,
    "uint32": 28,
    "uint64": 29,
}
_COMPLEX: dict[str, tuple[int, RoundPair | None]] = {
    "complex32": (8, rounding.round_pair_float16),
    "complex64": (9, rounding.round_pair_float32),
    "complex128": (10, None),
}
_QUANTISED: dict[str, Kind] = {
    "qint8": "quantised",
    "quint8": "quantised",
    "qint32": "quantised",
    "quint4x2": "packed",
    "quint2x4": "packed",
}


def _table() -> dict[torch.dtype, DtypeInfo]:
    table: dict[torch.dtype, DtypeInfo] = {}

    def add(name: str, code: int, kind: Kind, round_pair: RoundPair | None = None) -> None:
        dtype = getattr(torch, name, None)
        if dtype is not None:
            numbers = 2 if name.endswith("_x2") else 1
            table[dtype] = DtypeInfo(f"torch.{name}", code, dtype.itemsize, kind, round_pair, numbers)

    for name, (code, round_pair) in _FLOATS.items():
        add(name, code, "float", round_pair)
    for name, code in _INTS.items():
        add(name, code, "int")
    for name, (code, round_pair) in _COMPLEX.items():
        add(name, code, "complex", round_pair)
    for name, kind in _QUANTISED.items():
        add(name, -1, kind, rounding.round_pair_float32)
    add("bool", 11, "bool")
    return table


#: Every dtype whose elements are numbers.
DTYPES: dict[torch.dtype, DtypeInfo] = _table()

#: The dtypes that a kernel can read straight from memory (the fast path of the encoder).
PLAIN_DTYPES: dict[torch.dtype, DtypeInfo] = {dtype: info for dtype, info in DTYPES.items() if info.code >= 0}


def describe_dtype(dtype: torch.dtype) -> DtypeInfo:
    """Return what is known about `dtype`; an unknown one is ``opaque``."""
    info = DTYPES.get(dtype)
    return info if info is not None else DtypeInfo(str(dtype), -1, dtype.itemsize, "opaque")
