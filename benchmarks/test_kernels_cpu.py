"""The native CPU kernels against what they replace, in one process, taking turns.

Run with ``python -m pytest benchmarks/test_kernels_cpu.py -s``. Every test times the kernel with pytest-benchmark
(groups hold what is comparable) and then takes turns with its competitor; the ratio is printed, stored
in ``extra_info`` and compared with the ratio promised.
"""

from __future__ import annotations

import statistics
import time
import zlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from msprobe.kernels import _native

CODES = {torch.float32: 6, torch.bfloat16: 15, torch.float16: 5, torch.float64: 7, torch.int8: 1, torch.int32: 3}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tensor_of(dtype: torch.dtype, numel: int) -> torch.Tensor:
    return (torch.randn(numel, generator=torch.Generator().manual_seed(1)) * 30).to(dtype)


def four_operations(tensor: torch.Tensor) -> tuple[float, ...]:
    """What a tool without a fused kernel does; integers have no mean or norm, so they are cast."""
    real = tensor if tensor.dtype.is_floating_point else tensor.float()
    return tensor.max().item(), tensor.min().item(), real.mean().item(), torch.norm(real).item()


def native(tensor: torch.Tensor) -> tuple[float, ...]:
    return _native.stats(tensor.data_ptr(), tensor.numel(), CODES[tensor.dtype], 1)


def ratio(
    ours: Callable[[], object],
    theirs: Callable[[], object],
    seconds: float = 0.4,
    typical: Callable[[list[float]], float] = statistics.median,
) -> float:
    """Typical time of `theirs` over that of `ours`, in turns of about a millisecond."""
    samples: tuple[list[float], list[float]] = ([], [])
    start = time.perf_counter()
    theirs()
    repeats = max(1, int(1e-3 / max(time.perf_counter() - start, 1e-7)))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples[0]) < 9:
        for function, times in zip((ours, theirs), samples, strict=True):
            start = time.perf_counter()
            for _ in range(repeats):
                function()
            times.append(time.perf_counter() - start)
    return typical(samples[1]) / typical(samples[0])


def check(benchmark, name: str, found: float, promised: float) -> None:
    benchmark.extra_info["ratio"] = found
    print(f"\n{name}: {found:.2f}x (promised {promised}x)")
    assert found >= promised


@pytest.mark.benchmark(group="max, min, mean, norm")
@pytest.mark.parametrize(
    ("dtype", "numel", "promised"),
    [
        (torch.float32, 64, 10),
        (torch.float32, 1 << 14, 6),
        (torch.float32, 1 << 18, 4),
        (torch.float32, 1 << 22, 3.5),
        (torch.bfloat16, 64, 10),
        (torch.bfloat16, 1 << 18, 3),
        (torch.bfloat16, 1 << 22, 6),
        (torch.float16, 1 << 18, 3),
        (torch.float16, 1 << 22, 6),
        (torch.float64, 1 << 18, 3),
        (torch.int8, 1 << 18, 6),
        (torch.int32, 1 << 18, 2),
    ],
    ids=str,
)
def test_statistics_against_four_operations(benchmark, dtype, numel, promised):
    tensor = tensor_of(dtype, numel)
    benchmark(native, tensor)
    found = ratio(lambda: native(tensor), lambda: four_operations(tensor))
    check(benchmark, f"{dtype} {numel} against four operations", found, promised)


@pytest.mark.benchmark(group="one pass over float32")
def test_statistics_against_one_sum(benchmark):
    tensor = tensor_of(torch.float32, 1 << 22)
    benchmark(native, tensor)
    check(benchmark, "float32 4M against torch.sum", ratio(lambda: native(tensor), tensor.sum), 1 / 1.6)


@pytest.mark.benchmark(group="int8 extremes")
@pytest.mark.parametrize(("numel", "promised"), [(64, 1), (1 << 14, 1), (1 << 18, 0.7), (1 << 26, 0.7)])
def test_int8_statistics_against_aminmax(benchmark, numel, promised):
    tensor = torch.randint(-128, 128, (numel,), dtype=torch.int8)
    benchmark(native, tensor)
    found = ratio(lambda: native(tensor), lambda: torch.aminmax(tensor))
    check(benchmark, f"int8 {numel} against torch.aminmax", found, promised)


@pytest.mark.benchmark(group="checksums of 1 MiB")
def test_crc32_against_zlib(benchmark):
    data = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)
    benchmark(_native.crc32, data.ctypes.data, data.size)
    address = data.ctypes.data
    found = ratio(lambda: _native.crc32(address, data.size), lambda: zlib.crc32(data))
    check(benchmark, "CRC-32 of 1 MiB against zlib", found, 5)


@pytest.mark.benchmark(group="checksums of 1 MiB")
@pytest.mark.parametrize("name", ["xor64", "hash64"])
def test_word_checksums_against_zlib(benchmark, name):
    data = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)
    shape = ((data.size,),) if name == "hash64" else ()
    arguments = (data.ctypes.data, data.size, *shape, 1)
    benchmark(getattr(_native, name), *arguments)
    found = ratio(lambda: getattr(_native, name)(*arguments), lambda: zlib.crc32(data))
    check(benchmark, f"{name} of 1 MiB against zlib.crc32", found, 3)


@pytest.mark.benchmark(group="64 MiB")
@pytest.mark.parametrize(("dtype", "promised"), [(torch.float32, 1.2), (torch.bfloat16, 1.6)], ids=str)
def test_two_threads_against_one(benchmark, dtype, promised):
    """Best times, for a machine with neighbours. One thread already uses more than half of the memory's speed."""
    tensor = tensor_of(dtype, (64 << 20) // dtype.itemsize)
    torch.set_num_threads(2)
    place = (tensor.data_ptr(), tensor.numel(), CODES[dtype])
    benchmark(_native.stats, *place, 2)
    found = ratio(lambda: _native.stats(*place, 2), lambda: _native.stats(*place, 1), seconds=2, typical=min)
    check(benchmark, f"two threads against one, {dtype} 64 MiB", found, promised)


@pytest.mark.benchmark(group="transposed 2048 x 2048 of a wider matrix")
def test_strided_statistics_against_a_copy(benchmark):
    tensor = torch.randn(2048, 4096)[:, :2048].t()
    ordered = tensor.t()
    place = (ordered.data_ptr(), tuple(ordered.shape), ordered.stride(), 6, 1)
    benchmark(_native.stats_strided, *place)
    found = ratio(lambda: _native.stats_strided(*place), lambda: native(tensor.contiguous()))
    check(benchmark, "strided float32 against contiguous() and statistics", found, 2)
