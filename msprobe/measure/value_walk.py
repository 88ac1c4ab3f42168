"""Walk through any value that flows through a model and encode it as JSON; what a tensor is, a framework says.

A walk never raises for a value that it cannot read; the entry then says why.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeAlias

from msprobe.core.interruptions import pass_on_interruption
from msprobe.measure.entry_parts import Entry
from msprobe.measure.plain_scalars import ScalarEncoder, json_key

Parents: TypeAlias = tuple[int, ...]
Bases: TypeAlias = tuple[tuple[type | tuple[type, ...], ScalarEncoder], ...]

#: Containers nested deeper are cut.
DEPTH_LIMIT = 64


class ValueWalk(ABC):
    """Encodes containers; subclasses encode what is in them.

    Attributes
    ----------
    named
        Keyword whose text, number or type stands for an object -> encoder.
    null_reasons
        How often a statistic is null or a value is missing, by reason.
    """

    __slots__ = ("__weakref__", "_bases", "null_reasons")

    named: ClassVar[Mapping[str, ScalarEncoder]] = {}

    def __init__(self, bases: Bases) -> None:
        self.null_reasons: Counter[str] = Counter()
        self._bases: Bases = ((slice, self._slice), *bases)

    @abstractmethod
    def _encode(self, value: Any, path: str | None, parents: Parents) -> Any:
        """Return the JSON form of one value; must not raise."""

    def _failed(self, kind: type, error: Exception) -> Entry:
        pass_on_interruption(error)
        reason = f"{type(error).__name__} while reading a {kind.__name__}"
        self.null_reasons[reason] += 1
        return {"type": kind.__name__, "reason": reason}

    def _items(self, values: Iterable[Any], prefix: str | None, parents: Parents) -> list[Any]:
        encode = self._encode
        if prefix is None:
            return [encode(value, None, parents) for value in values]
        return [encode(value, f"{prefix}.{index}", parents) for index, value in enumerate(values)]

    def _pairs(self, pairs: Iterable[tuple[Any, Any]], prefix: str | None, parents: Parents) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            name = json_key(key)
            if name in found:  # 1 and "1" are different keys, but the same text
                name = f"{name}#{len(found)}"
            named = self.named.get(name)
            if named is not None and isinstance(value, str | int | type) and not isinstance(value, bool):
                found[name] = named(value)
            else:
                found[name] = self._encode(value, None if prefix is None else f"{prefix}.{name}", parents)
        return found

    def _container(self, value: Any, path: str | None, parents: Parents) -> Any:
        """Encode a list, tuple, mapping, or the fields of a named tuple or dataclass."""
        if id(value) in parents:
            return {"type": "cycle"}
        if len(parents) >= DEPTH_LIMIT:
            reason = f"nested deeper than {DEPTH_LIMIT}"
            self.null_reasons[reason] += 1
            return {"type": "truncated", "reason": reason}
        inside = (*parents, id(value))
        if _is_record(value):  # also one that is a mapping: the outputs of transformers, whose unset fields count
            names = [field.name for field in dataclasses.fields(value)]
            return self._pairs(((name, getattr(value, name)) for name in names), path, inside)
        if isinstance(value, Mapping):
            return self._pairs(value.items(), path, inside)
        if hasattr(value, "_fields"):
            return self._pairs(zip(value._fields, value, strict=True), path, inside)
        return self._items(value, path, inside)

    def _other(self, value: Any, path: str | None, parents: Parents) -> Any:
        """Encode a value whose exact type is not known: subclasses first, then None for everything unknown."""
        if isinstance(value, Mapping | list | tuple) or _is_record(value):
            return self._container(value, path, parents)
        for base, encoder in self._bases:
            if isinstance(value, base):
                return encoder(value)
        kind = type(value)
        self.null_reasons[f"no encoding for {kind.__module__}.{kind.__qualname__}"] += 1
        return None

    def _slice(self, value: slice) -> Entry:
        bounds = [
            bound if bound is None or type(bound) is int else self._encode(bound, None, ())
            for bound in (value.start, value.stop, value.step)
        ]
        return {"type": "slice", "value": bounds}


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
