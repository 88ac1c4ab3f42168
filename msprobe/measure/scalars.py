"""Values that are not tensors -> JSON, in the encodings that readers of existing dumps know."""

from __future__ import annotations

import enum
import math
import zlib
from collections.abc import Callable
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np
import orjson
import torch

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


def encode_dtype(value: Any) -> dict[str, Any]:
    """Encode a dtype, or the Python type given in the place of one."""
    return {"type": "torch.dtype", "value": str(value)}


def encode_device(value: Any) -> dict[str, Any]:
    """Encode a device as ``type:index``; text and plain indices are kept as given."""
    if isinstance(value, torch.device):
        return {"type": "torch.device", "value": f"{value.type}:{value.index}"}
    return {"type": "torch.device", "value": value}


def encode_size(value: torch.Size) -> dict[str, Any]:
    """Encode a torch.Size."""
    return {"type": "torch.Size", "value": [size if type(size) is int else str(size) for size in value]}


def encode_memory_format(value: torch.memory_format) -> dict[str, Any]:
    """Encode a memory format by its short name."""
    return {"type": "torch.memory_format", "format": str(value).removeprefix("torch.")}


def encode_symbolic(value: Any) -> dict[str, Any]:
    """Encode a symbolic number by its expression, without fixing its value."""
    return {"type": f"torch.{type(value).__name__}", "value": str(value)}


def encode_reduce_op(value: Any) -> dict[str, Any]:
    """Encode the operation of a collective."""
    text = str(value) if "RedOpType" in str(value) else f"RedOpType.{_reduce_op_name(value)}"
    return {"type": "torch.distributed.ReduceOp", "value": text}


def _reduce_op_name(value: Any) -> str:
    names = type(value).RedOpType.__members__
    return next((name for name, member in names.items() if value == member), "UNKNOWN")


def group_id(ranks: list[int]) -> str:
    """Return the identity of a process group: CRC-32 of its list of ranks as text, 8 hex digits."""
    return f"{zlib.crc32(str(ranks).encode()):08x}"


def _group_ranks(group: Any) -> list[int]:
    return list(torch.distributed.get_process_group_ranks(group))


def encode_process_group(value: Any) -> dict[str, Any]:
    """Encode a process group by its global ranks."""
    ranks = _group_ranks(value)
    return {"type": "torch.ProcessGroup", "group_ranks": ranks, "group_id": group_id(ranks)}


def encode_p2p_op(value: Any, tensor: Any) -> dict[str, Any]:
    """Encode a point-to-point operation whose tensor is encoded already."""
    group = value.group if value.group is not None else torch.distributed.group.WORLD
    return {
        "class_type": "torch.distributed.P2POp",
        "tensor": tensor,
        "op": getattr(value.op, "__name__", str(value.op)),
        "peer": value.peer,
        "tag": value.tag,
        "group_id": group_id(_group_ranks(group)),
    }


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
SCALARS: dict[type, ScalarEncoder] = {
    type(None): encode_null,
    bool: encode_bool,
    int: encode_int,
    float: encode_float,
    str: encode_str,
    complex: encode_complex,
    EllipsisType: encode_ellipsis,
    torch.dtype: encode_dtype,
    torch.device: encode_device,
    torch.Size: encode_size,
    torch.memory_format: encode_memory_format,
    torch.SymInt: encode_symbolic,
    torch.SymFloat: encode_symbolic,
    torch.SymBool: encode_symbolic,
}

#: Keyword whose text or number stands for an object -> encoder.
NAMED: dict[str, ScalarEncoder] = {"device": encode_device, "dtype": encode_dtype}

_HAS_DISTRIBUTED = torch.distributed.is_available()

#: Base class -> encoder, tried in this order for types that are not in `SCALARS`.
SCALAR_BASES: tuple[tuple[type | tuple[type, ...], ScalarEncoder], ...] = (
    (np.generic, encode_numpy_scalar),
    (int, encode_int),
    (float, encode_float),
    (str, encode_str),
    (complex, encode_complex),
    (enum.Enum, encode_enum),
    *(
        (
            ((torch.distributed.ReduceOp, torch.distributed.ReduceOp.RedOpType), encode_reduce_op),
            (torch.distributed.ProcessGroup, encode_process_group),
        )
        if _HAS_DISTRIBUTED
        else ()
    ),
)

#: The classes of point-to-point operations: they hold a tensor, which the caller encodes.
P2P_OPS: tuple[type, ...] = (torch.distributed.P2POp,) if _HAS_DISTRIBUTED else ()
