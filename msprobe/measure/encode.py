"""Encode any value that flows through a model as JSON: arguments, results, gradients.

`ValueEncoder` never raises for a value it cannot read; the entry then says why. Tensors are encoded by `entries`,
plain values by `scalars`; this module walks containers.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import orjson
import torch
from torch._C import _is_tracing

from msprobe.measure import scalars
from msprobe.measure.entries import Entry, MeasurePlan, TensorEncoder, WriteTensor
from msprobe.measure.fast_entries import FastEntries
from msprobe.measure.quiet import Quiet

Task: TypeAlias = Literal["statistics", "tensor", "structure"]
SummaryMode: TypeAlias = Literal["statistics", "md5", "xor", "hash"]
Precision: TypeAlias = Literal["low", "high"]
Parents: TypeAlias = tuple[int, ...]

_NAMED = frozenset(scalars.NAMED)

#: The JSON object of no values. Unlike a dict, nothing that the garbage collector has to look at.
EMPTY = orjson.Fragment(b"{}")

#: Containers nested deeper are cut.
DEPTH_LIMIT = 64


class ValueEncoder:
    """Encodes arguments, results and gradients for a dump.

    Parameters
    ----------
    task
        ``structure`` measures nothing; ``tensor`` differs from ``statistics`` only in what the caller gives paths for.
    summary_mode
        ``statistics``; ``md5`` adds a CRC-32; ``xor`` and ``hash`` write a 64-bit checksum instead of statistics.
    precision
        ``low`` rounds results to the tensor's dtype, ``high`` keeps float64.
    write_tensor
        Called as ``write_tensor(file_name, save)`` for tensors that come with a path; returns the name to record or
        None. `save` writes the file when called, `save.hold()` keeps the values for a later call. None: no files.
    immediate
        Device types whose tensors are read at once. Tensors of other devices are launched at once, too, but their
        entries hold None until `resolve`.
    asynchronous
        The dump is written at the end of the step: complex tensors get no statistics.

    Attributes
    ----------
    null_reasons
        How often a statistic is null or a value is missing, by reason.

    Examples
    --------
    >>> encoder = ValueEncoder()
    >>> encoder.encode_sequence((torch.tensor([3.0, 4.0]), 2, None))  # doctest: +ELLIPSIS
    [{'type': 'torch.Tensor', 'dtype': 'torch.float32', ...}, {'type': 'int', 'value': 2}, None]
    """

    __slots__ = ("__weakref__", "_bases", "_encode_tensor", "_fast", "_tensors", "null_reasons")

    def __init__(  # noqa: PLR0913 - one keyword per setting
        self,
        *,
        task: Task = "statistics",
        summary_mode: SummaryMode = "statistics",
        precision: Precision = "low",
        write_tensor: WriteTensor | None = None,
        immediate: Container[str] = ("cpu",),
        asynchronous: bool = False,
    ) -> None:
        self.null_reasons: Counter[str] = Counter()
        measured = task != "structure"
        plan = MeasurePlan(
            statistics=measured and summary_mode in ("statistics", "md5"),
            checksum=summary_mode if measured and summary_mode != "statistics" else None,
            low=precision == "low",
            immediate=immediate,
            complex_statistics=not asynchronous,
        )
        self._tensors = TensorEncoder(plan, write_tensor, self.null_reasons)
        self._encode_tensor = self._tensors.encode
        fast = FastEntries(self._encode_inside, low=plan.low, checksum=plan.checksum)
        usable = measured and "cpu" in immediate
        self._fast = fast if fast and usable else None
        self._bases: tuple[tuple[type | tuple[type, ...], scalars.ScalarEncoder], ...] = (
            (np.ndarray, self._tensors.encode_array),
            (slice, self._slice),
            (scalars.P2P_OPS, self._p2p_op),
            *scalars.SCALAR_BASES,
        )

    def encode(self, value: Any, path: str | None = None) -> Any:
        """Return the JSON form of one value.

        Parameters
        ----------
        value
            Anything. Nothing is changed, no graph is built, no random number is drawn.
        path
            Full name of the value (``Functional.linear.0.forward.input.0``): tensors in it are saved as well.
        """
        if _is_tracing():
            with Quiet():
                return self._encode(value, path, ())
        if path is None and self._fast is not None:
            return self._fast.encode_one(value)
        return self._encode(value, path, ())

    def encode_sequence(self, values: Iterable[Any], prefix: str | None = None) -> Any:
        """Return the JSON list of `values`, a list or ``orjson.Fragment``; element ``i`` has the path ``prefix.i``."""
        if _is_tracing():  # torch.jit.trace would record sizes as tensors
            with Quiet():
                return self._items(values, prefix, ())
        if prefix is None and self._fast is not None:
            return self._fast.encode(values)
        return self._items(values, prefix, ())

    def encode_mapping(self, mapping: Mapping[Any, Any], prefix: str | None = None) -> Any:
        """Return the JSON object of a mapping, a dict or ``orjson.Fragment``; keys are text, paths ``prefix.key``."""
        if _is_tracing():
            with Quiet():
                return self._pairs(mapping.items(), prefix, ())
        if prefix is None and self._fast is not None and type(mapping) is dict and mapping.keys().isdisjoint(_NAMED):
            found = self._fast.encode_pairs(mapping)
            if found is not None:
                return found
        return self._pairs(mapping.items(), prefix, ())

    def trust_versions(self, *, on: bool) -> None:
        """See :meth:`FastEntries.trust_versions`."""
        if self._fast is not None:
            self._fast.trust_versions(on=on)
        self._tensors.trust_versions(on=on)
        self._encode_tensor = self._tensors.encode_trusting if on else self._tensors.encode

    def resolve(self) -> None:
        """Fill in the entries whose numbers are still on an accelerator. Call it before they are serialised."""
        self._tensors.resolve()

    def _encode_inside(self, value: Any) -> Any:
        return self._encode(value, None, ())

    def _encode(self, value: Any, path: str | None, parents: Parents) -> Any:
        kind = type(value)
        try:
            if kind is torch.Tensor or kind is torch.nn.Parameter:
                return self._encode_tensor(value, path)
            scalar = scalars.SCALARS.get(kind)
            if scalar is not None:
                return scalar(value)
            if kind is list or kind is tuple or kind is dict:
                return self._container(value, path, parents)
            return self._other(value, path, parents)
        except Exception as error:  # noqa: BLE001 - a value that cannot be read must not stop the training
            return self._failed(kind, error)

    def _failed(self, kind: type, error: Exception) -> Entry:
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
            name = scalars.json_key(key)
            if name in found:  # 1 and "1" are different keys, but the same text
                name = f"{name}#{len(found)}"
            named = scalars.NAMED.get(name)
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
        if isinstance(value, torch.Tensor):
            return self._tensors.encode_any(value, path)
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

    def _p2p_op(self, value: Any) -> Entry:
        return scalars.encode_p2p_op(value, self._encode(value.tensor, None, ()))


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
