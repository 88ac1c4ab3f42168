"""Statistics of accelerator tensors: launched now, read back later.

The kernels run in the hook, on the current stream, before the program can overwrite the tensor. Only the results wait:
each tensor owns a row in a buffer on its device, and `DeferredRows.resolve` fetches all rows with two copies. Nothing
here waits for the device before that.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import torch

from msprobe.measure import checksums
from msprobe.measure.backends import COUNTS
from msprobe.measure.chunks import logical_chunks, memory_order
from msprobe.measure.cpu import summarise
from msprobe.measure.dtypes import DtypeInfo
from msprobe.measure.quantised import dequantised
from msprobe.measure.quiet import Quiet
from msprobe.measure.records import Reduction, Statistics, mean_and_norm
from msprobe.measure.reductions import ordered_integers, repeat, unordered_integer, wide_values

StatisticsSink: TypeAlias = Callable[[Statistics], None]
TextSink: TypeAlias = Callable[[str], None]

#: Elements converted at a time on a device: 32 MiB as float64.
DEVICE_CHUNK = 1 << 22
#: Rows of one buffer.
RING_ROWS = 4096
#: Device types without float64; they accumulate in float32 after scaling by the largest magnitude.
WITHOUT_FLOAT64 = frozenset({"npu", "mps"})


class _Ring:
    """Result rows of one device and stream: [max, min, sum, squares, scale] and [max, min, nan, inf, zero].

    The first `used` rows are given out, `done` of them are read back; when all are, they are given out again.
    """

    __slots__ = ("device", "done", "floats", "ints", "used")

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.used = self.done = 0
        self.floats = torch.zeros(RING_ROWS, 5, dtype=accumulation_dtype(device), device=device)
        self.ints = torch.zeros(RING_ROWS, 5, dtype=torch.int64, device=device)

    def release(self, count: int) -> None:
        """Count rows as read back. Rows that are still being filled keep the others from being given out again."""
        self.done += count
        if self.done == self.used:
            self.used = self.done = 0


class _PendingStatistics(NamedTuple):
    ring: _Ring
    row: int
    info: DtypeInfo
    numel: int
    repeats: int
    sink: StatisticsSink


class _PendingChecksum(NamedTuple):
    mode: Literal["xor", "hash"]
    values: list[torch.Tensor]
    layouts: list[tuple[int, torch.Size]]
    sink: TextSink


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """Return the widest float that a device computes with."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


class DeferredRows:
    """Collects launched statistics and checksums until `resolve`.

    Parameters
    ----------
    low
        Round the results to the dtype of each tensor.
    zeros
        Count zeros as well.
    """

    __slots__ = ("_checksums", "_lock", "_low", "_pending", "_rings", "_zeros")

    def __init__(self, *, low: bool, zeros: bool = False) -> None:
        self._low = low
        self._zeros = zeros
        self._lock = threading.Lock()
        self._rings: dict[tuple[torch.device, Any], list[_Ring]] = {}
        self._pending: list[_PendingStatistics] = []
        self._checksums: list[_PendingChecksum] = []

    def add(self, tensor: torch.Tensor, info: DtypeInfo, sink: StatisticsSink) -> None:
        """Launch the statistics of a strided tensor with at least one element; `sink` gets them in `resolve`."""
        COUNTS.torch += 1
        with self._lock:
            ring = self._ring(tensor.device)
            row = ring.used
            ring.used += 1
        # Without the lock: `resolve` in another thread holds it for moments only, and never waits for a launch.
        try:
            repeats = _launch(tensor, info, ring, row, zeros=self._zeros)
        except BaseException:
            with self._lock:
                ring.release(1)
            raise
        with self._lock:
            self._pending.append(_PendingStatistics(ring, row, info, tensor.numel(), repeats, sink))

    def add_checksum(self, mode: Literal["xor", "hash"], parts: Sequence[torch.Tensor], sink: TextSink) -> None:
        """Launch a 64-bit checksum of tensors of one device; `sink` gets its text in `resolve`."""
        values = [checksums.xor_tensor(parts)] if mode == "xor" else [checksums.hash_body(part) for part in parts]
        layouts = [(part.numel() * part.itemsize, part.shape) for part in parts]
        with self._lock:
            self._checksums.append(_PendingChecksum(mode, values, layouts, sink))

    def resolve(self) -> None:
        """Wait for the devices, fetch every row and hand the results to their sinks."""
        with self._lock:
            pending, self._pending = self._pending, []
            sums, self._checksums = self._checksums, []
        if not pending and not sums:
            return
        rows = Counter(item.ring for item in pending)
        with Quiet():
            self._finish(pending, sums, list(rows))
        with self._lock:
            for ring, count in rows.items():
                ring.release(count)

    def _ring(self, device: torch.device) -> _Ring:
        module = torch.get_device_module(device)
        stream = None if device.type == "cpu" else module.current_stream(device)
        group = self._rings.setdefault((device, stream), [])
        for ring in group:
            if ring.used < RING_ROWS:
                return ring
        with torch.inference_mode(mode=False):  # a buffer made in inference mode could not be written outside it
            group.append(_Ring(device))
        return group[-1]

    def _finish(self, pending: list[_PendingStatistics], sums: list[_PendingChecksum], rings: list[_Ring]) -> None:
        for device in {ring.device for ring in rings} | {item.values[0].device for item in sums}:
            torch.get_device_module(device).synchronize(device)
        floats = {id(ring): ring.floats[: ring.used].tolist() for ring in rings}
        ints = {id(ring): ring.ints[: ring.used].tolist() for ring in rings}
        for item in pending:
            row = item.row
            item.sink(_summarise_row(floats[id(item.ring)][row], ints[id(item.ring)][row], item, low=self._low))
        for checksum in sums:
            checksum.sink(_checksum_text(checksum))


def _launch(tensor: torch.Tensor, info: DtypeInfo, ring: _Ring, row: int, *, zeros: bool) -> int:
    """Queue the kernels that fill a row; return how often each element read counts."""
    view, repeats = (tensor, 1) if info.kind == "quantised" else memory_order(tensor)
    scale = _scale(view, info)
    integral = info.kind in ("int", "bool")
    parts = [_reduce_piece(piece, scale, counted=not integral, zeros=zeros) for piece in _pieces(view, info)]
    highs, lows, totals, squares, nans, infs, zero_counts = zip(*parts, strict=True)
    one = torch.ones((), dtype=ring.floats.dtype, device=view.device) if scale is None else scale
    floats = [
        _fold(torch.amax, highs),
        _fold(torch.amin, lows),
        _fold(torch.sum, totals),
        _fold(torch.sum, squares),
        one,
    ]
    extremes = _integer_extremes(view) if integral else [torch.zeros_like(nans[0])] * 2
    counts = [_fold(torch.sum, nans), _fold(torch.sum, infs), _fold(torch.sum, zero_counts)]
    torch.stack(floats, out=ring.floats[row])
    torch.stack([*extremes, *counts], out=ring.ints[row])
    return repeats


def _pieces(view: torch.Tensor, info: DtypeInfo) -> Iterator[torch.Tensor]:
    """Yield the numbers as real floats, at most `DEVICE_CHUNK` at a time, in the accumulation dtype."""
    wide = accumulation_dtype(view.device)
    if info.kind == "quantised":
        for piece in dequantised(view, DEVICE_CHUNK):
            yield piece.to(wide)
        return
    for chunk in logical_chunks(view, DEVICE_CHUNK):
        yield wide_values(chunk, info, wide)


def _scale(view: torch.Tensor, info: DtypeInfo) -> torch.Tensor | None:
    """Return the largest magnitude as a 0-dim device tensor if squares could leave the accumulation range."""
    wide = accumulation_dtype(view.device)
    if wide is torch.float64 and view.dtype not in (torch.float64, torch.complex128):
        return None
    largest = _fold(torch.amax, [piece.abs().amax() for piece in _pieces(view, info)])
    return torch.where(torch.isfinite(largest) & (largest > 0), largest, torch.ones_like(largest))


def _reduce_piece(
    piece: torch.Tensor, scale: torch.Tensor | None, *, counted: bool, zeros: bool
) -> tuple[torch.Tensor, ...]:
    """Return max, min, sum, sum of squares (of the scaled values), and counts of NaN, Inf, zero as 0-dim tensors."""
    smallest, largest = torch.aminmax(piece)
    scaled = piece if scale is None else piece / scale
    none = torch.zeros((), dtype=torch.int64, device=piece.device)
    return (
        largest,
        smallest,
        scaled.sum(),
        (scaled * scaled).sum(),
        torch.count_nonzero(torch.isnan(piece)) if counted else none,
        torch.count_nonzero(torch.isinf(piece)) if counted else none,
        torch.count_nonzero(piece == 0) if zeros else none,
    )


def _integer_extremes(view: torch.Tensor) -> list[torch.Tensor]:
    """Return max and min of integers as exact 0-dim int64 tensors (see `reductions.ordered_integers`)."""
    pairs = [torch.aminmax(ordered_integers(chunk)) for chunk in logical_chunks(view, DEVICE_CHUNK)]
    lows, highs = zip(*pairs, strict=True)
    return [_fold(torch.amax, highs).to(torch.int64), _fold(torch.amin, lows).to(torch.int64)]


def _fold(combine: Callable[[torch.Tensor], torch.Tensor], values: Sequence[torch.Tensor]) -> torch.Tensor:
    return values[0] if len(values) == 1 else combine(torch.stack(list(values)))


def _summarise_row(floats: list[float], ints: list[int], item: _PendingStatistics, *, low: bool) -> Statistics:
    largest, smallest, total, squares, scale = floats
    _, _, nan, inf, zero = ints
    if item.info.kind in ("int", "bool"):
        largest, smallest = (unordered_integer(value, item.info) for value in ints[:2])
    found: Reduction = repeat((largest, smallest, total, squares, nan, inf, zero), item.repeats)
    mean, norm = mean_and_norm(found, item.numel * item.info.numbers)
    return summarise(found, item.numel, item.info, low=low, moments=(mean * scale, norm * scale))


def _checksum_text(item: _PendingChecksum) -> str:
    words = [value.item() for value in item.values]
    if item.mode == "xor":
        return checksums.hex64(words[0])
    hashes = [checksums.finish_hash(word, *layout) for word, layout in zip(words, item.layouts, strict=True)]
    return checksums.hex64(checksums.combine_hashes(hashes))
