"""The JSON text: always correct for floats that JSON does not know, for odd strings and for odd classes."""

from __future__ import annotations

import json
import math
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msprobe.store import dumps_json, loads_json
from msprobe.store.json_bytes import dumps_members

SPECIALS = [math.nan, math.inf, -math.inf]
SURROGATE = "a\ud800b"
ODD_NAMES = ["", '"', "\\", "a\nb\r\t", "\0", "层.0.前向", "😀", "x" * 10_000, "/../..", SURROGATE, "null"]

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=20,
)


def same(left: Any, right: Any) -> bool:
    """Equality that takes NaN as equal to NaN and distinguishes types."""
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    return type(left) is type(right) and left == right


@given(values)
def test_any_nesting_comes_back_unchanged_through_the_standard_reader(value: Any) -> None:
    text = dumps_json(value)
    assert b"\n" not in text
    assert same(json.loads(text), value)


@given(st.lists(st.tuples(st.text(max_size=6), values), max_size=6))
def test_many_members_at_once_are_encoded_as_each_alone(items: list[tuple[str, Any]]) -> None:
    names, values = [name for name, _ in items], [value for _, value in items]
    assert dumps_members(names, values) == [dumps_json(name) + b":" + dumps_json(value) for name, value in items]


@given(values)
def test_our_reader_agrees_with_the_standard_reader(value: Any) -> None:
    text = json.dumps(value).encode()
    read = loads_json(text)
    assert same(read, json.loads(text)) or _has_huge_int(value)


def _has_huge_int(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_huge_int, value.values()))
    if isinstance(value, list):
        return any(map(_has_huge_int, value))
    return isinstance(value, int) and not -(2**63) <= value < 2**64


@pytest.mark.parametrize("special", SPECIALS)
def test_a_special_float_is_a_bare_token_wherever_it_is(special: float) -> None:
    token = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(special)]
    for value, text in [
        (special, token),
        ({"a": [None, special]}, f'{{"a":[null,{token}]}}'),
        (
            {"a": {"b": None}, "c": [{"Max": special, "Min": None}]},
            f'{{"a":{{"b":null}},"c":[{{"Max":{token},"Min":null}}]}}',
        ),
        ([None, (special,)], f"[null,[{token}]]"),
        ({"a": None, "b": special}, f'{{"a":null,"b":{token}}}'),
        ({"a": [None, "null"], "b": {"c": special}}, f'{{"a":[null,"null"],"b":{{"c":{token}}}}}'),
    ]:
        assert dumps_json(value).decode() == text
        assert b",".join(dumps_members(["x", "n"], [{"y": [None]}, value])).endswith(text.encode())


def test_ready_made_fragments_are_kept_in_both_encoders() -> None:
    fragment = orjson.Fragment(b"-Infinity")
    assert dumps_json({"Max": fragment}) == b'{"Max":-Infinity}'
    assert dumps_json({"Max": fragment, "Min": math.nan}) == b'{"Max":-Infinity,"Min":NaN}'


@pytest.mark.parametrize("name", ODD_NAMES, ids=range(len(ODD_NAMES)))
def test_an_odd_name_comes_back_through_both_readers(name: str) -> None:
    text = dumps_json({name: {name: math.nan}})
    for reader in (json.loads, loads_json):
        assert list(reader(text)) == [name]
        assert list(reader(text)[name]) == [name]


class Colour(str, Enum):
    """A string that is also an Enum member."""

    RED = "red"


class Level(IntEnum):
    """A number that is also an Enum member."""

    HIGH = 3


Point = namedtuple("Point", "x y")


@dataclass
class Box:
    """A dataclass with a float in it."""

    width: float


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(1.5), 1.5),
        (np.int64(-7), -7),
        (np.float16(np.inf), math.inf),
        (np.float64(np.nan), math.nan),
        (OrderedDict(a=math.nan), {"a": math.nan}),
        (Point(1, math.inf), [1, math.inf]),
        (Box(math.nan), {"width": math.nan}),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (Path("/a/b"), "/a/b"),
        (2**70, 2**70),
        ({1: "a", None: "b", 2.5: "c"}, {"1": "a", "None": "b", "2.5": "c"}),
        (True, True),
    ],
    ids=str,
)
@pytest.mark.parametrize("beside", [[], [math.nan], [2**80]], ids=["fast", "special beside it", "big number beside it"])
def test_values_of_unusual_classes_are_written_as_what_they_hold(value: Any, expected: Any, beside: list[Any]) -> None:
    assert same(json.loads(dumps_json([value, *beside])), [expected, *beside])


@pytest.mark.parametrize("value", [object(), {"a": {1, 2}}, [math.nan, object()], 1j])
def test_a_class_without_json_form_is_refused_by_name(value: Any) -> None:
    with pytest.raises(TypeError, match=r"has no JSON form"):
        dumps_json(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises((RecursionError, TypeError)):
        dumps_json(value)


def test_text_that_is_not_json_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="Expecting"):
        loads_json(b'{"a": ')
