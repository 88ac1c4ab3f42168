"""Entries of plain CPU tensors straight from the native kernel, as JSON text.

The Python objects of an entry, and the bytecode that makes them, cost several times more than reading a small tensor.
`encode_values` of the kernels does both in one call; it hands everything unusual back to the encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import orjson
import torch

from msprobe.measure.backends import native_module
from msprobe.measure.cpu import THREADED
from msprobe.measure.dtypes import PLAIN_DTYPES
from msprobe.measure.rounding import FORMATS

_WIDE = (53, -1022, 0.0, False)
_KINDS = ("float", "int", "bool")


def _dtype_table(*, low: bool) -> dict[torch.dtype, tuple[object, ...]]:
    table: dict[torch.dtype, tuple[object, ...]] = {}
    for dtype, info in PLAIN_DTYPES.items():
        if info.kind not in _KINDS:
            continue
        target = FORMATS.get(info.name.removeprefix("torch.")) if low else None
        form = _WIDE if target is None else (target.precision, target.min_exponent, target.largest, target.saturates)
        head = f'{{"type":"torch.Tensor","dtype":"{info.name}","shape":['.encode()
        table[dtype] = (info.code, head, *form)
    return table


class FastEntries:
    """Encodes sequences with the native kernel.

    Parameters
    ----------
    fallback
        Encodes one value that is no plain tensor.
    low
        Round mean and norm to the tensor's dtype.
    """

    __slots__ = ("_active", "_encode_values", "_known", "_measuring", "_trusting")

    def __init__(self, fallback: Callable[[Any], Any], *, low: bool) -> None:
        self._encode_values = getattr(native_module(), "encode_values", None)
        self._known: dict[int, tuple[Any, int, Any]] = {}
        types = (torch.Tensor, torch.nn.Parameter)
        spec = (types, _dtype_table(low=low), orjson.Fragment, fallback, torch.get_num_threads(), THREADED)
        self._measuring: tuple[object, ...] = (*spec, None)
        self._trusting: tuple[object, ...] = (*spec, self._known)
        self._active: tuple[object, ...] = self._measuring

    def __bool__(self) -> bool:
        return self._encode_values is not None

    def encode(self, values: Iterable[Any]) -> list[Any]:
        """Return entries: JSON fragments for plain tensors, None for None, what `fallback` says for the rest."""
        entries: list[Any] = self._encode_values(values, self._active)  # type: ignore[misc]
        return entries

    def trust_versions(self, *, on: bool) -> None:
        """Use a tensor's entry again while its version counter stays the same, or measure it each time.

        Only sound while nothing but torch's own Python code runs between calls: a kernel of somebody else may write to
        a tensor without counting.
        """
        self._known.clear()
        self._active = self._trusting if on else self._measuring
