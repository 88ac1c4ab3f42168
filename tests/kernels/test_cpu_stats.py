"""The native statistics agree with the float64 reference for every dtype, shape, stride and special value."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msprobe.kernels import _native
from msprobe.kernels.cpu import reference

FLOATS = {
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.bfloat16: 15,
    torch.float8_e5m2: 23,
    torch.float8_e4m3fn: 24,
    torch.float8_e5m2fnuz: 25,
    torch.float8_e4m3fnuz: 26,
    torch.float8_e8m0fnu: 44,
}
COMPLEX = {torch.complex32: 8, torch.complex64: 9, torch.complex128: 10}
INTS = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.bool: 11,
    torch.uint16: 27,
    torch.uint32: 28,
    torch.uint64: 29,
}
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

CODES = FLOATS | COMPLEX | INTS
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0)
SIZES = st.one_of(st.integers(1, 70), st.integers(71, 700), st.integers(4090, 4110), st.integers(8185, 9000))


def random_tensor(dtype: torch.dtype, numel: int, seed: int, *, bits: bool) -> torch.Tensor:
    """Random numbers of ordinary size, or random bit patterns."""
    rng = np.random.default_rng(seed)
    if dtype in INTS or bits:
        data = rng.integers(0, 256, numel * dtype.itemsize, dtype=np.uint8)
        if dtype is torch.bool:
            data &= 1
        if dtype in (torch.float64, torch.complex128):
            # Squares within range: what happens beyond has its own test.
            data[7::8] &= 0b10111111
            data[7::8] |= 0b00100000
        return torch.from_numpy(data).view(dtype)
    values = torch.from_numpy(rng.standard_normal(2 * numel) * 10.0 ** rng.integers(-3, 4))
    if dtype in COMPLEX:
        part = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}[dtype]
        return torch.view_as_complex(values.to(part).reshape(-1, 2))
    return values[:numel].to(dtype)


def stored(tensor: torch.Tensor) -> np.ndarray:
    """The tensor as the reference takes it."""
    tensor = tensor.contiguous()
    if tensor.dtype is torch.complex32:
        return torch.view_as_real(tensor).numpy()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    if tensor.dtype in FLOATS and tensor.itemsize == 1:
        return tensor.view(torch.uint8).numpy()
    return tensor.numpy()


def native_stats(tensor: torch.Tensor, threads: int = 1) -> tuple:
    code = CODES[tensor.dtype]
    if tensor.is_contiguous():
        return _native.stats(tensor.data_ptr(), tensor.numel(), code, threads)
    return _native.stats_strided(tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), code, threads)


def assert_agrees(found: tuple, tensor: torch.Tensor) -> None:
    """Extremes and counts are equal, sums within the bounds that _native.pyi states."""
    code = CODES[tensor.dtype]
    expected = reference.stats(stored(tensor), code)
    assert found[4:] == expected[4:]
    assert [type(value) for value in found] == [type(value) for value in expected]
    if expected[4]:
        assert all(math.isnan(value) for value in found[:4])
        return
    assert found[:2] == expected[:2]
    with np.errstate(all="ignore"):
        magnitude = float(np.abs(reference.values_of(stored(tensor), code)).astype(np.float64).sum())
    if math.isfinite(magnitude):
        assert abs(found[2] - expected[2]) <= 2.5e-7 * magnitude
    else:
        assert found[2] == expected[2] or math.isnan(found[2]) == math.isnan(expected[2])
    assert found[3] == expected[3] or math.isclose(found[3], expected[3], rel_tol=3e-7)


@pytest.mark.parametrize("dtype", CODES, ids=str)
@settings(max_examples=25, deadline=None)
@given(numel=SIZES, seed=st.integers(0, 2**32), bits=st.booleans(), offset=st.integers(0, 3))
def test_contiguous_equals_reference(dtype, numel, seed, bits, offset):
    tensor = random_tensor(dtype, numel + offset, seed, bits=bits)[offset:]
    assert_agrees(native_stats(tensor), tensor)


@pytest.mark.parametrize("dtype", [*COMPLEX, torch.float16, torch.float32, torch.float64, torch.bfloat16], ids=str)
@settings(max_examples=30, deadline=None)
@given(numel=SIZES, seed=st.integers(0, 2**32), data=st.data())
def test_nan_and_infinity_are_counted_wherever_they_are(dtype, numel, seed, data):
    tensor = random_tensor(dtype, numel, seed, bits=False)
    flat = torch.view_as_real(tensor).reshape(-1) if dtype in COMPLEX else tensor
    places = st.tuples(st.integers(0, flat.numel() - 1), st.sampled_from(SPECIAL))
    for index, value in data.draw(st.lists(places, max_size=6)):
        flat[index] = value
    assert_agrees(native_stats(tensor), tensor)
    finite = bool(torch.isfinite(torch.view_as_real(tensor) if dtype in COMPLEX else tensor).all())
    assert _native.find_nonfinite(tensor.data_ptr(), numel, CODES[dtype]) is not finite


@st.composite
def strided(draw, dtype: torch.dtype) -> torch.Tensor:
    """A view with steps, swapped, expanded and reversed dimensions."""
    shape = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    steps = [draw(st.integers(1, 3)) for _ in shape]
    base = [size * step for size, step in zip(shape, steps, strict=True)]
    tensor = random_tensor(dtype, math.prod(base), draw(st.integers(0, 2**32)), bits=draw(st.booleans())).reshape(base)
    tensor = tensor[tuple(slice(None, None, step) for step in steps)]
    tensor = tensor.permute(draw(st.permutations(range(tensor.dim()))))
    if draw(st.booleans()):
        tensor = tensor.unsqueeze(draw(st.integers(0, tensor.dim())))
        repeats = draw(st.integers(1, 5))
        tensor = tensor.expand([repeats if tensor.stride(d) == 0 else -1 for d in range(tensor.dim())])
    return tensor


@pytest.mark.parametrize("dtype", CODES, ids=str)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_strided_equals_contiguous_bit_for_bit(dtype, data):
    tensor = data.draw(strided(dtype))
    plain = tensor.contiguous()
    code = CODES[dtype]
    found = _native.stats_strided(tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), code, 1)
    assert_agrees(found, tensor)
    assert repr(found) == repr(_native.stats(plain.data_ptr(), plain.numel(), code, 1))


@settings(max_examples=30, deadline=None)
@given(shape=st.lists(st.integers(1, 12), min_size=1, max_size=3), seed=st.integers(0, 2**32), data=st.data())
def test_negative_strides_are_walked_backwards(shape, seed, data):
    array = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    view = array[tuple(slice(None, None, data.draw(st.sampled_from((1, -1)))) for _ in shape)]
    strides = tuple(stride // 4 for stride in view.strides)
    found = _native.stats_strided(view.ctypes.data, view.shape, strides, 6, 1)
    copy = np.ascontiguousarray(view)
    assert found == _native.stats(copy.ctypes.data, copy.size, 6, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8], ids=str)
def test_number_of_threads_does_not_change_a_bit(dtype):
    numel = (1 << 21) + 12345
    tensor = random_tensor(dtype, numel, 5, bits=False)
    alone = native_stats(tensor)
    assert_agrees(alone, tensor)
    assert [native_stats(tensor, threads) for threads in (2, 3, 8, 100)] == [alone] * 4
    columns = tensor[: (1 << 21)].reshape(1 << 10, -1).t()
    assert native_stats(columns, 2) == native_stats(columns.contiguous(), 3)


def test_batch_equals_single_calls():
    tensors = [random_tensor(dtype, 10 + 50 * i, i, bits=False) for i, dtype in enumerate(CODES)]
    entries = [(t.data_ptr(), t.numel(), CODES[t.dtype]) for t in tensors]
    assert _native.stats_batch(entries, 2) == [native_stats(t) for t in tensors]
    assert _native.stats_batch([], 1) == []


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e-22, 1e-19, 1.0, 1e18, 1e25, 3e38])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_squares_beyond_the_range_of_float32_give_the_right_norm(dtype, scale):
    tensor = (torch.linspace(-1, 1, 5000, dtype=torch.float64) * scale).to(dtype)
    found, wide = native_stats(tensor), tensor.double()
    assert math.isclose(math.sqrt(found[3]), wide.norm().item(), rel_tol=2e-7)
    assert math.isclose(found[2] / 5000 + scale, wide.mean().item() + scale, rel_tol=1e-6)


def test_float32_sums_do_not_overflow():
    tensor = torch.full((9000,), 3e38)
    found = native_stats(tensor)
    assert found[2] == pytest.approx(9000 * float(tensor[0]), rel=1e-12)
    assert found[4:6] == (0, 0)


def test_large_constant_sum_keeps_its_precision():
    """torch.norm of 20 million such elements in float32 is 1 % off."""
    tensor = torch.full((1 << 22,), 0.1)
    expected = float(tensor[0])
    found = native_stats(tensor)
    assert found[2] / tensor.numel() == pytest.approx(expected, rel=2.5e-7)
    assert math.sqrt(found[3]) == pytest.approx(expected * 2**11, rel=2e-7)


@pytest.mark.parametrize(
    ("low", "high", "code", "name"), [(-(2**63), 2**63 - 1, 4, "int64"), (0, 2**64 - 1, 29, "uint64")]
)
def test_extremes_and_sums_of_64_bit_integers_are_exact(low, high, code, name):
    array = np.array([low, high, 2**53 + 1, 2**53 + 3, high - 1], dtype=name)
    found = _native.stats(array.ctypes.data, array.size, code, 1)
    assert found[:2] == (high, low)
    assert found[2] == float(sum(int(value) for value in array))


def test_signed_zero_counts_as_zero():
    tensor = torch.tensor([0.0, -0.0, 1.0, -0.0])
    assert native_stats(tensor)[6] == 3
    assert native_stats(tensor.bfloat16())[6] == 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("sign", [1, -1])
def test_extremes_of_one_sign_only(dtype, sign):
    tensor = (torch.rand(5000) * sign + sign).to(dtype)
    assert native_stats(tensor)[:2] == (tensor.max().item(), tensor.min().item())
    half_zero = torch.where(torch.arange(5000) % 2 == 0, tensor, torch.zeros((), dtype=dtype))
    assert native_stats(half_zero)[:2] == (half_zero.max().item(), half_zero.min().item())


@pytest.mark.parametrize("code", [23, 24, 25, 26, 44])
def test_every_float8_code_has_the_value_torch_gives_it(code):
    dtype = next(dtype for dtype, number in FLOATS.items() if number == code)
    codes = torch.arange(256, dtype=torch.uint8)
    expected = codes.view(dtype).double().numpy()
    np.testing.assert_array_equal(reference.float8_values(code), expected)
    for i in range(256):
        found = _native.stats(codes[i:].data_ptr(), 1, code, 1)
        np.testing.assert_array_equal(found[0], expected[i])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_16_bit_code_has_the_value_torch_gives_it(dtype):
    codes = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    finite = codes.view(dtype)[torch.isfinite(codes.view(dtype))]
    for start in range(0, finite.numel(), 997):
        piece = finite[start : start + 997]
        assert native_stats(piece)[2] == pytest.approx(piece.double().sum().item(), rel=1e-6, abs=1e-38)
        assert native_stats(piece)[:2] == (piece.max().item(), piece.min().item())


def test_flushed_subnormals_of_the_user_do_not_change_results():
    tensor = torch.full((300,), 1e-40)
    expected = native_stats(tensor)
    assert expected[0] > 0
    torch.set_flush_denormal(True)
    try:
        assert native_stats(tensor) == expected
        assert torch.tensor(1e-40).mul(1.0).item() == 0.0
    finally:
        torch.set_flush_denormal(False)


def test_misaligned_memory_is_read():
    data = torch.from_numpy(np.random.default_rng(0).integers(0, 120, 4 * 5000 + 1, dtype=np.uint8))
    moved = data[1:].clone().view(torch.float32)
    assert _native.stats(data.data_ptr() + 1, 5000, 6, 1) == native_stats(moved)
