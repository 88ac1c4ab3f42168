"""Names of dtypes, what kind of numbers they hold, and the codes by which the kernels know them. No framework here."""

from __future__ import annotations

from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["float", "int", "bool", "complex", "quantised", "packed", "opaque"]

#: Kind -> names and kernel codes (those of c10::ScalarType); -1: the kernels do not read it.
CODES: dict[Kind, dict[str, int]] = {
    "float": {
        "float16": 5,
        "float32": 6,
        "float64": 7,
        "bfloat16": 15,
        "float8_e5m2": 23,
        "float8_e4m3fn": 24,
        "float8_e5m2fnuz": 25,
        "float8_e4m3fnuz": 26,
        "float8_e8m0fnu": 44,
        "float4_e2m1fn_x2": -1,
    },
    "int": {
        "uint8": 0,
        "int8": 1,
        "int16": 2,
        "int32": 3,
        "int64": 4,
        "uint16": 27,
        "uint32": 28,
        "uint64": 29,
    },
    "bool": {"bool": 11},
    "complex": {"complex32": 8, "complex64": 9, "complex128": 10},
    "quantised": {"qint8": -1, "quint8": -1, "qint32": -1},
    "packed": {"quint4x2": -1, "quint2x4": -1},
}

#: dtype name -> kernel code, for what the kernels read.
CODE_OF: dict[str, int] = {name: code for names in CODES.values() for name, code in names.items() if code >= 0}
