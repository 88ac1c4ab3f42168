"""Statistics of many tensors in one launch, found through a table of their addresses.

For sweeps over parameters or gradients, and for all tensors of one call: one launch costs as much as one tensor's.
"""

# ruff: noqa: SIM300 - Triton spells compile-time arguments in capitals

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from msprobe.kernels.triton.chunk_reduction import UNROLL, fold_rows, reduce_chunk, store_result, store_words
from msprobe.kernels.triton.elements import Element
from msprobe.kernels.triton.launch_options import OPTIONS
from msprobe.kernels.triton.tensor_statistics import Reduction, plan_chunks, reference_statistics

#: Words of a table entry: address, elements, chunk size, first chunk, chunks, row, ticket (0), not used.
ENTRY = 8


@triton.jit(do_not_specialize=["tensors", "programs"])
def table_statistics(
    table, tensors, programs, partials, rows,
    STORED: tl.constexpr, DECODE: tl.constexpr, LANE: tl.constexpr, SUM: tl.constexpr, SQUARE: tl.constexpr,
    LOW: tl.constexpr, HIGH: tl.constexpr, BLOCK: tl.constexpr, ALIGN: tl.constexpr, ZEROS: tl.constexpr,
):  # fmt: skip
    """Reduce one chunk of one tensor; the last program of each tensor stores its row.

    Behind the entries the table tells for every program which tensor it works on.
    """
    floating: tl.constexpr = LANE == tl.float32 or LANE == tl.float64
    program = tl.program_id(0)
    entry = table + tl.load(table + tensors * 8 + program) * 8
    base = tl.multiple_of(tl.load(entry).to(tl.pointer_type(STORED)), ALIGN)
    numel = tl.load(entry + 1)
    chunk_size = tl.load(entry + 2)
    first_chunk = tl.load(entry + 3)
    chunks = tl.load(entry + 4)
    result = rows + tl.load(entry + 5) * 8
    first = tl.multiple_of((program - first_chunk) * chunk_size, UNROLL * BLOCK)
    left = tl.minimum(numel - first, chunk_size).to(tl.int32)
    top, bottom, total, squares, nans, infinities, zeros, scale = reduce_chunk(
        base, first, left, numel, numel,
        STORED, DECODE, LANE, SUM, SQUARE, LOW, HIGH, BLOCK, False, 1, ZEROS,
    )  # fmt: skip
    if chunks == 1:
        store_result(result, top, bottom, total, squares, nans, infinities, zeros, scale, floating)
    else:
        store_words(partials + program, programs, top, bottom, total, squares, nans, infinities, zeros, scale, floating)
        tl.debug_barrier()  # every thread's stores come before the ticket is drawn
        if tl.atomic_add(entry + 6, 1, sem="acq_rel") == chunks - 1:
            fold_rows(partials + first_chunk, programs, chunks, result, floating, LANE == tl.float64)


def build_table(
    addresses: Sequence[int], numels: Sequence[int], row: int, element: Element
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], int]:
    """Return the table as int64 words, and how many programs work on it. Results go to rows from `row` on."""
    count = len(addresses)
    chunks = [plan_chunks(numel, element) for numel in numels]
    counts = np.array([plan.count for plan in chunks], dtype=np.int64)
    entries = np.zeros((count, ENTRY), dtype=np.int64)
    entries[:, 0] = addresses
    entries[:, 1] = numels
    entries[:, 2] = [plan.size for plan in chunks]
    entries[:, 3] = np.cumsum(counts) - counts
    entries[:, 4] = counts
    entries[:, 5] = np.arange(row, row + count)
    owners = np.repeat(np.arange(count, dtype=np.int64), counts)
    return np.concatenate([entries.reshape(-1), owners]), owners.size


def launch_table_statistics(
    tensors: Sequence[torch.Tensor],
    element: Element,
    *,
    rows: torch.Tensor,
    row: int,
    zeros: bool,
) -> None:
    """Queue the statistics of tensors on the current stream of the current device.

    The table goes up through pinned memory without a wait. Scratch and table are freed at once: the allocator hands
    their memory only to work that is queued later on this stream.

    Parameters
    ----------
    tensors
        Not empty, all of the dtype of `element`, on the current device, each one dense run of memory.
    rows, row
        int64 [n, 8] on the same device; row ``row + k`` gets the result of tensor k (see `chunk_reduction`).
    zeros
        Count zeros; otherwise their number is 0.
    """
    addresses = [tensor.data_ptr() for tensor in tensors]
    words, programs = build_table(addresses, [tensor.numel() for tensor in tensors], row, element)
    table = torch.from_numpy(words)
    if rows.device.type != "cpu":
        table = table.pin_memory().to(rows.device, non_blocking=True)
    partials = torch.empty(8 * programs, dtype=torch.int64, device=rows.device)
    width = tensors[0].itemsize // element.reals
    table_statistics[(programs,)](
        table,
        len(tensors),
        programs,
        partials,
        rows,
        **element.constants(),
        ALIGN=16 if all(address % 16 == 0 for address in addresses) else width,
        ZEROS=zeros,
        **OPTIONS,
    )


def reference_table_statistics(tensors: Sequence[torch.Tensor]) -> list[Reduction]:
    """Return the same by torch operations; see `tensor_statistics.reference_statistics`."""
    return [reference_statistics(tensor) for tensor in tensors]
