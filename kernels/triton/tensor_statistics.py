"""Statistics of one tensor in one launch."""

# ruff: noqa: SIM300 - Triton spells compile-time arguments in capitals

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import torch
import triton
import triton.language as tl
from msprobe.kernels.triton.chunk_reduction import UNROLL, fold_rows, reduce_chunk, store_result, store_words
from msprobe.kernels.triton.elements import Element
from msprobe.kernels.triton.launch_options import OPTIONS
from msprobe.kernels.triton.layouts import Rows

#: Max, min, sum, sum of squares, NaN count, Inf count, zero count; see `reference_statistics`.
Reduction: TypeAlias = tuple[float, float, float, float, int, int, int]

#: Most chunks of a tensor: beyond, chunks grow. Enough programs for any device, few rows for the last one to add.
MAX_CHUNKS = 2048
#: 64-bit words of scratch that one launch at a time needs: the rows of the chunks and a ticket.
SCRATCH_WORDS = 8 * MAX_CHUNKS + 1


@triton.jit(do_not_specialize=["address", "numel", "chunk_size", "inner", "pitch", "row"])
def tensor_statistics(
    address, numel, chunk_size, inner, pitch, rows, row, scratch,
    STORED: tl.constexpr, DECODE: tl.constexpr, LANE: tl.constexpr, SUM: tl.constexpr, SQUARE: tl.constexpr,
    LOW: tl.constexpr, HIGH: tl.constexpr, BLOCK: tl.constexpr, MAX_CHUNKS: tl.constexpr,
    ALIGN: tl.constexpr, PITCHED: tl.constexpr, VECTOR: tl.constexpr, ZEROS: tl.constexpr,
):  # fmt: skip
    """Reduce chunk ``program_id`` of the elements at `address`; the last program to finish stores the row."""
    floating: tl.constexpr = LANE == tl.float32 or LANE == tl.float64
    chunk = tl.program_id(0)
    chunks = tl.num_programs(0)
    base = tl.multiple_of(address.to(tl.pointer_type(STORED)), ALIGN)
    first = tl.multiple_of(chunk.to(tl.int64) * chunk_size, UNROLL * BLOCK)
    left = tl.minimum(numel - first, chunk_size).to(tl.int32)
    top, bottom, total, squares, nans, infinities, zeros, scale = reduce_chunk(
        base, first, left, inner, pitch,
        STORED, DECODE, LANE, SUM, SQUARE, LOW, HIGH, BLOCK, PITCHED, VECTOR, ZEROS,
    )  # fmt: skip
    result = rows + row * 8
    if chunks == 1:
        store_result(result, top, bottom, total, squares, nans, infinities, zeros, scale, floating)
    else:
        ticket = scratch + 8 * MAX_CHUNKS
        store_words(scratch + chunk, MAX_CHUNKS, top, bottom, total, squares, nans, infinities, zeros, scale, floating)
        tl.debug_barrier()  # every thread's stores come before the ticket is drawn
        if tl.atomic_add(ticket, 1, sem="acq_rel") == chunks - 1:
            fold_rows(scratch, MAX_CHUNKS, chunks, result, floating, LANE == tl.float64)
            tl.store(ticket, 0)


@dataclass(frozen=True, slots=True)
class Chunks:
    """How a tensor is divided among programs. Depends on its size alone, so that every device adds in the same order.

    Attributes
    ----------
    size
        Elements of a chunk, a multiple of the tile that is widened at once.
    count
        Number of chunks, at most `MAX_CHUNKS`.
    """

    size: int
    count: int


def plan_chunks(numel: int, element: Element) -> Chunks:
    """Return the chunks of `numel` (> 0) elements.

    Raises
    ------
    ValueError
        If a chunk would have 2**31 elements or more (tensors of 2**43 elements).
    """
    tile = UNROLL.value * element.block
    size = tile * max(1, 2 ** math.ceil(math.log2(max(1.0, numel / tile / MAX_CHUNKS))))
    if size >= 1 << 31:
        raise ValueError(f"tensor_statistics: {numel} elements are more than the kernel counts; measure it in parts")
    return Chunks(size, -(-numel // size))


def launch_tensor_statistics(
    tensor: torch.Tensor,
    layout: Rows,
    element: Element,
    *,
    rows: torch.Tensor,
    row: int,
    scratch: torch.Tensor,
    zeros: bool,
) -> None:
    """Queue the statistics of a tensor on the current stream of the current device.

    Parameters
    ----------
    tensor
        On the current device, with the elements described by `layout` and `element`.
    rows
        int64 [n, 8] on the same device; row `row` gets the result (see `chunk_reduction`).
    scratch
        int64 [SCRATCH_WORDS] on the same device, its last word 0. Launches that share it must be on one stream.
    zeros
        Count zeros; otherwise their number is 0.
    """
    address = tensor.data_ptr()
    chunks = plan_chunks(layout.numel, element)
    width = tensor.itemsize // element.reals
    vector = 1 if layout.dense or element.reals > 1 else math.gcd(16 // width, layout.inner, layout.pitch)
    tensor_statistics[(chunks.count,)](
        address,
        layout.numel,
        chunks.size,
        layout.inner,
        layout.pitch,
        rows,
        row,
        scratch,
        **element.constants(),
        MAX_CHUNKS=MAX_CHUNKS,
        ALIGN=16 if address % 16 == 0 else width,
        PITCHED=not layout.dense,
        VECTOR=vector,
        ZEROS=zeros,
        **OPTIONS,
    )


def reference_statistics(tensor: torch.Tensor) -> Reduction:
    """Return the same by torch operations in float64; integer extremes are exact.

    With a NaN present, extremes and sums are NaN. Complex numbers count by their modulus. Sums of squares that leave
    the range of float64 come out as Infinity or 0 here; the kernel scales them.
    """
    plain = tensor.detach().cpu()
    if plain.dtype.is_complex:
        plain = plain.to(torch.complex128).abs()
    wide = plain.to(torch.float64).reshape(-1)
    nan = int(torch.isnan(wide).sum())
    inf = int(torch.isinf(wide).sum())
    zero = int((wide == 0).sum())
    if nan:
        return (math.nan, math.nan, math.nan, math.nan, nan, inf, zero)
    if plain.dtype.is_floating_point:
        largest, smallest = wide.max().item(), wide.min().item()
    else:
        numbers = plain.reshape(-1).tolist()
        largest, smallest = max(numbers), min(numbers)
    return largest, smallest, wide.sum().item(), (wide * wide).sum().item(), nan, inf, zero
