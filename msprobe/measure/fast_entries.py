"""Entries of plain CPU tensors straight from the native kernel, as JSON text.

The Python objects of an entry, and the bytecode that makes them, cost several times more than reading a small tensor.
`encode_values` of the kernels does both in one call; it hands everything unusual back to the encoder.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import orjson
import torch

from msprobe.measure.backends import native_module
from msprobe.measure.cpu import THREADED
from msprobe.measure.dtypes import PLAIN_DTYPES
from msprobe.measure.entry_parts import ChecksumMode
from msprobe.measure.rounding import FORMATS

_WIDE = (53, -1022, 0.0, False)
_KINDS = ("float", "int", "bool")
_CHECKSUMS: dict[ChecksumMode | None, int] = {None: 0, "md5": 1, "xor": 2, "hash": 3}


def _dtype_rows(*, low: bool) -> tuple[tuple[object, ...], ...]:
    rows: list[tuple[object, ...]] = []
    for dtype, info in PLAIN_DTYPES.items():
        if info.kind not in _KINDS:
            continue
        target = FORMATS.get(info.name.removeprefix("torch.")) if low else None
        form = _WIDE if target is None else (target.precision, target.min_exponent, target.largest, target.saturates)
        head = f'{{"type":"torch.Tensor","dtype":"{info.name}","shape":['.encode()
        rows.append((dtype, info.code, head, *form))
    return tuple(rows)


def _weak(method: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that calls ``method`` without keeping its owner alive.

    The garbage collector does not look into the native encoder: a cycle through it would stay for ever.
    """
    found = weakref.WeakMethod(method)

    def call(value: Any) -> Any:
        alive = found()
        return alive(value) if alive is not None else None

    return call


class FastEntries:
    """Encodes arguments and results of calls with the native kernel.

    Parameters
    ----------
    fallback : bound method
        Encodes one value that is neither a plain tensor nor a plain number. Held weakly.
    low
        Round mean and norm to the tensor's dtype.
    checksum
        CRC-32 beside the statistics (md5), another checksum instead of them, or none.

    Attributes
    ----------
    encode_values, active
        ``encode_values(values, active)`` returns the JSON list of the entries: one fragment if all values are plain,
        else a list of entries. To be called without a function of ours in between, which would take as long.
    """

    __slots__ = ("_encode_pairs", "_encode_value", "_known", "_measuring", "_trusting", "active", "encode_values")

    def __init__(self, fallback: Callable[[Any], Any], *, low: bool, checksum: ChecksumMode | None = None) -> None:
        native = native_module()
        self._known: dict[int, tuple[Any, int, bytes]] = {}
        self.encode_values: Any = getattr(native, "encode_values", None)
        if native is None or self.encode_values is None:
            return
        self._encode_value = native.encode_value
        self._encode_pairs = native.encode_pairs
        types = (torch.Tensor, torch.nn.Parameter)
        exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
        spec = (types, _dtype_rows(low=low), orjson.Fragment, _weak(fallback), torch.get_num_threads(), THREADED)
        self._measuring = native.make_encoder((*spec, None, exchange, _CHECKSUMS[checksum]))
        self._trusting = native.make_encoder((*spec, self._known, exchange, _CHECKSUMS[checksum]))
        self.active = self._measuring

    def __bool__(self) -> bool:
        return self.encode_values is not None

    def encode_one(self, value: Any) -> Any:
        """Return the entry of one value."""
        return self._encode_value(value, self.active)

    def encode_pairs(self, mapping: dict[Any, Any]) -> Any:
        """Return the JSON object of the entries as `encode_values` does; None if a key needs the encoder in Python."""
        return self._encode_pairs(mapping, self.active)

    def trust_versions(self, *, on: bool) -> None:
        """Use a tensor's entry again while its version counter stays the same, or measure it each time.

        Only sound while nothing but torch's own Python code runs between calls: a kernel of somebody else may write to
        a tensor without counting.
        """
        self._known.clear()
        self.active = self._trusting if on else self._measuring
