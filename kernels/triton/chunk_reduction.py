"""One program's share of the statistics of a tensor, and how shares become a result row.

A tensor is cut into chunks of a fixed size that depends on nothing but the number of elements, one program per chunk.
Each program leaves a row of eight 64-bit words; whichever program of a tensor finishes last adds its rows in index
order. So the same values give the same bits on every device and in every run.

Row words: max, min, sum, sum of squares, NaN count, Inf count, zero count, scale. Extremes of integers are int64; all
other fractional values are float64 bits. Sums are those of the values divided by the scale, squares by its square.
"""

# ruff: noqa: SIM300 - Triton spells compile-time arguments in capitals

from __future__ import annotations

import triton
import triton.language as tl
from msprobe.kernels.triton.elements import decoded, modulus, number

#: 64-bit words of a row.
WORDS = tl.constexpr(8)
#: Blocks that are added in the narrow type before the sums are widened.
UNROLL = tl.constexpr(8)
#: Rows that the last program adds at a time.
FOLD = tl.constexpr(512)
#: Magnitudes between which sums of float32 squares are trusted: 2**14 of them cannot overflow, and what underflows is
#: below 2**-25 of the total.
_NARROW_LARGE = tl.constexpr(2.0**56)
_NARROW_SMALL = tl.constexpr(2.0**-44)
#: The same for float64.
_WIDE_LARGE = tl.constexpr(2.0**460)
_WIDE_SMALL = tl.constexpr(2.0**-460)
_EXPONENT_BITS = tl.constexpr(0x7FF0000000000000)
_LARGEST_POWER = tl.constexpr(0x7FE0000000000000)
_SMALLEST_POWER = tl.constexpr(0x0010000000000000)


@triton.jit
def load_block(
    base, first, lane, mask, inner, pitch,
    STORED: tl.constexpr, DECODE: tl.constexpr, LANE: tl.constexpr,
    PITCHED: tl.constexpr, VECTOR: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Load the elements ``first + lane``, decoded. `VECTOR` divides rows, pitch and `first`."""
    if PITCHED:
        column = (first % inner).to(tl.int32) + lane
        offset = (first // inner + column // inner) * pitch + column % inner
        offset = tl.max_contiguous(tl.multiple_of(offset, VECTOR), VECTOR)
    else:
        offset = first + lane
    if DECODE == "complex":
        if MASKED:
            real = tl.load(base + 2 * offset, mask=mask, other=0.0)
            imaginary = tl.load(base + 2 * offset + 1, mask=mask, other=0.0)
        else:
            real = tl.load(base + 2 * offset)
            imaginary = tl.load(base + 2 * offset + 1)
        value = modulus(real, imaginary, STORED)
    else:
        words = tl.load(base + offset, mask=mask, other=0) if MASKED else tl.load(base + offset)
        value = decoded(words, DECODE, LANE)
    return value


@triton.jit
def add_tile(
    base, first, left, inner, pitch, largest, smallest, total, squares, zeros,
    STORED: tl.constexpr, DECODE: tl.constexpr, LANE: tl.constexpr, SUM: tl.constexpr, SQUARE: tl.constexpr,
    LOW: tl.constexpr, HIGH: tl.constexpr, BLOCK: tl.constexpr,
    PITCHED: tl.constexpr, VECTOR: tl.constexpr, ZEROS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add `UNROLL` blocks from element `first`; with `MASKED`, only the `left` elements that there are."""
    lane = tl.arange(0, BLOCK)
    tile_sum = tl.zeros((BLOCK,), SUM)
    tile_squares = tl.zeros((BLOCK,), SQUARE)
    for step in tl.static_range(UNROLL):
        mask = lane + step * BLOCK < left
        x = load_block(
            base, first + step * BLOCK, lane, mask, inner, pitch, STORED, DECODE, LANE, PITCHED, VECTOR, MASKED
        )
        if MASKED:
            largest = tl.maximum(largest, tl.where(mask, x, LOW))
            smallest = tl.minimum(smallest, tl.where(mask, x, HIGH))
        else:
            largest = tl.maximum(largest, x)
            smallest = tl.minimum(smallest, x)
        summand = number(x, DECODE, SUM)
        factor = number(x, DECODE, SQUARE)
        if MASKED:
            summand = tl.where(mask, summand, 0)
            factor = tl.where(mask, factor, 0)
        tile_sum += summand
        if SQUARE == tl.float32 or SQUARE == tl.float64:
            tile_squares = tl.fma(factor, factor, tile_squares)
        else:
            tile_squares += factor * factor
        if ZEROS:
            is_zero = number(x, DECODE, SUM) == 0
            if MASKED:
                is_zero = is_zero & mask
            zeros += is_zero.to(tl.int32)
    return largest, smallest, total + tile_sum.to(tl.float64), squares + tile_squares.to(tl.float64), zeros


@triton.jit
def careful_sums(
    base, first, left, inner, pitch, magnitude,
    STORED: tl.constexpr, DECODE: tl.constexpr, LANE: tl.constexpr, BLOCK: tl.constexpr,
    PITCHED: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Read a chunk again in float64: sums divided by a power of two near `magnitude`, counts of NaN and Inf.

    Scaling as in BLAS dnrm2 (Hammarling); only wide elements need it, others have scale 1.
    """
    lane = tl.arange(0, BLOCK)
    if LANE == tl.float64:
        power = magnitude.to(tl.int64, bitcast=True) & _EXPONENT_BITS
        power = tl.minimum(tl.maximum(power, _SMALLEST_POWER), _LARGEST_POWER)
        scale = power.to(tl.float64, bitcast=True)
    else:
        scale = tl.full((), 1.0, tl.float64)
    total = tl.zeros((BLOCK,), tl.float64)
    squares = tl.zeros((BLOCK,), tl.float64)
    nans = tl.zeros((BLOCK,), tl.int32)
    infinities = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, left, BLOCK):
        mask = lane + start < left
        x = load_block(base, first + start, lane, mask, inner, pitch, STORED, DECODE, LANE, PITCHED, VECTOR, True)
        x = tl.where(mask, x.to(tl.float64), 0.0)
        nans += (x != x).to(tl.int32)
        infinities += (tl.abs(x) == float("inf")).to(tl.int32)
        if LANE == tl.float64:
            x = x / scale
        total += x
        squares = tl.fma(x, x, squares)
    return (
        tl.sum(total, 0),
        tl.sum(squares, 0),
        tl.sum(nans.to(tl.int64), 0),
        tl.sum(infinities.to(tl.int64), 0),
        scale,
    )


@triton.jit
def reduce_chunk(
    base, first, left, inner, pitch,
    STORED: tl.constexpr, DECODE: tl.constexpr, LANE: tl.constexpr, SUM: tl.constexpr, SQUARE: tl.constexpr,
    LOW: tl.constexpr, HIGH: tl.constexpr, BLOCK: tl.constexpr,
    PITCHED: tl.constexpr, VECTOR: tl.constexpr, ZEROS: tl.constexpr,
):  # fmt: skip
    """Return the eight values of the row of `left` elements from `first`."""
    tile: tl.constexpr = UNROLL * BLOCK
    largest = tl.full((BLOCK,), LOW, LANE)
    smallest = tl.full((BLOCK,), HIGH, LANE)
    total = tl.zeros((BLOCK,), tl.float64)
    squares = tl.zeros((BLOCK,), tl.float64)
    zeros = tl.zeros((BLOCK,), tl.int32)
    full = left // tile
    for index in range(full):
        largest, smallest, total, squares, zeros = add_tile(
            base, first + index * tile, left, inner, pitch, largest, smallest, total, squares, zeros,
            STORED, DECODE, LANE, SUM, SQUARE, LOW, HIGH, BLOCK, PITCHED, VECTOR, ZEROS, False,
        )  # fmt: skip
    if full * tile < left:
        largest, smallest, total, squares, zeros = add_tile(
            base, first + full * tile, left - full * tile, inner, pitch, largest, smallest, total, squares, zeros,
            STORED, DECODE, LANE, SUM, SQUARE, LOW, HIGH, BLOCK, PITCHED, VECTOR, ZEROS, True,
        )  # fmt: skip
    top = tl.max(largest, 0)
    bottom = tl.min(smallest, 0)
    all_sum = tl.sum(total, 0)
    all_squares = tl.sum(squares, 0)
    nans = tl.full((), 0, tl.int64)
    infinities = tl.full((), 0, tl.int64)
    scale = tl.full((), 1.0, tl.float64)
    if LANE == tl.float32 or LANE == tl.float64:
        magnitude = tl.maximum(top, -bottom).to(tl.float64)
        if LANE == tl.float64:
            in_range = (magnitude <= _WIDE_LARGE) & ((magnitude >= _WIDE_SMALL) | (magnitude == 0))
            # Zeros have no scale, so that they do not hide tiny values of another chunk.
            scale = tl.where(magnitude == 0, 0.0, scale)
        else:
            in_range = (magnitude <= _NARROW_LARGE) & ((magnitude >= _NARROW_SMALL) | (magnitude == 0))
        # NaN shows in the squares: the extremes pass over it.
        if (all_squares != all_squares) | (in_range == 0):
            all_sum, all_squares, nans, infinities, scale = careful_sums(
                base, first, left, inner, pitch, magnitude, STORED, DECODE, LANE, BLOCK, PITCHED, VECTOR
            )
    return top, bottom, all_sum, all_squares, nans, infinities, tl.sum(zeros.to(tl.int64), 0), scale


@triton.jit
def store_words(pointer, stride, top, bottom, total, squares, nans, infinities, zeros, scale, FLOATING: tl.constexpr):
    """Store the eight values of a row, `stride` words apart."""
    if FLOATING:
        tl.store(pointer, top.to(tl.float64).to(tl.int64, bitcast=True))
        tl.store(pointer + stride, bottom.to(tl.float64).to(tl.int64, bitcast=True))
    else:
        tl.store(pointer, top.to(tl.int64))
        tl.store(pointer + stride, bottom.to(tl.int64))
    tl.store(pointer + 2 * stride, total.to(tl.int64, bitcast=True))
    tl.store(pointer + 3 * stride, squares.to(tl.int64, bitcast=True))
    tl.store(pointer + 4 * stride, nans)
    tl.store(pointer + 5 * stride, infinities)
    tl.store(pointer + 6 * stride, zeros)
    tl.store(pointer + 7 * stride, scale.to(tl.int64, bitcast=True))


@triton.jit
def store_result(row, top, bottom, total, squares, nans, infinities, zeros, scale, FLOATING: tl.constexpr):
    """Store a finished row: one NaN makes the extremes and sums NaN, and an all-zero tensor has scale 1."""
    if FLOATING:
        nan = tl.full((), float("nan"), tl.float64)
        some = nans > 0
        top = tl.where(some, nan, top.to(tl.float64))
        bottom = tl.where(some, nan, bottom.to(tl.float64))
        total = tl.where(some, nan, total)
        squares = tl.where(some, nan, squares)
        scale = tl.where(scale == 0, 1.0, scale)
    store_words(row, 1, top, bottom, total, squares, nans, infinities, zeros, scale, FLOATING)


@triton.jit
def load_floats(pointer, mask, other):
    """Load float64 values that are stored as their bits, past the first-level cache: other programs wrote them."""
    words = tl.load(pointer, mask=mask, other=0, cache_modifier=".cg")
    return tl.where(mask, words.to(tl.float64, bitcast=True), other)


@triton.jit
def fold_rows(partials, stride, chunks, row, FLOATING: tl.constexpr, SCALED: tl.constexpr):
    """Add the rows of all chunks of a tensor in a fixed order and store the result."""
    lane = tl.arange(0, FOLD)
    common = tl.full((), 1.0, tl.float64)
    if SCALED:
        scales = tl.zeros((FOLD,), tl.float64)
        for start in range(0, chunks, FOLD):
            index = start + lane
            scales = tl.maximum(scales, load_floats(partials + index + 7 * stride, index < chunks, 0.0))
        common = tl.max(scales, 0)
        common = tl.where(common == 0, 1.0, common)
    if FLOATING:
        largest = tl.full((FOLD,), float("-inf"), tl.float64)
        smallest = tl.full((FOLD,), float("inf"), tl.float64)
    else:
        largest = tl.full((FOLD,), -0x8000000000000000, tl.int64)
        smallest = tl.full((FOLD,), 0x7FFFFFFFFFFFFFFF, tl.int64)
    total = tl.zeros((FOLD,), tl.float64)
    squares = tl.zeros((FOLD,), tl.float64)
    nans = tl.zeros((FOLD,), tl.int64)
    infinities = tl.zeros((FOLD,), tl.int64)
    zeros = tl.zeros((FOLD,), tl.int64)
    for start in range(0, chunks, FOLD):
        index = start + lane
        mask = index < chunks
        pointer = partials + index
        if FLOATING:
            largest = tl.maximum(largest, load_floats(pointer, mask, float("-inf")))
            smallest = tl.minimum(smallest, load_floats(pointer + stride, mask, float("inf")))
        else:
            words = tl.load(pointer, mask=mask, other=0, cache_modifier=".cg")
            largest = tl.maximum(largest, tl.where(mask, words, -0x8000000000000000))
            words = tl.load(pointer + stride, mask=mask, other=0, cache_modifier=".cg")
            smallest = tl.minimum(smallest, tl.where(mask, words, 0x7FFFFFFFFFFFFFFF))
        part = load_floats(pointer + 2 * stride, mask, 0.0)
        part_squares = load_floats(pointer + 3 * stride, mask, 0.0)
        if SCALED:
            ratio = load_floats(pointer + 7 * stride, mask, 0.0) / common
            part = part * ratio
            part_squares = part_squares * ratio * ratio
        total += part
        squares += part_squares
        nans += tl.load(pointer + 4 * stride, mask=mask, other=0, cache_modifier=".cg")
        infinities += tl.load(pointer + 5 * stride, mask=mask, other=0, cache_modifier=".cg")
        zeros += tl.load(pointer + 6 * stride, mask=mask, other=0, cache_modifier=".cg")
    store_result(
        row, tl.max(largest, 0), tl.min(smallest, 0), tl.sum(total, 0), tl.sum(squares, 0),
        tl.sum(nans, 0), tl.sum(infinities, 0), tl.sum(zeros, 0), common, FLOATING,
    )  # fmt: skip
