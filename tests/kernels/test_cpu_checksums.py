"""The native CRC-32, XOR and hash equal zlib and the numpy reference, and tell apart what they must."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msprobe.kernels import _native
from msprobe.kernels.cpu import reference

SIZES = st.one_of(st.integers(0, 80), st.integers(250, 600), st.integers(16380, 16400), st.integers(32760, 40000))
ITEMS = {1: np.uint8, 2: np.uint16, 4: np.float32, 8: np.int64, 16: np.complex128}


def random_bytes(size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def hash_of(array: np.ndarray) -> int:
    plain = np.ascontiguousarray(array)
    return _native.hash64(plain.ctypes.data, plain.nbytes, array.shape, 1)


@settings(max_examples=80, deadline=None)
@given(size=SIZES, seed=st.integers(0, 2**32), start=st.integers(0, 17), init=st.integers(0, 2**32 - 1))
def test_crc32_equals_zlib_at_any_size_alignment_and_start_value(size, seed, start, init):
    data = random_bytes(size + start, seed)[start:]
    assert _native.crc32(data.ctypes.data, size) == zlib.crc32(data)
    assert _native.crc32(data.ctypes.data, size, init) == zlib.crc32(data, init)


@settings(max_examples=60, deadline=None)
@given(
    size=SIZES, seed=st.integers(0, 2**32), start=st.integers(0, 9), shape=st.lists(st.integers(0, 2**40), max_size=5)
)
def test_xor_and_hash_equal_the_reference_at_any_size_and_alignment(size, seed, start, shape):
    data = random_bytes(size + start, seed)[start:]
    assert _native.xor64(data.ctypes.data, size, 1) == reference.xor64(data)
    assert _native.hash64(data.ctypes.data, size, tuple(shape), 1) == reference.hash64(data, shape)


@st.composite
def strided_arrays(draw):
    """Arrays of every element size with steps of either sign, swapped and repeated dimensions."""
    dtype = np.dtype(ITEMS[draw(st.sampled_from(sorted(ITEMS)))])
    shape = draw(st.lists(st.integers(0, 13), min_size=0, max_size=4))
    steps = [draw(st.sampled_from((1, 2, 3, -1, -2))) for _ in shape]
    base = [size * abs(step) for size, step in zip(shape, steps, strict=True)]
    data = random_bytes(int(np.prod(base, dtype=np.int64)) * dtype.itemsize, draw(st.integers(0, 2**32)))
    view = data.view(dtype).reshape(base)[(*(slice(None, None, step) for step in steps), ...)]
    view = view.transpose(draw(st.permutations(range(view.ndim))))
    return np.broadcast_to(view, (3, *view.shape)) if draw(st.booleans()) else view


@settings(max_examples=150, deadline=None)
@given(array=strided_arrays())
def test_strides_do_not_change_a_checksum(array):
    strides = tuple(stride // array.itemsize for stride in array.strides)
    place = (array.ctypes.data, array.shape, strides, array.itemsize)
    assert _native.crc32_strided(*place) == zlib.crc32(array.tobytes())
    assert _native.crc32_strided(*place, 77) == zlib.crc32(array.tobytes(), 77)
    assert _native.xor64_strided(*place, 1) == reference.xor64(array)
    assert _native.hash64_strided(*place, 1) == reference.hash64(array)


def test_number_of_threads_does_not_change_a_checksum():
    tensor = torch.arange(3 << 20, dtype=torch.int64)[: (3 << 20) - 5]
    nbytes = 8 * tensor.numel() - 3
    alone = (_native.xor64(tensor.data_ptr(), nbytes, 1), _native.hash64(tensor.data_ptr(), nbytes, (7,), 1))
    for threads in (2, 3, 64):
        assert _native.xor64(tensor.data_ptr(), nbytes, threads) == alone[0]
        assert _native.hash64(tensor.data_ptr(), nbytes, (7,), threads) == alone[1]
    square = tensor[: 1 << 21].reshape(1 << 10, -1).t()
    copy = square.contiguous()
    expected = _native.hash64(copy.data_ptr(), 8 * copy.numel(), tuple(copy.shape), 1)
    assert _native.hash64_strided(square.data_ptr(), tuple(square.shape), square.stride(), 8, 2) == expected


def test_hash_has_its_published_values():
    """The definition is shared with accelerators and other tools: these values must never change."""
    array = np.arange(5, dtype=np.float32)
    assert f"0x{hash_of(array):016x}" == f"0x{reference.hash64(array):016x}" == "0x7bbe2dadf33ec85f"
    assert f"0x{hash_of(np.zeros((2, 3), np.int64)):016x}" == "0x6f4e7d8d6c497691"
    assert f"0x{hash_of(np.zeros(0, np.uint8)):016x}" == "0xe1b0bff1027794b0"


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8, np.int64])
def test_hash_tells_apart_what_xor_does_not(dtype):
    base = (np.arange(24) - 7).astype(dtype)
    other = {
        "permuted": base[::-1],
        "words swapped": np.concatenate([base[12:], base[:12]]),
        "sign flipped": -base,
        "zeros": np.zeros_like(base),
        "ones": np.ones_like(base),
        "doubled": np.concatenate([base, base]),
        "shape": base.reshape(4, 6),
        "other shape": base.reshape(6, 4),
        "extra dimension": base.reshape(1, 24),
        "zero appended": np.append(base, dtype(0)),
    }
    hashes = {name: hash_of(array) for name, array in other.items()} | {"base": hash_of(base)}
    assert len(set(hashes.values())) == len(hashes)


def test_hash_of_single_bit_changes_never_collides():
    data = np.zeros(64, np.uint64)
    seen = {hash_of(data)}
    for word in range(64):
        for bit in range(64):
            data[word] = np.uint64(1) << np.uint64(bit)
            seen.add(hash_of(data))
        data[word] = 0
    assert len(seen) == 64 * 64 + 1
