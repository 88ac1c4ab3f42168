"""The dump entry of a tensor. The hottest code of the program: it runs for every tensor of every recorded call.

A plain CPU tensor is decided by its type and one look-up of its dtype; then one native kernel reads it and no torch
operation runs. Everything else goes through `views`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from msprobe.core.interruptions import pass_on_interruption
from msprobe.measure.arrays import summarise_array
from msprobe.measure.backends import COUNTS, native_module
from msprobe.measure.checksums import checksum_cpu, checksum_native
from msprobe.measure.cpu import THREADED, reduce_cpu, reduce_native, summarise, summarise_cpu
from msprobe.measure.deferred import DeferredRows
from msprobe.measure.device_streams import readable_now
from msprobe.measure.dtypes import PLAIN_DTYPES, DtypeInfo
from msprobe.measure.entry_parts import (
    COMPLEX_LEFT_OUT,
    ChecksumMode,
    Entry,
    MeasurePlan,
    add_counts,
    fill,
    forget_file,
    set_statistics,
)
from msprobe.measure.kernel_codes import CODE_OF
from msprobe.measure.plain_scalars import INFINITY
from msprobe.measure.quiet import Quiet
from msprobe.measure.records import SQUARE_MAX, SQUARE_MIN, Reduction, Statistics, needs_scaling
from msprobe.measure.tensor_files import FileMaker, Fingerprint, OwnElements
from msprobe.measure.unchanged import UnchangedTensors
from msprobe.measure.views import TensorView, view_tensor

WriteTensor: TypeAlias = Callable[[str, OwnElements], str | None]


class TensorEncoder:
    """Turns tensors into entries.

    Parameters
    ----------
    plan
        What to measure.
    write_tensor
        See `encode.ValueEncoder`.
    reasons
        Counts why statistics are missing.
    """

    __slots__ = (
        "_checksum",
        "_cpu",
        "_deferred",
        "_files",
        "_low",
        "_native",
        "_plan",
        "_statistics",
        "_unchanged",
        "_write",
        "reasons",
    )

    def __init__(self, plan: MeasurePlan, write_tensor: WriteTensor | None, reasons: Counter[str]) -> None:
        self._plan = plan
        self._statistics = plan.statistics
        self._checksum = plan.checksum
        self._low = plan.low
        self._cpu = "cpu" in plan.immediate
        self._write = write_tensor
        self._files = FileMaker()
        self._unchanged: UnchangedTensors | None = None
        self._native = native_module()
        self._deferred = DeferredRows(low=plan.low)
        self.reasons = reasons

    def encode(self, tensor: torch.Tensor, path: str | None) -> Entry:
        """Return the entry of a tensor of class Tensor or Parameter itself; write its file if it has a path."""
        info = PLAIN_DTYPES.get(tensor.dtype)
        if info is None:
            return self.encode_any(tensor, path)
        try:
            address = tensor.data_ptr()
            shape = [*tensor.shape]
        except RuntimeError:  # sparse, nested or wrapped by a transform: no address or no shape
            return self.encode_any(tensor, path)
        numel = tensor.numel()
        if not numel or address == tensor.storage_offset() * info.itemsize:  # empty or freed, see views
            return self.encode_any(tensor, path)
        direct = tensor.is_cpu and self._cpu and info.kind != "complex" and not tensor.is_neg()
        if not direct or not self._statistics:
            encode = self._encode_checksum if direct else self._encode_plain
            return encode(tensor, path, info, shape)
        if self._native is not None and numel < THREADED and tensor.is_contiguous():
            found = self._native.stats(address, numel, info.code, 1)
            COUNTS.native += 1
        elif self._native is not None:
            found = reduce_native(self._native, tensor, info)
        else:
            with Quiet():
                found = reduce_cpu(tensor, info)
        squares = found[3]
        if not (SQUARE_MIN < squares < SQUARE_MAX or squares == found[0] == found[1] == 0):  # has_plain_moments inlined
            return self._encode_extreme(tensor, path, info, shape, found)
        mean, norm = found[2] / numel, math.sqrt(squares)
        if self._low and info.round_pair is not None:
            mean, norm = info.round_pair(mean, norm)
        entry = {
            "type": "torch.Tensor",
            "dtype": info.name,
            "shape": shape,
            "Max": found[0],
            "Min": found[1],
            "Mean": mean,
            "Norm": norm if norm < math.inf else INFINITY,
            "requires_grad": tensor.requires_grad,
        }
        if info.kind == "bool":
            entry["Max"], entry["Min"] = bool(found[0]), bool(found[1])
        if path is not None or self._checksum is not None:
            self._finish(entry, tensor, path)
        return entry

    def encode_trusting(self, tensor: torch.Tensor, path: str | None) -> Entry:
        """Do the same as `encode`, without reading a saved tensor again that has not changed; see `trust_versions`."""
        known = self._unchanged.find(tensor) if self._unchanged is not None and path is not None else None
        if known is None:
            return self.encode(tensor, path)
        entry = dict(known.entry)
        self._save(entry, tensor, path, known.fingerprint)
        return entry

    def encode_any(self, tensor: torch.Tensor, path: str | None) -> Entry:
        """Return the entry of any tensor; write its file if it has a path."""
        with Quiet():
            return self._encode_view(view_tensor(tensor), path)

    def encode_array(self, array: np.ndarray[Any, Any]) -> Entry:
        """Return the entry of a numpy array; no file is written."""
        entry: Entry = {"type": "numpy.ndarray", "dtype": str(array.dtype), "shape": list(array.shape)}
        statistics = None
        if self._statistics:
            statistics = summarise_array(array, low=self._low)
            set_statistics(entry, statistics)
        if self._checksum is not None:
            with Quiet():
                self._add_checksum(entry, _array_content(array), deferred=False)
        if statistics is not None:
            add_counts(entry, statistics)
            self._count(statistics.reason)
        return entry

    def _encode_plain(self, tensor: torch.Tensor, path: str | None, info: DtypeInfo, shape: list[int | str]) -> Entry:
        """Return the entry of a tensor that is known to be strided and to have memory."""
        with Quiet():
            plain = tensor.detach()
            view = TensorView("torch.Tensor", info.name, shape, tensor.requires_grad, info, plain, (plain,), plain)
            return self._encode_view(view, path)

    def _encode_checksum(
        self, tensor: torch.Tensor, path: str | None, info: DtypeInfo, shape: list[int | str]
    ) -> Entry:
        """Return the entry of a plain CPU tensor without statistics."""
        entry: Entry = {"type": "torch.Tensor", "dtype": info.name, "shape": shape}
        if self._checksum is not None:
            entry["md5"] = self._checksum_text(self._checksum, tensor)
        entry["requires_grad"] = tensor.requires_grad
        self._save(entry, tensor, path)
        return entry

    def _encode_extreme(
        self, tensor: torch.Tensor, path: str | None, info: DtypeInfo, shape: list[int], found: Reduction
    ) -> Entry:
        """Return the entry of a plain tensor with NaN or Inf, or whose squares left the float64 range."""
        if needs_scaling(found):
            with Quiet():
                statistics = summarise_cpu(tensor, info, low=self._low, found=found)
        else:
            statistics = summarise(found, tensor.numel(), info, low=self._low)
        entry: Entry = {"type": "torch.Tensor", "dtype": info.name, "shape": shape}
        set_statistics(entry, statistics)
        entry["requires_grad"] = tensor.requires_grad
        self._finish(entry, tensor, path)
        add_counts(entry, statistics)
        return entry

    def _encode_view(self, view: TensorView, path: str | None) -> Entry:
        view = readable_now(view)
        entry: Entry = {"type": view.type_name, "dtype": view.dtype, "shape": view.shape}
        memory = view.parts[-1] if view.parts else view.data
        deferred = memory is not None and memory.device.type not in self._plan.immediate
        statistics = self._measure(view, entry, deferred=deferred) if self._statistics else None
        if self._checksum is not None and not self._statistics:
            self._add_checksum(entry, view.parts, deferred=deferred)
        entry["requires_grad"] = view.requires_grad
        self._save(entry, view.stored, path)
        if self._checksum is not None and self._statistics:
            self._add_checksum(entry, view.parts, deferred=deferred)
        if statistics is not None:
            add_counts(entry, statistics)
        if view.reason is not None and (self._statistics or (self._checksum is not None and not view.parts)):
            entry["reason"] = view.reason
            self._count(view.reason)
        entry.update(view.extra)
        return entry

    def _count(self, reason: str | None) -> None:
        if reason is not None:
            self.reasons[reason] += 1

    def resolve(self) -> None:
        """Fill in the entries of deferred tensors."""
        self._deferred.resolve()

    def trust_versions(self, *, on: bool) -> None:
        """Remember saved tensors for `encode_trusting`; see `fast_entries.FastEntries.trust_versions`."""
        self._unchanged = UnchangedTensors() if on else None

    def _measure(self, view: TensorView, entry: Entry, *, deferred: bool) -> Statistics | None:
        """Set the four statistics, None for now when deferred, and return them if they are known."""
        statistics = None
        if view.info.kind == "complex" and view.data is not None and not self._plan.complex_statistics:
            statistics = Statistics.unmeasured(COMPLEX_LEFT_OUT)
            self._count(statistics.reason)
            set_statistics(entry, statistics)
            return statistics
        if view.data is not None and not deferred:
            statistics = summarise_cpu(view.data, view.info, low=self._low)
        set_statistics(entry, statistics)
        if view.data is not None and deferred:
            self._deferred.add(view.data, view.info, partial(fill, entry))
        return statistics

    def _add_checksum(self, entry: Entry, parts: tuple[torch.Tensor, ...], *, deferred: bool) -> None:
        entry["md5"] = None
        if not parts or self._checksum is None:
            return
        if deferred:
            self._deferred.add_checksum(self._checksum, parts, partial(entry.__setitem__, "md5"))
        else:
            entry["md5"] = checksum_cpu(self._checksum, parts)

    def _save(
        self, entry: Entry, stored: torch.Tensor | None, path: str | None, fingerprint: Fingerprint | None = None
    ) -> OwnElements | None:
        """Write the file, or have it written later; return its content."""
        if path is None or self._write is None or stored is None:
            return None
        content = self._files.content(stored, fingerprint)
        try:
            name = self._write(f"{path}.pt", content)
        except Exception as error:  # noqa: BLE001 - a full disk must not cost the entry, nor stop the training
            pass_on_interruption(error)
            self._count(f"tensor file not written: {type(error).__name__}")
            return None
        if name is not None:
            entry["data_name"] = name
            if stored.dtype is torch.uint8 and entry["dtype"] != "torch.uint8":
                entry["data_dtype"] = "torch.uint8"  # the bytes of a dtype that torch cannot save
            content.when_lost(partial(forget_file, entry))
        return content

    def _finish(self, entry: Entry, tensor: torch.Tensor, path: str | None) -> None:
        """Write the file and add the CRC-32 of a plain CPU tensor."""
        content = self._save(entry, tensor, path)
        if self._checksum is not None:
            entry["md5"] = self._checksum_text(self._checksum, tensor)
        if self._unchanged is not None and content is not None:
            self._unchanged.keep(tensor, entry, content.known_fingerprint)

    def _checksum_text(self, mode: ChecksumMode, tensor: torch.Tensor) -> str:
        """Return the checksum of a plain CPU tensor."""
        if self._native is not None:
            return checksum_native(self._native, mode, (tensor,))
        with Quiet():
            return checksum_cpu(mode, (tensor,))


def _array_content(array: np.ndarray[Any, Any]) -> tuple[torch.Tensor, ...]:
    """Return the array as a tensor, without a copy if torch can read its memory; nothing when it holds no numbers."""
    if array.dtype.kind not in "biufc" or array.dtype.name not in CODE_OF:
        return ()
    shareable = (
        array.flags.writeable and array.dtype.isnative and not any(step % array.itemsize for step in array.strides)
    )
    if not shareable or any(step < 0 for step in array.strides):
        array = array.astype(array.dtype.newbyteorder("="))
    return (torch.from_numpy(array),)
