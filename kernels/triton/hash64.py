"""A 64-bit hash of a tensor's bytes, their positions and its shape.

With the bytes as little-endian 64-bit words w_0 ... w_(n-1), zero padded, and everything modulo 2**64::

    fmix(x)  x ^= x >> 33; x *= 0xff51afd7ed558ccd; x ^= x >> 33; x *= 0xc4ceb9fe1a85ec53; x ^= x >> 33
    body     sum of fmix(w_i + (i + 1) * 0x9e3779b97f4a7c15)
    salt     s = fmix(nbytes + 1), then s = fmix(s ^ (size + 0x9e3779b97f4a7c15)) for every dimension
    hash     fmix(body ^ salt)

`fmix` is the finaliser of MurmurHash3 (A. Appleby, public domain). The sum commutes, so any parallel order gives the
same hash; the device computes the body, the host the rest.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import triton
import triton.language as tl
from msprobe.kernels.triton.launch_options import OPTIONS
from msprobe.kernels.triton.words import LANES, STEPS, alignment, full_words, padded_words

_MASK = (1 << 64) - 1
_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1 = tl.constexpr(0xFF51AFD7ED558CCD)
_MIX_2 = tl.constexpr(0xC4CEB9FE1A85EC53)


@triton.jit
def mixed(words, index):
    """Return ``fmix(words + (index + 1) * golden)`` as int64 bits."""
    x = words + (index + 1).to(tl.uint64) * _GOLDEN
    x = (x ^ (x >> 33)) * _MIX_1
    x = (x ^ (x >> 33)) * _MIX_2
    return (x ^ (x >> 33)).to(tl.int64, bitcast=True)


@triton.jit(do_not_specialize=["address", "nbytes", "row"])
def hash64(address, nbytes, rows, row, ALIGN: tl.constexpr):
    """Add one program's share of the body to the first word of a zeroed row."""
    share: tl.constexpr = LANES * STEPS
    lane = tl.arange(0, LANES)
    first = tl.program_id(0).to(tl.int64) * share
    body = tl.zeros((LANES,), tl.int64)
    if (first + share) * 8 <= nbytes:
        for step in tl.static_range(STEPS):
            index = first + step * LANES + lane
            body += mixed(full_words(address, index, tl.uint64, 8, ALIGN), index)
    else:
        count = tl.cdiv(nbytes, 8)
        for start in range(0, (count - first).to(tl.int32), LANES):
            index = first + start + lane
            words = padded_words(address, index, nbytes, tl.uint64, 8, ALIGN)
            body += tl.where(index < count, mixed(words, index), 0)
    tl.atomic_add(rows + row * 8, tl.sum(body, 0))


def launch_hash64(tensor: torch.Tensor, *, rows: torch.Tensor, row: int) -> None:
    """Queue the hash body of a contiguous, non-empty tensor on the current stream of the current device.

    Parameters
    ----------
    tensor
        Contiguous, with at least one element.
    rows, row
        int64 [n, 8] on the same device; the first word of row `row` must be 0 and gets the body.
    """
    nbytes = tensor.numel() * tensor.itemsize
    address = tensor.data_ptr()
    programs = triton.cdiv(nbytes, 8 * LANES.value * STEPS.value)
    hash64[(programs,)](address, nbytes, rows, row, ALIGN=alignment(address, 8), **OPTIONS)


def fmix(value: int) -> int:
    """Return `fmix` of an unsigned 64-bit integer."""
    value ^= value >> 33
    value = value * _MIX_1.value & _MASK
    value ^= value >> 33
    value = value * _MIX_2.value & _MASK
    return value ^ value >> 33


def finish_hash64(body: int, nbytes: int, shape: Iterable[int]) -> int:
    """Return the hash, given its body (any integer congruent modulo 2**64)."""
    salt = fmix(nbytes + 1)
    for size in shape:
        salt = fmix(salt ^ (size + _GOLDEN.value & _MASK))
    return fmix((body & _MASK) ^ salt)


def reference_hash64(content: bytes, shape: Iterable[int]) -> int:
    """Return the same in plain Python."""
    padded = content + bytes(-len(content) % 8)
    words = (int.from_bytes(padded[start : start + 8], "little") for start in range(0, len(padded), 8))
    body = sum(fmix(word + (index + 1) * _GOLDEN.value & _MASK) for index, word in enumerate(words))
    return finish_hash64(body, len(content), shape)
