"""Checksum kernels and the NaN/Inf probe equal their references on any bytes, at any address."""

from __future__ import annotations

import math
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msprobe.kernels.triton.crc32 import join_crc32, launch_crc32, power_of_x, reference_crc32
from msprobe.kernels.triton.device_statistics import DeviceStatistics
from msprobe.kernels.triton.hash64 import reference_hash64
from msprobe.kernels.triton.nonfinite import BIT_TESTS, reference_nonfinite
from msprobe.kernels.triton.xor64 import reference_xor64

from msprobe.measure.checksums import checksum_cpu

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


def noise(size: int, offset: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randint(0, 256, (size + offset,), dtype=torch.uint8, generator=generator)[offset:]


def checksums(tensor: torch.Tensor) -> tuple[int, ...]:
    device = DeviceStatistics()
    found: list[int] = []
    assert all([device.submit_checksum(mode, tensor, found.append) for mode in ("xor", "hash", "crc32")])  # noqa: C419
    device.flush()
    return tuple(found)


def probed(tensors: list[torch.Tensor]) -> list[int]:
    device = DeviceStatistics()
    found: list[int] = []
    assert all([device.submit_probe(tensor, found.append) for tensor in tensors])  # noqa: C419
    device.flush()
    return found


def references(tensor: torch.Tensor) -> tuple[int, ...]:
    content = tensor.contiguous().numpy().tobytes()
    return reference_xor64(content), reference_hash64(content, tensor.shape), reference_crc32(content)


@pytest.mark.parametrize("size", [1, 3, 4, 8, 9, 100, 4096, 4097, 65_536])
def test_any_size_equals_the_references(size: int) -> None:
    assert checksums(noise(size)) == references(noise(size))


@pytest.mark.parametrize(("offset", "size"), [(1, 70_001), (2, 5001), (4, 5001), (8, 70_001)])
def test_any_address_equals_the_references(offset: int, size: int) -> None:
    tensor = noise(size, offset)
    assert checksums(tensor) == references(tensor)


@given(st.binary(min_size=1, max_size=200), st.integers(0, 7))
@settings(max_examples=8, deadline=None)
def test_any_bytes_equal_the_references(content: bytes, offset: int) -> None:
    tensor = torch.frombuffer(bytearray(bytes(offset) + content), dtype=torch.uint8)[offset:]
    assert checksums(tensor) == references(tensor)


def test_strided_and_conjugated_tensors_are_read_in_logical_order() -> None:
    for tensor in (torch.randn(7, 9).t(), torch.randn(6, 8)[:, ::3], torch.randn(5, dtype=torch.complex64).conj()):
        found = checksums(tensor)
        assert f"0x{found[0]:016x}" == checksum_cpu("xor", (tensor,))
        assert f"0x{found[1]:016x}" == checksum_cpu("hash", (tensor,))
        assert f"{found[2]:08x}" == checksum_cpu("md5", (tensor,))


def test_an_empty_tensor_has_checksums_without_a_kernel() -> None:
    found = checksums(torch.empty(0, 3))
    assert found == (0, reference_hash64(b"", (0, 3)), 0)


def test_checksums_tell_what_they_are_meant_to_tell_apart() -> None:
    tensor = torch.randn(4, 6)
    different = [tensor, tensor.flip(0), -tensor, torch.zeros(4, 6), torch.ones(4, 6), tensor.view(6, 4)]
    assert len({checksums(item)[1] for item in different}) == len(different)


def test_crcs_of_parts_are_joined() -> None:
    first, second = b"abc" * 11, b"z" * 70
    assert join_crc32(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


def test_powers_have_inverses() -> None:
    assert power_of_x(0) == 0x80000000
    assert power_of_x(-1) == power_of_x(2**32 - 2)
    assert power_of_x(31) == 1


def test_a_content_beyond_the_tables_of_the_crc_is_refused() -> None:
    large = torch.zeros(1, dtype=torch.uint8).expand(1 << 35)
    device = DeviceStatistics()
    assert not device.submit_checksum("crc32", large, print)
    assert not device.submit_checksum("hash", large, print)
    assert len(device.refused) == 2
    with pytest.raises(ValueError, match="copy the tensor to the host"):
        launch_crc32(large, powers=large, rows=large, row=0)


@pytest.mark.parametrize("dtype", BIT_TESTS, ids=str)
def test_the_probe_finds_what_isfinite_finds(dtype: torch.dtype) -> None:
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(dtype.itemsize)
    tensors = [torch.ones(70).to(dtype), torch.tensor([*[1.0] * 69, math.nan]).to(dtype)]
    if dtype not in (torch.float8_e4m3fn, torch.float8_e8m0fnu):
        tensors.append(torch.tensor([-math.inf, 0.0]).to(dtype))
    if bits == torch.uint8:
        tensors += list(torch.arange(0, 256, 5, dtype=bits).view(dtype).split(1))
    assert probed(tensors) == [reference_nonfinite(tensor) for tensor in tensors]


def test_the_probe_reads_rows_and_knows_that_integers_are_finite() -> None:
    outside, inside = torch.ones(50, 40), torch.ones(50, 40)
    outside[:, 30] = math.nan
    inside[41, 17] = math.inf
    tensors = [outside[:, 4:20], inside[:, 4:20], torch.arange(5), torch.empty(0), torch.full((9000,), math.nan)]
    assert probed(tensors) == [0, 1, 0, 0, 1]
