"""XOR of the 64-bit little-endian words of a tensor's bytes, zero padded."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from msprobe.kernels.triton.launch_options import OPTIONS
from msprobe.kernels.triton.words import LANES, STEPS, alignment, full_words, padded_words


@triton.jit(do_not_specialize=["address", "nbytes", "row"])
def xor64(address, nbytes, rows, row, ALIGN: tl.constexpr):
    """XOR one program's share of the words into the first word of a zeroed row."""
    share: tl.constexpr = LANES * STEPS
    lane = tl.arange(0, LANES)
    first = tl.program_id(0).to(tl.int64) * share
    words = tl.zeros((LANES,), tl.uint64)
    if (first + share) * 8 <= nbytes:
        for step in tl.static_range(STEPS):
            words ^= full_words(address, first + step * LANES + lane, tl.uint64, 8, ALIGN)
    else:
        left = tl.cdiv(nbytes, 8) - first
        for start in range(0, left.to(tl.int32), LANES):
            words ^= padded_words(address, first + start + lane, nbytes, tl.uint64, 8, ALIGN)
    tl.atomic_xor(rows + row * 8, tl.xor_sum(words.to(tl.int64, bitcast=True), 0))


def launch_xor64(tensor: torch.Tensor, *, rows: torch.Tensor, row: int) -> None:
    """Queue the XOR of a contiguous, non-empty tensor on the current stream of the current device.

    Parameters
    ----------
    tensor
        Contiguous, with at least one element.
    rows, row
        int64 [n, 8] on the same device; the first word of row `row` must be 0 and gets the result.
    """
    nbytes = tensor.numel() * tensor.itemsize
    address = tensor.data_ptr()
    programs = triton.cdiv(nbytes, 8 * LANES.value * STEPS.value)
    xor64[(programs,)](address, nbytes, rows, row, ALIGN=alignment(address, 8), **OPTIONS)


def reference_xor64(content: bytes) -> int:
    """Return the same of the bytes, as an unsigned integer."""
    padded = content + bytes(-len(content) % 8)
    return int(np.bitwise_xor.reduce(np.frombuffer(padded, dtype="<u8"), initial=0))
