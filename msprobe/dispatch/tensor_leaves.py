"""Find the tensors in the arguments and results of a call."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from msprobe.measure.encode import DEPTH_LIMIT


def tensor_leaves(values: Iterable[Any]) -> list[torch.Tensor]:
    """Tensors in ``values`` and in the lists, tuples, mappings and dataclasses among them, in order.

    A container inside itself is entered once; other objects are not looked into, nor are containers that the record
    cuts off because they are nested too deep, or that raise when they are read.
    """
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif value is not None and not isinstance(value, (int, float, str, torch.dtype)):
            _collect(value, found, set())
    return found


def _collect(value: Any, found: list[torch.Tensor], path: set[int]) -> None:
    if isinstance(value, torch.Tensor):
        found.append(value)
        return
    if id(value) in path or len(path) >= DEPTH_LIMIT:
        return
    items = _items(value)
    if items is None:
        return
    path.add(id(value))
    for item in items:
        _collect(item, found, path)
    path.discard(id(value))


def _items(value: Any) -> Iterable[Any] | None:
    try:
        if isinstance(value, (list, tuple)):
            return list(value)
        if isinstance(value, Mapping):
            return list(value.values())
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    except Exception:  # noqa: BLE001 - code of the user's class; the value's entry in the record says what it raised
        return None
    return None
