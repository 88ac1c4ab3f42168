"""Statistics of int8 and uint8 are exact however the range of values grows from block to block.

Blocks of bytes take a short way once the extremes are known: proof that nothing is beyond them.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msprobe.kernels import _native

BLOCK = 65280
CODES = {np.int8: 1, np.uint8: 0}


def exact(values: np.ndarray) -> tuple[int, int, float, float, int, int, int]:
    wide = values.astype(np.int64)
    zeros = int(np.count_nonzero(wide == 0))
    return int(wide.max()), int(wide.min()), float(wide.sum()), float((wide * wide).sum()), 0, 0, zeros


def assert_exact(values: np.ndarray) -> None:
    code, expected = CODES[values.dtype.type], exact(values)
    assert _native.stats(values.ctypes.data, values.size, code, 1) == expected
    assert _native.stats_strided(values.ctypes.data, (values.size,), (1,), code, 2) == expected
    backwards = values.ctypes.data + values.size - 1
    assert _native.stats_strided(backwards, (values.size,), (-1,), code, 1) == expected


@pytest.mark.parametrize("dtype", CODES)
@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(
        st.tuples(st.integers(0, 255), st.integers(0, 255), st.sampled_from([1, 63, 256, 4097, BLOCK - 1, BLOCK])),
        min_size=1,
        max_size=5,
    ),
    seed=st.integers(0, 2**32),
)
@example(pieces=[(0, 255, BLOCK), (0, 255, BLOCK)], seed=0)
@example(pieces=[(1, 254, BLOCK), (1, 254, BLOCK), (255, 255, 1), (0, 0, 1)], seed=0)
@example(pieces=[(128, 128, BLOCK), (127, 127, BLOCK), (0, 0, BLOCK)], seed=0)
def test_ranges_that_grow_shrink_and_fill_the_type(dtype, pieces, seed):
    rng = np.random.default_rng(seed)
    parts = [rng.integers(min(a, b), max(a, b) + 1, count, dtype=np.uint8) for a, b, count in pieces]
    assert_exact(np.concatenate(parts).view(dtype))


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("place", [0, 255, 256, BLOCK - 1, BLOCK, BLOCK + 63, 2 * BLOCK + 1000, 3 * BLOCK + 70])
def test_one_element_beyond_the_others_is_found_wherever_it_is(dtype, place):
    limits = np.iinfo(dtype)
    for beyond in (limits.min, limits.max):
        values = np.full(3 * BLOCK + 71, (limits.min + limits.max) // 2 + 3, dtype)
        values[7] = values[7] - 5
        values[place] = beyond
        assert_exact(values)


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("value", [-128, -127, -1, 0, 1, 127, 128, 255])
def test_constant_bytes_do_not_overflow_their_sums(dtype, value):
    limits = np.iinfo(dtype)
    if limits.min <= value <= limits.max:
        assert_exact(np.full(5 * BLOCK + 13, value, dtype))


@pytest.mark.parametrize("dtype", CODES)
def test_sorted_bytes_and_threads_give_the_same(dtype):
    limits = np.iinfo(dtype)
    values = np.sort(np.random.default_rng(2).integers(limits.min, limits.max + 1, 1_300_000, dtype=dtype))
    expected = exact(values)
    for threads in (1, 2, 5):
        assert _native.stats(values.ctypes.data, values.size, CODES[dtype], threads) == expected
