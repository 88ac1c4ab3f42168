"""Statistics kernels equal their float64 references, whatever the dtype, size, strides and values."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msprobe.kernels.triton.device_statistics import DeviceStatistics, TensorStatistics
from msprobe.kernels.triton.elements import ELEMENTS
from msprobe.kernels.triton.tensor_statistics import MAX_CHUNKS, plan_chunks, reference_statistics

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning"),  # numpy runs the kernels
]

FLOAT8 = [dtype for dtype in ELEMENTS if dtype.is_floating_point and dtype.itemsize == 1]
INTEGERS = [dtype for dtype in ELEMENTS if ELEMENTS[dtype].family == "integer" and dtype != torch.bool]


def measured(*tensors: torch.Tensor) -> list[TensorStatistics]:
    device = DeviceStatistics(zeros=True)
    found: list[TensorStatistics] = []
    taken = [device.submit(tensor, found.append) for tensor in tensors]
    assert all(taken), (device.failure, device.refused)
    device.flush()
    return found


def assert_equal(found: TensorStatistics, tensor: torch.Tensor) -> None:
    """Extremes and counts are exact; sums are within 2e-6 of the sum of magnitudes."""
    expected = reference_statistics(tensor)
    largest, smallest, total, squares, *counts = found.reduction
    extremes = pytest.approx(expected[:2], rel=1e-15, nan_ok=True) if tensor.is_complex() else expected[:2]
    if counts[0]:
        assert all(math.isnan(value) for value in found.reduction[:4])
    else:
        assert (largest, smallest) == extremes
        magnitude = math.sqrt(expected[3] * tensor.numel())
        tolerance = 2e-6 * magnitude if math.isfinite(magnitude) else 0.0
        assert total == pytest.approx(expected[2], abs=tolerance, nan_ok=True)
        assert squares == pytest.approx(expected[3], rel=2e-6)
    assert tuple(counts) == expected[4:]


def values(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    base = torch.randint(0, 9, shape, generator=generator).float()
    if dtype.is_complex:
        return torch.complex(base - 4, base.flip(0) - 3).to(dtype)
    if dtype.is_floating_point and dtype != torch.float8_e8m0fnu:
        base = base - 4.5
    return base.to(dtype)


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
def test_every_dtype_equals_the_reference(dtype: torch.dtype) -> None:
    tensors = [values(dtype, 6, 11), values(dtype, 1), values(dtype, 37, 3).t()]
    for found, tensor in zip(measured(*tensors), tensors, strict=True):
        assert_equal(found, tensor)


@pytest.mark.parametrize("size", [1023, 1024, 8192, 8193, 16384, 40_000])
def test_tails_tiles_and_several_programs_equal_the_reference(size: int) -> None:
    tensor = torch.randn(size, generator=torch.Generator().manual_seed(size))
    assert_equal(measured(tensor)[0], tensor)


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_every_float8_code_is_decoded_as_torch_does(dtype: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(dtype)
    finite = codes[torch.isfinite(codes.float())]
    singles = [codes[index : index + 1] for index in range(0, 256, 17)]
    for found, tensor in zip(measured(codes, finite, *singles), [codes, finite, *singles], strict=True):
        assert_equal(found, tensor)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_extremes_are_exact(dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    tensor = torch.tensor([limits.max - 1, limits.max, limits.min + 1, limits.min], dtype=dtype)
    found = measured(tensor)[0]
    assert found.reduction[:2] == (limits.max, limits.min)
    assert found.reduction[3] == pytest.approx(reference_statistics(tensor)[3], rel=1e-15)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint16, torch.int32])
def test_sums_of_narrow_integers_are_exact(dtype: torch.dtype) -> None:
    tensor = torch.full((20_000,), torch.iinfo(dtype).max, dtype=dtype)
    largest = torch.iinfo(dtype).max
    found = measured(tensor)[0].reduction
    assert found[2] == largest * 20_000
    assert found[3] == float(largest**2 * 20_000)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.complex128])
@pytest.mark.parametrize("special", [[math.nan, 1.0], [math.inf, -math.inf], [-math.inf, 2.0], [0.0, -0.0], [math.nan]])
def test_special_values_are_counted_and_carried(dtype: torch.dtype, special: list[float]) -> None:
    tensor = torch.tensor([*special, *special], dtype=torch.float64).to(dtype)
    found = measured(tensor)[0].reduction
    expected = reference_statistics(tensor)
    assert found[4:] == expected[4:]
    assert found[:4] == pytest.approx(expected[:4], nan_ok=True)


@pytest.mark.parametrize("place", [0, 9000, 16_383, 19_999])
def test_one_nan_or_infinity_anywhere_is_found(place: int) -> None:
    for value in (math.nan, math.inf):
        tensor = torch.ones(20_000)
        tensor[place] = value
        assert_equal(measured(tensor)[0], tensor)


def test_a_modulus_is_infinite_beside_a_nan_and_never_overflows() -> None:
    infinite = measured(torch.tensor([complex(math.inf, math.nan), complex(1, 2)]))[0].reduction
    assert (infinite[0], infinite[4], infinite[5]) == (math.inf, 0, 1)
    large = measured(torch.tensor([complex(3e300, 4e300)], dtype=torch.complex128))[0]
    assert large.reduction[0] == pytest.approx(5e300, rel=1e-15)
    assert math.sqrt(large.reduction[3]) * large.scale == pytest.approx(5e300, rel=1e-15)


@pytest.mark.parametrize(("dtype", "factor"), [(torch.float32, 1e38), (torch.float32, 1e-38), (torch.bfloat16, 1e-30)])
def test_squares_beyond_float32_are_added_in_float64(dtype: torch.dtype, factor: float) -> None:
    tensor = (torch.tensor([3.0, -2.0, 3.0] * 4000) * factor).to(dtype)
    found = measured(tensor)[0]
    assert found.scale == 1
    assert_equal(found, tensor)


@pytest.mark.parametrize("factor", [1e200, 1e-200, 5e-324])
def test_squares_beyond_float64_are_scaled(factor: float) -> None:
    tensor = torch.tensor([3.0, 4.0], dtype=torch.float64) * factor
    found = measured(tensor)[0]
    assert math.sqrt(found.reduction[3]) * found.scale == pytest.approx(5 * factor, rel=1e-12)
    assert found.reduction[2] * found.scale == pytest.approx(7 * factor, rel=1e-12)


def test_programs_of_different_scale_are_added_right() -> None:
    tensor = torch.zeros(12_288, dtype=torch.float64)  # three programs: zeros, tiny, tiny
    tensor[5000] = 3e-200
    tensor[9000] = 4e-200
    found = measured(tensor)[0]
    assert math.sqrt(found.reduction[3]) * found.scale == pytest.approx(5e-200, rel=1e-12)
    tensor[1] = 1e250
    found = measured(tensor)[0]
    assert math.sqrt(found.reduction[3]) * found.scale == pytest.approx(1e250, rel=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x[:, 3:17],
        lambda x: x.view(2, 20, 30)[:, :, 8:16],
        lambda x: x.t(),
        lambda x: x[::2, ::3][0],
        lambda x: x[:, 5],
        lambda x: x[:1].expand(4, 30),
        lambda x: x.view(-1)[1:],
        lambda x: x.view(-1).unfold(0, 5, 2),
        lambda x: x.view(4, 10, 30).permute(2, 0, 1),
        lambda x: x[0, 0],
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_strided_tensors_are_read_in_place(make: object, dtype: torch.dtype) -> None:
    tensor = make(torch.randn(40, 30, generator=torch.Generator().manual_seed(1)).to(dtype))
    assert_equal(measured(tensor)[0], tensor)


def test_same_values_give_the_same_bits_every_time() -> None:
    tensor = torch.randn(20_000)
    first, second = measured(tensor, tensor.clone())
    assert first == second


def test_zeros_are_counted_only_on_request() -> None:
    device = DeviceStatistics()
    found: list[TensorStatistics] = []
    device.submit(torch.zeros(10), found.append)
    device.flush()
    assert found[0].reduction[6] == 0


def test_chunks_grow_instead_of_multiplying() -> None:
    for numel in (1, 8192, 8193, 1 << 24, (1 << 24) + 1, 1 << 33):
        plan = plan_chunks(numel, ELEMENTS[torch.float32])
        assert plan.count <= MAX_CHUNKS
        assert (plan.count - 1) * plan.size < numel <= plan.count * plan.size
    with pytest.raises(ValueError, match="measure it in parts"):
        plan_chunks(1 << 45, ELEMENTS[torch.float32])


@given(st.lists(st.floats(width=32), min_size=1, max_size=40), st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=20, deadline=None)
def test_any_floats_equal_the_reference(numbers: list[float], dtype: torch.dtype) -> None:
    tensor = torch.tensor(numbers, dtype=dtype)
    assert_equal(measured(tensor)[0], tensor)
