"""Statistics of device tensors by torch operations, into rows on the device: where no kernel of ours reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from msprobe.measure.chunks import logical_chunks, memory_order
from msprobe.measure.dtypes import DtypeInfo
from msprobe.measure.quantised import dequantised
from msprobe.measure.reductions import ordered_integers, wide_values

#: Elements converted at a time on a device: 32 MiB as float64.
DEVICE_CHUNK = 1 << 22
#: Rows of one buffer.
RING_ROWS = 4096
#: Device types without float64; they accumulate in float32 after scaling by the largest magnitude.
WITHOUT_FLOAT64 = frozenset({"npu", "mps"})


class Ring:
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


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """Return the widest float that a device computes with."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def launch(tensor: torch.Tensor, info: DtypeInfo, ring: Ring, row: int, *, zeros: bool) -> int:
    """Queue the operations that fill a row; return how often each element read counts.

    Parameters
    ----------
    tensor, info
        Strided tensor with at least one element, of any dtype that has numbers, and its dtype.
    ring, row
        Where the results go.
    zeros
        Count zeros; otherwise their number is 0.
    """
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
