"""Is there a NaN or an infinity? Told from the bits alone, faster than any statistics."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from msprobe.kernels.triton.chunk_reduction import UNROLL, load_block
from msprobe.kernels.triton.launch_options import OPTIONS
from msprobe.kernels.triton.layouts import Rows


@dataclass(frozen=True, slots=True)
class BitTest:
    """A word is NaN or infinite when ``word & mask == equal``.

    Attributes
    ----------
    stored, lane
        Triton types of the words in memory and in registers.
    mask, equal
        The test.
    reals
        Words per element: 2 for complex numbers.
    """

    stored: Any
    lane: Any
    mask: int
    equal: int
    reals: int = 1


def _bit_tests() -> dict[torch.dtype, BitTest]:
    half = BitTest(tl.int16, tl.int32, 0x7C00, 0x7C00)
    single = BitTest(tl.int32, tl.int32, 0x7F800000, 0x7F800000)
    double = BitTest(tl.int64, tl.int64, 0x7FF0000000000000, 0x7FF0000000000000)
    named = {
        "float16": half,
        "bfloat16": BitTest(tl.int16, tl.int32, 0x7F80, 0x7F80),
        "float32": single,
        "float64": double,
        "complex32": BitTest(half.stored, half.lane, half.mask, half.equal, 2),
        "complex64": BitTest(single.stored, single.lane, single.mask, single.equal, 2),
        "complex128": BitTest(double.stored, double.lane, double.mask, double.equal, 2),
        "float8_e5m2": BitTest(tl.uint8, tl.int32, 0x7C, 0x7C),
        "float8_e4m3fn": BitTest(tl.uint8, tl.int32, 0x7F, 0x7F),
        "float8_e5m2fnuz": BitTest(tl.uint8, tl.int32, 0xFF, 0x80),
        "float8_e4m3fnuz": BitTest(tl.uint8, tl.int32, 0xFF, 0x80),
        "float8_e8m0fnu": BitTest(tl.uint8, tl.int32, 0xFF, 0xFF),
    }
    return {getattr(torch, name): test for name, test in named.items() if hasattr(torch, name)}


#: Every dtype that has such values; the others are always finite.
BIT_TESTS: dict[torch.dtype, BitTest] = _bit_tests()


@triton.jit(do_not_specialize=["address", "numel", "inner", "pitch", "row"])
def nonfinite(
    address, numel, inner, pitch, rows, row,
    STORED: tl.constexpr, LANE: tl.constexpr, MASK: tl.constexpr, EQUAL: tl.constexpr, BLOCK: tl.constexpr,
    ALIGN: tl.constexpr, PITCHED: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Set the first word of a zeroed row to 1 if one program's share of the words holds a NaN or an infinity."""
    share: tl.constexpr = UNROLL * BLOCK
    base = tl.multiple_of(address.to(tl.pointer_type(STORED)), ALIGN)
    lane = tl.arange(0, BLOCK)
    first = tl.program_id(0).to(tl.int64) * share
    found = tl.zeros((BLOCK,), tl.int32)
    left = tl.minimum(numel - first, share).to(tl.int32)
    if left == share:
        for step in tl.static_range(UNROLL):
            x = load_block(
                base, first + step * BLOCK, lane, lane >= 0, inner, pitch, STORED, "cast", LANE, PITCHED, VECTOR, False
            )
            found |= ((x & MASK) == EQUAL).to(tl.int32)
    else:
        for start in range(0, left, BLOCK):
            mask = lane + start < left
            x = load_block(base, first + start, lane, mask, inner, pitch, STORED, "cast", LANE, PITCHED, VECTOR, True)
            found |= (mask & ((x & MASK) == EQUAL)).to(tl.int32)
    if tl.max(found, 0) > 0:
        tl.atomic_or(rows + row * 8, tl.full((), 1, tl.int64))


def launch_nonfinite(tensor: torch.Tensor, layout: Rows, *, rows: torch.Tensor, row: int) -> None:
    """Queue the probe of a tensor on the current stream of the current device.

    Parameters
    ----------
    tensor
        Of a dtype in `BIT_TESTS`, with the elements described by `layout`.
    rows, row
        int64 [n, 8] on the same device; the first word of row `row` must be 0 and becomes 1 if anything is found.
    """
    test = BIT_TESTS[tensor.dtype]
    width = tensor.itemsize // test.reals
    address = tensor.data_ptr()
    numel, inner, pitch = layout.numel * test.reals, layout.inner * test.reals, layout.pitch * test.reals
    block = 2048 if width == 1 else 1024
    nonfinite[(triton.cdiv(numel, UNROLL.value * block),)](
        address,
        numel,
        inner,
        pitch,
        rows,
        row,
        STORED=test.stored,
        LANE=test.lane,
        MASK=test.mask,
        EQUAL=test.equal,
        BLOCK=block,
        ALIGN=16 if address % 16 == 0 else width,
        PITCHED=not layout.dense,
        VECTOR=1 if layout.dense else math.gcd(16 // width, inner, pitch),
        **OPTIONS,
    )


def reference_nonfinite(tensor: torch.Tensor) -> bool:
    """Return the same by torch operations."""
    plain = tensor.detach().cpu()
    if plain.dtype not in BIT_TESTS:
        return False
    if plain.dtype.is_complex:
        return not bool(torch.isfinite(torch.view_as_real(plain.resolve_conj()).double()).all())
    return not bool(torch.isfinite(plain.double()).all())
