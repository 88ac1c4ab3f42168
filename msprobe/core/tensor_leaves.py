"""Find the tensors in the arguments and results of a call."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from msprobe.core.interruptions import pass_on_interruption
from msprobe.measure.value_walk import DEPTH_LIMIT

Tensor = TypeVar("Tensor")
_SCALARS = (int, float, str)


def leaves_of(values: Iterable[Any], kind: type[Tensor]) -> list[Tensor]:
    """Values of type ``kind`` in ``values`` and in the lists, tuples, mappings and dataclasses among them, in order.

    A container inside itself is entered once; other objects are not looked into, nor are containers that the record
    cuts off because they are nested too deep, or that raise when they are read.
    """
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, kind):
            found.append(value)
        elif value is not None and not isinstance(value, _SCALARS):
            _collect(value, kind, found, set())
    return found


def _collect(value: Any, kind: type[Tensor], found: list[Tensor], path: set[int]) -> None:
    if isinstance(value, kind):
        found.append(value)
        return
    if id(value) in path or len(path) >= DEPTH_LIMIT:
        return
    items = _items(value)
    if items is None:
        return
    path.add(id(value))
    for item in items:
        _collect(item, kind, found, path)
    path.discard(id(value))


def _items(value: Any) -> Iterable[Any] | None:
    try:
        if isinstance(value, (list, tuple)):
            return list(value)
        if isinstance(value, Mapping):
            return list(value.values())
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    except Exception as error:  # noqa: BLE001 - code of the user's class; the value's entry says what it raised
        pass_on_interruption(error)
        return None
    return None
