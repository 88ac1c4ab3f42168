"""Find the tensors in the arguments and results of a call."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch


def tensor_leaves(values: Iterable[Any]) -> list[torch.Tensor]:
    """Tensors in ``values`` and in the lists, tuples, mappings and dataclasses among them, in order.

    A container inside itself is entered once; other objects are not looked into.
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
    items = _items(value)
    if items is None or id(value) in path:
        return
    path.add(id(value))
    for item in items:
        _collect(item, found, path)
    path.discard(id(value))


def _items(value: Any) -> Iterable[Any] | None:
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, Mapping):
        return value.values()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return None
