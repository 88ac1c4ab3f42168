"""What is known about every torch dtype: kernel code, width, kind, and how `precision = low` rounds."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from msprobe.measure.kernel_codes import CODES, Kind
from msprobe.measure.rounding import ROUND_PAIR, RoundPair


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


def _describe(name: str, dtype: torch.dtype, kind: Kind, code: int) -> DtypeInfo:
    round_pair = ROUND_PAIR.get("float32" if kind in ("quantised", "packed") else name)
    return DtypeInfo(f"torch.{name}", code, dtype.itemsize, kind, round_pair, 2 if name.endswith("_x2") else 1)


#: Every dtype whose elements are numbers.
DTYPES: dict[torch.dtype, DtypeInfo] = {
    getattr(torch, name): _describe(name, getattr(torch, name), kind, code)
    for kind, names in CODES.items()
    for name, code in names.items()
    if hasattr(torch, name)  # older releases lack the newest ones
}

#: The dtypes that a kernel can read straight from memory (the fast path of the encoder).
PLAIN_DTYPES: dict[torch.dtype, DtypeInfo] = {dtype: info for dtype, info in DTYPES.items() if info.code >= 0}


def describe_dtype(dtype: torch.dtype) -> DtypeInfo:
    """Return what is known about `dtype`; an unknown one is ``opaque``."""
    info = DTYPES.get(dtype)
    return info if info is not None else DtypeInfo(str(dtype), -1, dtype.itemsize, "opaque")
