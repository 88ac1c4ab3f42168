"""JSON text of the dump files: fast to write, never silently wrong.

The readers of a dump expect the bare tokens ``NaN``, ``Infinity`` and ``-Infinity``. `orjson` is the fastest encoder
there is, but writes ``null`` for such floats and refuses lone surrogates and integers beyond 64 bit. So every value
is first given to `orjson`; only when its text contains the word ``null`` is the value looked at again, and only when
a non-finite float (or an unknown class) is in it does the slower, complete encoder take over.
"""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
from collections.abc import Mapping, Sequence
from itertools import compress, count, repeat
from operator import not_
from pathlib import PurePath
from typing import Any

import orjson

_LEAVES = frozenset({str, int, bool, type(None), orjson.Fragment})
_SEQUENCES = frozenset({list, tuple})


def dumps_json(value: Any) -> bytes:
    r"""Encode a value as one line of JSON, with bare tokens for NaN and the infinities.

    Parameters
    ----------
    value
        Any nesting of dict, list, tuple, dataclass, str, numbers (numpy scalars too), bool, None, paths and
        ``orjson.Fragment``. Keys that are not strings are written as their ``str``.

    Returns
    -------
    bytes
        UTF-8 text without a line break. Lone surrogates become ``\udXXX`` escapes, which `json.loads` accepts.

    Raises
    ------
    TypeError
        A value of another class is inside; the message names the class.
    RecursionError
        The value contains itself or is nested too deeply.
    """
    try:
        text = orjson.dumps(value, _default)
    except TypeError:
        return _encode(value)
    if b"null" in text and text.count(b"null") != _plain_nones(value) and _hides_special((value,)):
        return _encode(value)
    return text


def dumps_members(names: Sequence[str], values: Sequence[Any]) -> list[bytes]:
    """Encode many ``"name":value`` members at once, each as :func:`dumps_json` would, at about half the cost.

    Raises
    ------
    TypeError, RecursionError
        As `dumps_json`; use it on each item to find out which one it is.
    """
    try:
        names_text, values_text = map(orjson.dumps, names), map(orjson.dumps, values, repeat(_default))
        members = list(map(b":".join, zip(names_text, values_text, strict=True)))
    except TypeError:
        return [dumps_json(name) + b":" + dumps_json(value) for name, value in zip(names, values, strict=True)]
    # Nothing is lost in a leaf, so most records of native code, which are a fragment, are not searched at all.
    for place in compress(count(), map(not_, map(_LEAVES.__contains__, map(type, values)))):
        member, value = members[place], values[place]
        if b"null" in member and member.count(b"null") != _plain_nones(value) and _hides_special((value,)):
            members[place] = _encode_string(names[place]) + b":" + _encode(value)
    return members


def loads_json(text: bytes) -> Any:
    """Decode JSON text of a dump file, with or without NaN and Infinity tokens.

    Raises
    ------
    ValueError
        The text is not JSON.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return _loads_with_tokens(text)


def _loads_with_tokens(text: bytes) -> Any:
    from pydantic_core import from_json  # noqa: PLC0415 - finite dumps are read without loading pydantic

    try:
        return from_json(text, allow_inf_nan=True)
    except ValueError:
        try:
            return json.loads(text)  # the only one of the three that takes lone surrogates
        except RecursionError as error:
            raise ValueError("nested too deeply for a dump") from error


def _plain_nones(value: Any) -> int:
    """Count None where most records have it: directly in their lists and dicts of arguments.

    If the text of a value has just as many ``null``, each of them is accounted for and no float was lost. That is
    several times cheaper to find out than by a walk through every tensor entry.
    """
    if value.__class__ is not dict:
        return int(value is None)
    count = 0
    for part in value.values():
        if part.__class__ is list:
            count += part.count(None)
        elif part.__class__ is dict:
            count += [*part.values()].count(None)
        elif part is None:
            count += 1
    return count


def _hides_special(values: Any) -> bool:
    for value in values:
        kind = value.__class__
        if kind in _LEAVES:
            continue
        if kind is float:
            if not math.isfinite(value):
                return True
        elif kind is dict:
            if _hides_special(value.values()):
                return True
        elif kind not in _SEQUENCES or _hides_special(value):
            return True  # an unknown class counts as special: the complete encoder looks into it
    return False


def _default(value: Any) -> Any:
    """Render what orjson does not know: numpy scalars, float subclasses, paths."""
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        number = float(value)
        return number if math.isfinite(number) else orjson.Fragment(_token(number))
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(
        f"dumps_json: {type(value).__module__}.{type(value).__qualname__} has no JSON form; "
        "give dicts, lists, strings, numbers or None"
    )


def _token(number: float) -> bytes:
    if math.isnan(number):
        return b"NaN"
    return b"Infinity" if number > 0 else b"-Infinity"


def _encode(value: Any) -> bytes:  # noqa: PLR0911 - one line per kind of value
    """Encode completely, at the speed of Python: non-finite floats, odd strings, big integers, any key."""
    if value is None or isinstance(value, (bool, orjson.Fragment)):
        return orjson.dumps(value)
    if isinstance(value, str):
        return _encode_string(value)
    if isinstance(value, int):
        return str(int(value)).encode()
    if isinstance(value, float):
        return orjson.dumps(float(value)) if math.isfinite(value) else _token(value)
    if isinstance(value, Mapping):
        return b"{" + b",".join([_encode_key(key) + b":" + _encode(item) for key, item in value.items()]) + b"}"
    if isinstance(value, (list, tuple)):
        return b"[" + b",".join([_encode(item) for item in value]) + b"]"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _encode({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    try:
        return orjson.dumps(value, _default)
    except TypeError as error:
        raise error.__cause__ or error from None  # the cause names the class in full


def _encode_key(key: Any) -> bytes:
    return _encode_string(key if isinstance(key, str) else str(key))


def _encode_string(value: str) -> bytes:
    plain = str.__str__(value)
    try:
        return orjson.dumps(plain)
    except TypeError:
        return json.dumps(plain).encode("ascii")
