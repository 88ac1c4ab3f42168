"""statistics(): right for every dtype, shape and stride, in both precisions."""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.measure import Statistics, statistics
from msprobe.measure.backends import native_module
from msprobe.measure.chunks import memory_layout
from msprobe.measure.cpu import reduce_cpu
from msprobe.measure.dtypes import DTYPES
from msprobe.measure.reductions import reduce_tensor

FLOATS = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e5m2,
    torch.float8_e4m3fn,
    torch.float8_e5m2fnuz,
    torch.float8_e4m3fnuz,
]
INTS = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]


def wide(tensor: torch.Tensor) -> np.ndarray:
    """float64 values by the plainest route: one number at a time for what numpy does not know."""
    if tensor.is_complex():
        return tensor.to(torch.complex128).abs().numpy()
    return tensor.to(torch.float64).numpy()


def check(tensor: torch.Tensor) -> None:
    found = statistics(tensor, "high")
    values = wide(tensor)
    assert found.reason is None
    assert found.max == values.max()
    assert found.min == values.min()
    scale = np.abs(values).max() + 1e-300
    assert found.mean == pytest.approx(values.mean(), rel=2e-6, abs=1e-12 * scale)
    assert found.norm == pytest.approx(np.linalg.norm(values.reshape(-1)), rel=2e-6)
    assert (found.nan, found.inf, found.zero) == (0, 0, int((values == 0).sum()))


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX, *INTS], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4, 5)], ids=str)
def test_every_dtype_and_shape_equals_the_float64_reference(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    if dtype in INTS:
        tensor = torch.randint(0, 100, shape).to(dtype)
    else:
        tensor = torch.randn(shape, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(dtype)
    check(tensor)


@pytest.mark.parametrize(
    "make",
    [
        lambda t: t.t(),
        lambda t: t[:, ::3],
        lambda t: t[5:, 7:-2],
        lambda t: t.unsqueeze(1).expand(-1, 4, -1),
        lambda t: t.as_strided((50, 8), (3, 1)),
        lambda t: t.view(20, 10, 10).permute(2, 0, 1),
        lambda t: t[3],
        lambda t: t[:, 4],
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64], ids=str)
def test_any_strides_give_the_statistics_of_the_logical_elements(make, dtype: torch.dtype) -> None:
    base = torch.arange(2000).reshape(20, 100).remainder(37).sub(11).to(dtype)
    check(make(base))


def test_a_tensor_of_many_chunks_is_folded_right() -> None:
    tensor = torch.randn(300, 1111)
    check(tensor)
    check(tensor.t())
    check(tensor[:, ::2])
    check(tensor.double()[::3, 1:])


def test_an_expanded_scalar_of_a_billion_elements_is_read_once() -> None:
    found = statistics(torch.tensor(2.0).expand(1000, 1000, 1000), "high")
    assert (found.max, found.min, found.mean) == (2.0, 2.0, 2.0)
    assert found.norm == pytest.approx(2.0 * math.sqrt(1e9))


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (torch.uint64, [2**64 - 1, 2**63 + 1, 7]),
        (torch.int64, [2**53 + 1, -(2**63), 2**63 - 1]),
        (torch.uint32, [2**32 - 1, 0]),
        (torch.uint16, [2**16 - 1, 1]),
    ],
    ids=str,
)
def test_integer_extremes_are_exact_beyond_two_to_the_53(dtype: torch.dtype, values: list[int]) -> None:
    found = statistics(torch.tensor(values, dtype=dtype))
    assert (found.max, found.min) == (max(values), min(values))
    assert type(found.max) is int
    assert found.mean == pytest.approx(sum(values) / len(values), rel=1e-9, abs=1e4)


def test_bool_gives_booleans_and_the_fraction_of_true() -> None:
    found = statistics(torch.tensor([True, False, True, True]))
    assert found.max is True
    assert found.min is False
    assert (found.mean, found.norm, found.zero) == (0.75, pytest.approx(math.sqrt(3)), 1)
    assert statistics(torch.zeros(3, dtype=torch.bool)).max is False
    assert statistics(torch.ones(3, dtype=torch.bool)).min is True


def test_a_negative_scalar_has_a_positive_norm() -> None:
    assert statistics(torch.tensor(-0.5)) == Statistics(-0.5, -0.5, -0.5, 0.5)
    assert statistics(torch.tensor(-3)).norm == 3.0


def test_one_nan_makes_all_four_nan_and_is_counted() -> None:
    tensor = torch.arange(200_000, dtype=torch.float32)
    tensor[7] = math.nan
    tensor[150_000] = math.nan
    tensor[9] = math.inf
    found = statistics(tensor)
    assert all(math.isnan(v) for v in (found.max, found.min, found.mean, found.norm))
    assert (found.nan, found.inf, found.zero) == (2, 1, 1)


def test_infinities_follow_ieee() -> None:
    found = statistics(torch.tensor([1.0, math.inf, 2.0]))
    assert (found.max, found.min, found.mean, found.norm, found.inf) == (math.inf, 1.0, math.inf, math.inf, 1)
    both = statistics(torch.tensor([math.inf, -math.inf]))
    assert (both.max, both.min, both.norm, both.inf) == (math.inf, -math.inf, math.inf, 2)
    assert math.isnan(both.mean)


def test_low_precision_rounds_to_the_tensors_dtype_and_may_overflow() -> None:
    tensor = torch.full((9,), 60000.0, dtype=torch.float16)
    assert statistics(tensor, "low").norm == math.inf
    assert statistics(tensor, "high").norm == pytest.approx(180000.0 * (59999.0 + 1) / 60000.0, rel=1e-3)
    third = torch.tensor([1.0, 0.0, 0.0])
    assert statistics(third, "low").mean == torch.tensor(1 / 3).item()
    assert statistics(third, "high").mean == 1 / 3
    assert statistics(third.bfloat16(), "low").mean == torch.tensor(1 / 3).bfloat16().item()


@pytest.mark.parametrize("factor", [1e200, 1e308, 1e-200, 5e-324])
def test_norm_and_mean_of_extreme_float64_neither_overflow_nor_vanish(factor: float) -> None:
    tensor = torch.tensor([factor, factor, 0.0, factor], dtype=torch.float64)
    found = statistics(tensor)
    assert found.norm == pytest.approx(factor * math.sqrt(3), rel=1e-9, abs=5e-324)
    assert found.mean == pytest.approx(0.75 * factor, rel=1e-9, abs=5e-324)


def test_float32_near_its_maximum_keeps_a_finite_mean() -> None:
    tensor = torch.full((100_000,), 3e38)
    assert statistics(tensor).mean == pytest.approx(3e38, rel=1e-6)
    assert statistics(tensor, "high").norm == pytest.approx(3e38 * math.sqrt(1e5), rel=1e-6)


def test_every_bit_pattern_of_the_narrow_floats_is_decoded() -> None:
    for dtype in [*FLOATS[4:], torch.float8_e8m0fnu]:
        for byte in range(256):
            tensor = torch.tensor([byte], dtype=torch.uint8).view(dtype)
            expected = tensor.float().item()
            found = statistics(tensor, "high")
            assert found.max == expected or math.isnan(found.max) == math.isnan(expected), (dtype, byte)
            assert found.nan == math.isnan(expected)
            assert found.inf == math.isinf(expected)


def test_packed_float4_is_decoded_two_numbers_a_byte() -> None:
    tensor = torch.tensor([0x72, 0x9F], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    found = statistics(tensor, "high")
    values = [1.0, 6.0, -6.0, -0.5]
    assert (found.max, found.min, found.mean) == (6.0, -6.0, sum(values) / 4)
    assert found.norm == pytest.approx(math.sqrt(sum(v * v for v in values)))


@pytest.mark.parametrize("dtype", [torch.bits8, torch.bits16, torch.int4, torch.uint3], ids=str)
def test_bits_without_meaning_are_null_with_a_reason(dtype: torch.dtype) -> None:
    found = statistics(torch.zeros(16, dtype=torch.uint8).view(dtype))
    assert found.max is None
    assert "without arithmetic meaning" in found.reason


@pytest.mark.parametrize("array_dtype", ["float16", "float32", "float64", "int8", "uint64", "bool", "complex64", ">f4"])
@pytest.mark.parametrize("make", [lambda a: a, lambda a: a[::-1], lambda a: a.reshape(20, 50).T, lambda a: a[::7]])
def test_numpy_arrays_have_the_same_statistics(array_dtype: str, make) -> None:
    array = make((np.arange(1000) % 17).astype(array_dtype))
    found = statistics(array, "high")
    values = np.abs(array).astype(np.float64)
    assert (found.max, found.min, found.zero) == (values.max(), values.min(), int((values == 0).sum()))
    assert found.mean == pytest.approx(values.mean())
    assert found.norm == pytest.approx(np.linalg.norm(values.reshape(-1)))


def test_arrays_without_numbers_give_a_reason() -> None:
    assert "no numbers" in statistics(np.array(["a", "b"])).reason
    assert statistics(np.empty(0)).reason == "empty array"


@pytest.mark.parametrize("bad", [3, "text", None, [1.0]])
def test_statistics_of_something_else_is_a_type_error(bad: object) -> None:
    with pytest.raises(TypeError, match="give a torch tensor or a numpy array"):
        statistics(bad)


def test_an_unknown_precision_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="'low' or 'high'"):
        statistics(torch.ones(2), "medium")


@st.composite
def strided_tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64, *INTS]))
    shape = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    if dtype in INTS:
        tensor = torch.randint(0, 127, shape, generator=generator).to(dtype)
    else:
        tensor = torch.randn(shape, generator=generator).mul(10.0 ** draw(st.integers(-4, 4))).to(dtype)
        for _ in range(draw(st.integers(0, 2))):
            value = draw(st.sampled_from([math.nan, math.inf, -math.inf, 0.0]))
            tensor.view(-1)[draw(st.integers(0, tensor.numel() - 1))] = value
    for dim, size in enumerate(tensor.shape):
        step = draw(st.integers(1, 3))
        tensor = tensor.narrow(dim, 0, draw(st.integers(1, size)))
        tensor = tensor[(slice(None),) * dim + (slice(None, None, step),)]
    return tensor.permute(draw(st.permutations(range(tensor.dim()))))


@given(strided_tensors())
@settings(max_examples=150, deadline=None)
def test_random_dtypes_strides_and_specials_equal_the_reference(tensor: torch.Tensor) -> None:
    found = statistics(tensor, "high")
    values = wide(tensor)
    finite = np.isfinite(values).all()
    assert (found.nan, found.inf) == (int(np.isnan(values).sum()), int(np.isinf(values).sum()))
    assert found.zero == int((values == 0).sum())
    with np.errstate(all="ignore"):
        expected = [values.max(), values.min(), values.mean(), np.sqrt((values.astype(np.longdouble) ** 2).sum())]
    tolerance = 1e-9 * float(np.abs(values).max()) if finite else 0.0
    for result, reference in zip([found.max, found.min, found.mean, found.norm], expected, strict=True):
        assert result == pytest.approx(float(reference), rel=2e-6, abs=tolerance, nan_ok=True)


@given(strided_tensors(), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_the_layout_in_memory_order_has_the_same_elements(tensor: torch.Tensor, copies: int) -> None:
    tensor = tensor.unsqueeze(-1).expand(*tensor.shape, copies)
    sizes, strides, repeats = memory_layout(tensor.shape, tensor.stride())
    plain = torch.as_strided(tensor, sizes, strides)
    assert plain.numel() * repeats == tensor.numel()
    values = plain.double().reshape(-1).repeat(repeats)
    assert torch.equal(values.sort().values.nan_to_num(), tensor.double().reshape(-1).sort().values.nan_to_num())


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((4, 5), (5, 1), ((20,), (1,), 1)),
        ((5, 4), (1, 5), ((20,), (1,), 1)),
        ((4, 5), (10, 2), ((20,), (2,), 1)),
        ((4, 5), (20, 2), ((4, 5), (20, 2), 1)),
        ((3, 4, 5), (0, 5, 1), ((20,), (1,), 3)),
        ((), (), ((1,), (1,), 1)),
        ((1, 1), (7, 9), ((1,), (1,), 1)),
        ((2, 1, 3), (3, 50, 1), ((6,), (1,), 1)),
    ],
)
def test_adjacent_dimensions_become_one(shape: tuple, strides: tuple, expected: tuple) -> None:
    assert memory_layout(shape, strides) == expected


@given(strided_tensors())
@settings(max_examples=100, deadline=None)
def test_the_kernel_in_use_equals_the_torch_reference(tensor: torch.Tensor) -> None:
    info = DTYPES[tensor.dtype]
    found, reference = reduce_cpu(tensor, info), reduce_tensor(tensor, info)
    assert found[4:] == reference[4:]
    for result, expected in zip(found[:4], reference[:4], strict=True):
        scale = math.sqrt(reference[3]) if math.isfinite(reference[3]) else 1.0
        assert result == pytest.approx(expected, rel=2e-6, abs=1e-6 * scale, nan_ok=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_a_large_strided_tensor_is_measured_without_a_copy(dtype: torch.dtype) -> None:
    base = torch.empty(4096, 8192, dtype=dtype).fill_(1.0)
    view = base[:, ::2].t()
    statistics(view[:10, :10])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert statistics(view).mean == 1.0
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 8 * 1024, f"peak memory grew by {grown} KiB while reading {view.numel() * view.itemsize >> 20} MiB"


def test_backend_names_what_measures() -> None:
    from msprobe.measure import backend
    from msprobe.measure.backends import counts

    assert backend("cpu") == ("torch" if native_module() is None else "native")
    assert backend("cuda:0") == "torch"
    before = counts()
    statistics(torch.ones(3))
    after = counts()
    assert after[backend("cpu")] == before[backend("cpu")] + 1


def test_a_fallback_is_counted_with_its_reason() -> None:
    """For tensors of the CPU and for those that take the way of an accelerator."""
    program = (
        "import torch; from msprobe.measure.backends import counts; from msprobe.measure.encode import ValueEncoder\n"
        "ValueEncoder().encode(torch.ones(3)); encoder = ValueEncoder(immediate=(), summary_mode='md5')\n"
        "encoder.encode(torch.ones(3)); encoder.resolve(); import json; print(json.dumps(counts()))"
    )
    environment = {**os.environ, "MSPROBE_NO_NATIVE": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert (found["native"], found["torch"]) == (0, 1)
    assert found["cpu (deferred)"] == {"torch statistics": 1, "torch md5": 1}
    assert "MSPROBE_NO_NATIVE=1" in " ".join(found["fallbacks"]["cpu"])
    assert sum(found["fallbacks"]["cpu"].values()) == 3
