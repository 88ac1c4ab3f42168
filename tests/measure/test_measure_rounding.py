"""Rounding of `precision = low` equals the cast of a tensor."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from msprobe.measure.rounding import ROUND_PAIR, FloatFormat, pair_rounder

REFERENCE = ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
FLOAT16 = FloatFormat(11, -14, 65504.0)


def cast(value: float, name: str) -> float:
    dtype = getattr(torch, name)
    result = torch.tensor(value, dtype=torch.float64).to(dtype).double().item()
    # Formats without Infinity give NaN there; a finite tensor must not be reported as NaN.
    return math.copysign(math.inf, value) if math.isnan(result) and math.isfinite(value) else result


@pytest.mark.parametrize("name", REFERENCE)
@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False))
@example(value=0.0)
@example(value=65519.0)
@example(value=65520.0)
@example(value=float.fromhex("0x1.ffp+127"))
@example(value=1e-45)
@settings(max_examples=300, deadline=None)
def test_a_float32_value_rounds_as_torch_casts_it(name: str, value: float) -> None:
    rounded, other = ROUND_PAIR[name](value, -value)
    assert rounded == cast(value, name)
    assert other == -rounded


@given(value=st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=300, deadline=None)
def test_any_float64_rounds_once_to_float16(value: float) -> None:
    try:
        expected = struct.unpack("e", struct.pack("e", value))[0]
    except OverflowError:
        expected = math.copysign(math.inf, value)
    assert pair_rounder(FLOAT16)(value, 1.0)[0] == expected
    assert ROUND_PAIR["float16"](value, 1.0)[0] == expected


@given(bits=st.integers(0, 2**15 - 2**8 - 2))
@settings(max_examples=200, deadline=None)
def test_ties_go_to_even(bits: int) -> None:
    low, high = (torch.tensor([b], dtype=torch.int16).view(torch.bfloat16).double().item() for b in (bits, bits + 1))
    if math.isfinite(high):
        assert ROUND_PAIR["bfloat16"]((low + high) / 2, 0.0)[0] == (low if bits % 2 == 0 else high)


@pytest.mark.parametrize("name", sorted(ROUND_PAIR))
def test_nan_and_infinity_stay_and_no_finite_value_becomes_nan(name: str) -> None:
    round_pair = ROUND_PAIR[name]
    assert math.isnan(round_pair(math.nan, 1.0)[0])
    assert round_pair(math.inf, -math.inf) == (math.inf, -math.inf)
    assert not any(math.isnan(value) for value in round_pair(1e308, -1e308))
    assert round_pair(1.0, 2.0) == (1.0, 2.0)
