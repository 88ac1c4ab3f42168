"""The bytes of a tensor as little-endian words, zero padded: how the checksum kernels read."""

from __future__ import annotations

import triton
import triton.language as tl

#: Words that a program reads at a time, and how often.
LANES = tl.constexpr(1024)
STEPS = tl.constexpr(8)


@triton.jit
def full_words(address, index, WORD: tl.constexpr, SIZE: tl.constexpr, ALIGN: tl.constexpr):
    """Load words that lie within the content. `ALIGN` divides the address; below `SIZE`, words are put together."""
    if ALIGN >= SIZE:
        word = tl.load(tl.multiple_of(address.to(tl.pointer_type(WORD)), ALIGN) + index)
    else:
        pointer = address.to(tl.pointer_type(tl.uint8)) + index * SIZE
        word = tl.load(pointer).to(WORD)
        for place in tl.static_range(1, SIZE):
            word |= tl.load(pointer + place).to(WORD) << (8 * place)
    return word


@triton.jit
def padded_words(address, index, nbytes, WORD: tl.constexpr, SIZE: tl.constexpr, ALIGN: tl.constexpr):
    """Load words anywhere: bytes from `nbytes` on are 0."""
    whole = nbytes // SIZE
    if ALIGN >= SIZE:
        pointer = tl.multiple_of(address.to(tl.pointer_type(WORD)), ALIGN)
        word = tl.load(pointer + index, mask=index < whole, other=0)
        in_pieces = index == whole
    else:
        word = tl.zeros_like(index).to(WORD)
        in_pieces = index <= whole
    first = address.to(tl.pointer_type(tl.uint8)) + index * SIZE
    for place in tl.static_range(SIZE):
        there = in_pieces & (index * SIZE + place < nbytes)
        word |= tl.load(first + place, mask=there, other=0).to(WORD) << (8 * place)
    return word


def alignment(address: int, size: int) -> int:
    """Return what kernels may assume to divide an address: 16, the `size` of a word, or 1. Each is a compilation."""
    if address % 16 == 0:
        return 16
    return size if address % size == 0 else 1
