"""Encode what flows through a MindSpore model: its tensors are read as numpy arrays, without a copy on a CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeAlias

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor
from mindspore._c_expression import PyNativeExecutor_
from mindspore._c_expression.typing import Type

from msprobe.core.interruptions import pass_on_interruption
from msprobe.measure import plain_scalars
from msprobe.measure.array_checksums import checksum_array, is_numeric
from msprobe.measure.array_files import ArrayFile
from msprobe.measure.arrays import summarise_array
from msprobe.measure.backends import COUNTS, native_module
from msprobe.measure.entry_parts import (
    COMPLEX_LEFT_OUT,
    ChecksumMode,
    Entry,
    MeasurePlan,
    add_counts,
    forget_file,
    set_statistics,
)
from msprobe.measure.kernel_codes import CODE_OF
from msprobe.measure.plain_scalars import json_number
from msprobe.measure.records import Statistics, has_plain_moments
from msprobe.measure.rounding import ROUND_PAIR, RoundPair
from msprobe.measure.value_walk import Parents, ValueWalk

WriteArray: TypeAlias = Callable[[str, ArrayFile], str | None]

_CHECKSUMS: dict[str, ChecksumMode] = {"md5": "md5", "xor": "xor", "hash": "hash"}
_EXECUTOR = PyNativeExecutor_.get_instance()


class _Plain(NamedTuple):
    """A dtype whose tensors the native kernel reads in place."""

    code: int
    round_pair: RoundPair | None


#: MindSpore's name of a dtype -> how it is read; bool and complex go through arrays.
_PLAIN = {
    str(getattr(ms, name)): _Plain(CODE_OF[name], ROUND_PAIR.get(name))
    for name in ("float16", "float32", "float64", "bfloat16", "int8", "int16", "int32", "int64", "uint8")
}

#: Bytes of copies that may wait for the end of the step in an asynchronous dump.
WAITING_LIMIT = 1 << 30


def encode_dtype(value: Any) -> Entry:
    """Encode a dtype, or the Python type given in the place of one."""
    return {"type": "mindspore.dtype", "value": str(value)}


class MindsporeEncoder(ValueWalk):
    """Encodes arguments, results and gradients of MindSpore calls.

    Parameters
    ----------
    task, summary_mode, precision
        As for `encode.ValueEncoder`.
    write_array
        Called as ``write_array(file_name, content)`` for tensors that come with a path; returns the name to record,
        or None. None: no files.
    asynchronous
        Nothing is read inside the step: each tensor is copied on its device, and `resolve` reads the copies.

    Attributes
    ----------
    type_name
        What entries of tensors say their type is.
    """

    __slots__ = ("_dtypes", "_native", "_plan", "_waiting", "_waiting_bytes", "_write", "type_name")

    named: ClassVar[Mapping[str, plain_scalars.ScalarEncoder]] = {"dtype": encode_dtype}

    def __init__(
        self,
        *,
        task: str = "statistics",
        summary_mode: str | tuple[str, ...] = "statistics",
        precision: str = "low",
        write_array: WriteArray | None = None,
        asynchronous: bool = False,
    ) -> None:
        super().__init__(((Type, encode_dtype), (np.ndarray, self._array), *plain_scalars.PLAIN_BASES))
        measured = task != "structure"
        self._plan = MeasurePlan(
            statistics=measured and summary_mode in ("statistics", "md5"),
            checksum=_CHECKSUMS.get(str(summary_mode)) if measured else None,
            low=precision == "low",
            immediate=() if asynchronous else ("cpu",),
            complex_statistics=not asynchronous,
        )
        self._write = write_array
        self._dtypes: dict[Any, str] = {}
        self._waiting: list[tuple[Entry, Any, str | None]] = []
        self._waiting_bytes = 0
        in_place = self._plan.statistics and self._plan.checksum is None and not asynchronous
        self._native = native_module() if in_place and ms.get_context("device_target") == "CPU" else None
        self.type_name = "mindspore.Tensor"

    def encode(self, value: Any, path: str | None = None) -> Any:
        """Return the JSON form of one value; tensors in it are saved as well if it has a path."""
        return self._encode(value, path, ())

    def encode_sequence(self, values: Iterable[Any], prefix: str | None = None) -> list[Any]:
        """Return the JSON list of `values`; element ``i`` has the path ``prefix.i``."""
        return self._items(values, prefix, ())

    def encode_mapping(self, mapping: Mapping[Any, Any], prefix: str | None = None) -> dict[str, Any]:
        """Return the JSON object of a mapping; keys are text, paths ``prefix.key``."""
        return self._pairs(mapping.items(), prefix, ())

    def trust_versions(self, *, on: bool) -> None:
        """Nothing is remembered between calls: MindSpore counts no version of every write."""

    def resolve(self) -> None:
        """Read what waits: the tensors of an asynchronous dump."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        for entry, tensor, path in waiting:
            self._read(entry, tensor, path)

    def _encode(self, value: Any, path: str | None, parents: Parents) -> Any:
        kind = type(value)
        try:
            if kind is Tensor or kind is Parameter:
                return self._tensor(value, path)
            scalar = plain_scalars.PLAIN.get(kind)
            if scalar is not None:
                return scalar(value)
            if kind is list or kind is tuple or kind is dict:
                return self._container(value, path, parents)
            if isinstance(value, Tensor):
                return self._tensor(value, path)
            return self._other(value, path, parents)
        except Exception as error:  # noqa: BLE001 - a value that cannot be read must not stop the training
            return self._failed(kind, error)

    def _tensor(self, tensor: Any, path: str | None) -> Entry:
        dtype = tensor.dtype
        name = self._dtypes.get(dtype)
        if name is None:
            name = self._dtypes[dtype] = str(dtype)
        entry: Entry = {"type": self.type_name, "dtype": name, "shape": list(tensor.shape)}
        if self._native is not None and path is None and self._measure_in_place(entry, tensor, name):
            return entry
        if not self._plan.statistics and self._plan.checksum is None:
            if path is not None:
                self._save(entry, tensor.asnumpy(), path)
            return entry
        if not self._plan.immediate:
            return self._later(entry, tensor, path)
        array = tensor.asnumpy()
        self._measure(entry, array)
        if path is not None:
            self._save(entry, array, path)
        return entry

    def _measure_in_place(self, entry: Entry, tensor: Any, dtype: str) -> bool:
        """Set the statistics of a plain tensor in host memory, without making an array; False if it is not plain."""
        plain = _PLAIN.get(dtype)
        numel = tensor.size
        if plain is None or not numel or not tensor.is_contiguous():
            return False
        _EXECUTOR.sync()  # the kernel that writes it may still run
        address = tensor.data_ptr()
        if not address:
            return False
        found = self._native.stats(address, numel, plain.code, 1)  # type: ignore[union-attr]
        if not has_plain_moments(found):
            return False
        COUNTS.native += 1
        mean, norm = found[2] / numel, math.sqrt(found[3])
        if self._plan.low and plain.round_pair is not None:
            mean, norm = plain.round_pair(mean, norm)
        entry["Max"], entry["Min"] = found[0], found[1]
        entry["Mean"], entry["Norm"] = mean, json_number(norm)
        return True

    def _later(self, entry: Entry, tensor: Any, path: str | None) -> Entry:
        """Keep a copy on the device for `resolve`; the entry has its keys in the usual order already."""
        if self._plan.statistics:
            set_statistics(entry, None)
        if self._plan.checksum is not None:
            entry["md5"] = None
        with ms._no_grad():
            copy = tensor.copy()
        self._waiting.append((entry, copy, path))
        self._waiting_bytes += copy.nbytes
        if self._waiting_bytes > WAITING_LIMIT:
            self.resolve()
        return entry

    def _measure(self, entry: Entry, array: np.ndarray[Any, Any]) -> None:
        """Set statistics and checksum."""
        statistics = None
        if self._plan.statistics:
            if array.dtype.kind == "c" and not self._plan.complex_statistics:
                statistics = Statistics.unmeasured(COMPLEX_LEFT_OUT)
            else:
                statistics = summarise_array(array, low=self._plan.low)
            set_statistics(entry, statistics)
        if self._plan.checksum is not None:
            entry["md5"] = checksum_array(self._plan.checksum, array) if is_numeric(array) else None
        if statistics is not None:
            add_counts(entry, statistics)
            if statistics.reason is not None:
                self.null_reasons[statistics.reason] += 1

    def _save(self, entry: Entry, array: np.ndarray[Any, Any], path: str) -> None:
        """Write the file, or have it written later."""
        if self._write is None or array.size == 0:
            return
        content = ArrayFile(array)
        try:
            name = self._write(f"{path}.npy", content)
        except Exception as error:  # noqa: BLE001 - a full disk must not cost the entry, nor stop the training
            pass_on_interruption(error)
            self.null_reasons[f"tensor file not written: {type(error).__name__}"] += 1
            return
        if name is not None:
            entry["data_name"] = name
            content.when_lost(lambda: forget_file(entry))

    def _array(self, array: np.ndarray[Any, Any]) -> Entry:
        entry: Entry = {"type": "numpy.ndarray", "dtype": str(array.dtype), "shape": list(array.shape)}
        self._measure(entry, array)
        return entry

    def _read(self, entry: Entry, tensor: Any, path: str | None) -> None:
        """Complete an entry that has waited."""
        try:
            array = tensor.asnumpy()
            self._measure(entry, array)
            if path is not None:
                self._save(entry, array, path)
        except Exception as error:  # noqa: BLE001 - a tensor that cannot be read must not cost the others
            pass_on_interruption(error)
            reason = f"{type(error).__name__} while reading a {self.type_name}"
            entry["reason"] = reason
            self.null_reasons[reason] += 1
