"""CRC-32 (ISO-HDLC, the one of zlib) of a tensor's bytes.

It pays: the alternative copies every tensor to the host inside the step, over a bus a hundred times slower than
device memory, and waits for it. A CRC without pre- and post-conditioning is linear: the sum (XOR) over all 32-bit
words of ``word * x**(32 * words from here to the end)``, polynomials modulo the CRC's. Each lane takes every 1024th
word and multiplies by ``x**(32 * 1024)`` in between (Horner); in the end each lane is moved to its place by a table of
powers, and each program likewise. The end of the content is padded with zeros, which the host divides out again: ``x``
has an inverse.

Polynomials are in reflected order, as in zlib: bit 31 is the coefficient of x**0.
"""

from __future__ import annotations

import zlib
from functools import cache

import torch
import triton
import triton.language as tl
from msprobe.kernels.triton.launch_options import OPTIONS
from msprobe.kernels.triton.words import alignment, full_words, padded_words

LANES = tl.constexpr(1024)
STEPS = tl.constexpr(16)
_POLYNOMIAL = tl.constexpr(0xEDB88320)
#: x**(32 * 1024): from one word of a lane to its next.
_STRIDE = tl.constexpr(0x09FE548F)
#: Entries of each of the three tables of powers that place a program's share.
_DIGIT = tl.constexpr(64)
#: Order of x modulo the polynomial, which is primitive.
_ORDER = (1 << 32) - 1
#: Bytes of one program, and of the largest content.
_SHARE = 4 * LANES.value * STEPS.value
LIMIT = _SHARE * _DIGIT.value**3


@triton.jit
def product(left, right):
    """Multiply polynomials modulo the CRC's (uint32, any shapes that broadcast)."""
    result = tl.zeros_like(left)
    for place in tl.static_range(32):
        result ^= (0 - ((left >> (31 - place)) & 1)) & right
        right = (right >> 1) ^ ((0 - (right & 1)) & _POLYNOMIAL)
    return result


@triton.jit(do_not_specialize=["address", "nbytes", "row"])
def crc32(address, nbytes, powers, rows, row, ALIGN: tl.constexpr):
    """XOR one program's share of the padded content, in its place, into the first word of a zeroed row."""
    share: tl.constexpr = LANES * STEPS
    lane = tl.arange(0, LANES)
    stride = tl.full((LANES,), _STRIDE, tl.uint32)
    first = tl.program_id(0).to(tl.int64) * share
    state = tl.zeros((LANES,), tl.uint32)
    if (first + share) * 4 <= nbytes:
        for start in range(0, share, LANES):
            state = product(state, stride) ^ full_words(address, first + start + lane, tl.uint32, 4, ALIGN)
    else:
        # A content of one share is padded to full lanes only.
        steps = tl.minimum(tl.cdiv(nbytes, 4 * LANES), STEPS).to(tl.int32)
        for start in range(0, steps * LANES, LANES):
            words = padded_words(address, first + start + lane, nbytes, tl.uint32, 4, ALIGN)
            state = product(state, stride) ^ words
    state = product(state, tl.load(powers + lane).to(tl.uint32, bitcast=True))
    total = tl.xor_sum(state.to(tl.int32, bitcast=True), 0).to(tl.uint32, bitcast=True)
    behind = tl.num_programs(0) - 1 - tl.program_id(0)
    if behind > 0:
        for digit in tl.static_range(3):
            entry = powers + LANES + digit * _DIGIT + behind % _DIGIT
            total = product(total, tl.load(entry).to(tl.uint32, bitcast=True))
            behind = behind // _DIGIT
    tl.atomic_xor(rows + row * 8, total.to(tl.int64))


def launch_crc32(tensor: torch.Tensor, *, powers: torch.Tensor, rows: torch.Tensor, row: int) -> None:
    """Queue the linear part of the CRC of a contiguous tensor on the current stream of the current device.

    Parameters
    ----------
    tensor
        Contiguous, at least one element, at most `LIMIT` bytes.
    powers
        `power_table` on the same device.
    rows, row
        int64 [n, 8] on the same device; the first word of row `row` must be 0 and gets what `finish_crc32` takes.

    Raises
    ------
    ValueError
        If the tensor has more than `LIMIT` bytes.
    """
    nbytes = tensor.numel() * tensor.itemsize
    if nbytes > LIMIT:
        raise ValueError(f"crc32: {nbytes} bytes are more than the kernel's {LIMIT}; copy the tensor to the host")
    address = tensor.data_ptr()
    crc32[(triton.cdiv(nbytes, _SHARE),)](address, nbytes, powers, rows, row, ALIGN=alignment(address, 4), **OPTIONS)


def host_product(left: int, right: int) -> int:
    """Return `product` of two Python integers."""
    result = 0
    while left:
        if left & 0x80000000:
            result ^= right
        left = left << 1 & 0xFFFFFFFF
        right = right >> 1 ^ (_POLYNOMIAL.value if right & 1 else 0)
    return result


@cache
def _power_digits() -> tuple[tuple[int, ...], ...]:
    """``x**(digit * 256**place)`` for the four bytes of an exponent."""
    tables = []
    base = 0x40000000  # x
    for _ in range(4):
        powers = [0x80000000]
        for _ in range(255):
            powers.append(host_product(powers[-1], base))
        tables.append(tuple(powers))
        base = host_product(powers[-1], base)
    return tuple(tables)


def power_of_x(exponent: int) -> int:
    """Return ``x**exponent`` modulo the CRC's polynomial; the exponent may be negative."""
    exponent %= _ORDER
    result = 0x80000000
    for table in _power_digits():
        result = host_product(result, table[exponent & 0xFF])
        exponent >>= 8
    return result


def power_table() -> torch.Tensor:
    """Return int32 [1216] on the host: the places of the lanes, then of the programs in base 64."""
    lanes = [power_of_x(32 * (LANES.value - lane)) for lane in range(LANES.value)]
    digits = [power_of_x(8 * _SHARE * digit * 64**place) for place in range(3) for digit in range(_DIGIT.value)]
    return torch.tensor(lanes + digits, dtype=torch.int64).to(torch.int32)


def finish_crc32(linear: int, nbytes: int) -> int:
    """Return the CRC-32 of `nbytes` bytes from the first word of the kernel's row."""
    shares = -(-nbytes // _SHARE)
    padded = shares * _SHARE if shares > 1 else -(-nbytes // (4 * LANES.value)) * 4 * LANES.value
    raw = host_product(linear, power_of_x(-8 * (padded - nbytes)))
    return raw ^ host_product(0xFFFFFFFF, power_of_x(8 * nbytes)) ^ 0xFFFFFFFF


def join_crc32(first: int, second: int, second_nbytes: int) -> int:
    """Return the CRC-32 of two contents one after the other, from theirs and the size of the second."""
    return host_product(first, power_of_x(8 * second_nbytes)) ^ second


def reference_crc32(content: bytes) -> int:
    """Return the same by zlib."""
    return zlib.crc32(content)
