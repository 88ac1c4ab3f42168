"""Plain Python and numpy values -> JSON, in the encodings that readers of existing dumps know. No framework here."""

from __future__ import annotations

import enum
import math
import zlib
from collections.abc import Callable
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np
import orjson

#: The JSON object of no values. Unlike a dict, nothing that the garbage collector has to look at.
EMPTY = orjson.Fragment(b"{}")
NAN = orjson.Fragment(b"NaN")
INFINITY = orjson.Fragment(b"Infinity")
NEGATIVE_INFINITY = orjson.Fragment(b"-Infinity")

#: Longer strings are cut; nobody compares a whole prompt in a dump.
STRING_LIMIT = 1000
#: Python refuses to print longer integers in decimal; they are written in hexadecimal text.
DIGIT_LIMIT = 4000

ScalarEncoder: TypeAlias = Callable[[Any], Any]


def json_float(value: float) -> Any:
    """Return `value`, or the bare token for NaN and the infinities (orjson would write null for them)."""
    if value - value == 0.0:
        return value
    if math.isnan(value):
        return NAN
    return INFINITY if value > 0 else NEGATIVE_INFINITY


def json_number(value: float | int | bool | None) -> Any:
    """Return a statistic as JSON: ints, bools and None as they are, floats as `json_float` does."""
    return json_float(value) if isinstance(value, float) else value


def json_int(value: int) -> Any:
    """Return `value`, as a raw token where orjson's 64 bits do not hold it."""
    if -(1 << 63) <= value < 1 << 64:
        return value
    if value.bit_length() > DIGIT_LIMIT * 3:
        return f"{value:#x}"[:STRING_LIMIT] + f"... ({value.bit_length()} bits)"
    return orjson.Fragment(str(value).encode())


def json_text(value: str) -> Any:
    """Return the text, cut to `STRING_LIMIT` characters and with lone surrogates escaped."""
    text = str.__str__(value)
    if len(text) > STRING_LIMIT:
        text = f"{text[:STRING_LIMIT]}... ({len(text)} characters)"
    return text if text.isascii() else valid_text(text)


def valid_text(text: str) -> str:
    r"""Return `text` with lone surrogates written as ``\udc80``: JSON writers refuse them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def json_key(key: Any) -> str:
    """Return the name of a mapping's key in JSON."""
    text = str.__str__(key) if isinstance(key, str) else str(key)
    return text if text.isascii() else valid_text(text)


def encode_bool(value: bool) -> dict[str, Any]:
    """Encode True or False."""
    return {"type": "bool", "value": value}


def encode_int(value: int) -> dict[str, Any]:
    """Encode an integer of any size."""
    return {"type": "int", "value": json_int(int(value))}


def encode_float(value: float) -> dict[str, Any]:
    """Encode a float, NaN and infinities included."""
    return {"type": "float", "value": json_float(float(value))}


def encode_str(value: str) -> dict[str, Any]:
    """Encode a string."""
    return {"type": "str", "value": json_text(value)}


def encode_complex(value: complex) -> dict[str, Any]:
    """Encode a complex number as its Python text."""
    return {"type": "complex", "value": str(complex(value))}


def encode_ellipsis(_value: EllipsisType) -> dict[str, Any]:
    """Encode ``...``, as found in an index."""
    return {"type": "ellipsis", "value": "..."}


def group_id(ranks: list[int]) -> str:
    """Return the identity of a process group: CRC-32 of its list of ranks as text, 8 hex digits."""
    return f"{zlib.crc32(str(ranks).encode()):08x}"


def encode_enum(value: enum.Enum) -> dict[str, Any]:
    """Encode a member of an enumeration by its name."""
    return {"type": "enum", "value": json_text(f"{type(value).__name__}.{value.name}")}


def encode_numpy_scalar(value: np.generic) -> Any:
    """Encode a numpy scalar under the name of its dtype."""
    plain = value.item()
    name = value.dtype.name
    if isinstance(plain, bool):
        return {"type": name, "value": plain}
    if isinstance(plain, int):
        return {"type": name, "value": json_int(plain)}
    if isinstance(plain, float):
        return {"type": name, "value": json_float(plain)}
    if isinstance(plain, str):
        return {"type": "str", "value": json_text(plain)}
    return {"type": name, "value": json_text(str(plain))}


def encode_null(_value: Any) -> None:
    """Encode None."""


#: Exact type -> encoder.
PLAIN: dict[type, ScalarEncoder] = {
    type(None): encode_null,
    bool: encode_bool,
    int: encode_int,
    float: encode_float,
    str: encode_str,
    complex: encode_complex,
    EllipsisType: encode_ellipsis,
}

#: Base class -> encoder, tried in this order for types that are not in `PLAIN`.
PLAIN_BASES: tuple[tuple[type | tuple[type, ...], ScalarEncoder], ...] = (
    (np.generic, encode_numpy_scalar),
    (int, encode_int),
    (float, encode_float),
    (str, encode_str),
    (complex, encode_complex),
    (enum.Enum, encode_enum),
)
