"""Measurements of accelerator tensors: launched now, read back later.

The kernels run in the hook, on the current stream, before the program can overwrite the tensor. Only the results wait:
each tensor owns a row in a buffer on its device, and `DeferredRows.resolve` fetches all rows at once. Nothing here
waits for the device before that. The Triton kernels read what they can; torch operations read the rest, and every
tensor that they had to read is counted with the reason.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch

from msprobe.measure.backends import COUNTS
from msprobe.measure.checksums import Parts
from msprobe.measure.cpu import summarise
from msprobe.measure.device_checksums import ChecksumLauncher, PendingChecksum, fetch
from msprobe.measure.device_rows import RING_ROWS, Ring, launch
from msprobe.measure.device_streams import current_stream
from msprobe.measure.dtypes import DtypeInfo
from msprobe.measure.entry_parts import ChecksumMode
from msprobe.measure.quiet import Quiet
from msprobe.measure.records import Reduction, Statistics, mean_and_norm
from msprobe.measure.reductions import repeat, unordered_integer
from msprobe.measure.triton_rows import TritonRows, missing_triton

StatisticsSink: TypeAlias = Callable[[Statistics], None]
TextSink: TypeAlias = Callable[[str], None]


class _PendingStatistics(NamedTuple):
    ring: Ring
    row: int
    info: DtypeInfo
    numel: int
    repeats: int
    sink: StatisticsSink


class DeferredRows:
    """Collects launched statistics and checksums until `resolve`.

    Nothing may be added while a graph is captured on the device: see `device_streams.readable_now`. Safe for threads:
    one may resolve while others add. Sinks run in the resolving thread and must not raise.

    Parameters
    ----------
    low
        Round the results to the dtype of each tensor.
    zeros
        Count zeros as well.
    """

    __slots__ = ("_checksums", "_launcher", "_lock", "_low", "_pending", "_rings", "_triton", "_zeros")

    def __init__(self, *, low: bool, zeros: bool = False) -> None:
        self._low = low
        self._zeros = zeros
        self._lock = threading.Lock()
        self._rings: dict[tuple[torch.device, Any], list[Ring]] = {}
        self._pending: list[_PendingStatistics] = []
        self._checksums: list[PendingChecksum] = []
        self._launcher = ChecksumLauncher()
        self._triton: dict[str, TritonRows | None] = {}

    def add(self, tensor: torch.Tensor, info: DtypeInfo, sink: StatisticsSink) -> None:
        """Launch the statistics of a strided tensor with at least one element; `sink` gets them in `resolve`."""
        kind = tensor.device.type
        kernels = self._kernels(kind)
        if kernels is not None and kernels.add(tensor, info, sink):
            COUNTS.devices[kind, "triton statistics"] += 1
            return
        self._count_fallback(kind, "torch statistics")
        with self._lock:
            ring = self._ring(tensor.device)
            row = ring.used
            ring.used += 1
        # Without the lock: `resolve` in another thread holds it for moments only, and never waits for a launch.
        try:
            repeats = launch(tensor, info, ring, row, zeros=self._zeros)
        except BaseException:
            with self._lock:
                ring.release(1)
            raise
        with self._lock:
            self._pending.append(_PendingStatistics(ring, row, info, tensor.numel(), repeats, sink))

    def add_checksum(self, mode: ChecksumMode, parts: Parts, sink: TextSink) -> None:
        """Launch the checksum of strided tensors, the last of which is on the device; `sink` gets its text later."""
        kind = parts[-1].device.type
        kernels = self._kernels(kind)
        if kernels is not None and kernels.add_checksum(mode, parts, sink):
            COUNTS.devices[kind, f"triton {mode}"] += 1
            return
        pending, kernel = self._launcher.launch(mode, parts, sink)
        if kernel == "torch":
            self._count_fallback(kind, f"torch {mode}")
        else:
            COUNTS.devices[kind, f"{kernel} {mode}"] += 1
        with self._lock:
            self._checksums.append(pending)

    def resolve(self) -> None:
        """Wait for the kernels launched so far, fetch every result and hand it to its sink."""
        with self._lock:
            pending, self._pending = self._pending, []
            sums, self._checksums = self._checksums, []
            kernels = [item for item in self._triton.values() if item is not None]
        if not (pending or sums or kernels):
            return
        with Quiet():
            try:
                for item in kernels:
                    item.flush()
            finally:
                if pending or sums:
                    self._finish(pending, sums)

    def _kernels(self, kind: str) -> TritonRows | None:
        """Return the Triton kernels if they read tensors of a device type."""
        if kind not in self._triton:
            usable = missing_triton(kind) is None
            with self._lock:
                made = TritonRows(kind, low=self._low, zeros=self._zeros) if usable else None
                self._triton.setdefault(kind, made)
        return self._triton[kind]

    def _count_fallback(self, kind: str, kernel: str) -> None:
        COUNTS.devices[kind, kernel] += 1
        missing = missing_triton(kind)
        if missing is not None:  # else the kernels have counted why they refused the tensor
            COUNTS.reasons(kind)[missing] += 1

    def _ring(self, device: torch.device) -> Ring:
        group = self._rings.setdefault((device, current_stream(device)), [])
        for ring in group:
            if ring.used < RING_ROWS:
                return ring
        with torch.inference_mode(mode=False):  # a buffer made in inference mode could not be written outside it
            group.append(Ring(device))
        return group[-1]

    def _finish(self, pending: list[_PendingStatistics], sums: list[PendingChecksum]) -> None:
        rows = Counter(item.ring for item in pending)
        values = [value for item in sums for value in item.values]
        for device in {ring.device for ring in rows} | {value.device for value in values}:
            if device.type != "cpu":
                torch.get_device_module(device).synchronize(device)
        floats = {id(ring): ring.floats[: ring.used].tolist() for ring in rows}
        ints = {id(ring): ring.ints[: ring.used].tolist() for ring in rows}
        for item in pending:
            row = item.row
            item.sink(_summarise_row(floats[id(item.ring)][row], ints[id(item.ring)][row], item, low=self._low))
        contents = iter(fetch(values))
        for checksum in sums:
            checksum.sink(checksum.text([next(contents) for _ in checksum.values]))
        with self._lock:
            for ring, count in rows.items():
                ring.release(count)


def _summarise_row(floats: list[float], ints: list[int], item: _PendingStatistics, *, low: bool) -> Statistics:
    largest, smallest, total, squares, scale = floats
    _, _, nan, inf, zero = ints
    if item.info.kind in ("int", "bool"):
        largest, smallest = (unordered_integer(value, item.info) for value in ints[:2])
    found: Reduction = repeat((largest, smallest, total, squares, nan, inf, zero), item.repeats)
    mean, norm = mean_and_norm(found, item.numel * item.info.numbers)
    return summarise(found, item.numel, item.info, low=low, moments=(mean * scale, norm * scale))
