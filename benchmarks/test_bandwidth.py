"""How fast the CPU kernels read memory, beside a copy of the same bytes and ``torch.sum``. One thread.

Run with ``python -m pytest benchmarks/test_bandwidth.py --benchmark-group-by=group``; suite.py runs it with
``--benchmark-json`` and makes the table. Nothing is asserted here but the sizes: goals are in test_kernels_cpu.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from msprobe.kernels import _native
from test_kernels_cpu import CODES, native, tensor_of

SIZES = {"64 KiB": 1 << 16, "1 MiB": 1 << 20, "64 MiB": 1 << 26}


def reader(name: str, size: int) -> Callable[[], object]:
    """What is called: a kernel, or what it is compared with, on `size` bytes."""
    floats = tensor_of(torch.float32, size // 4)
    address = floats.data_ptr()
    if name == "copy of the bytes":
        target = torch.empty_like(floats)
        return lambda: target.copy_(floats)
    if name == "torch.sum":
        return floats.sum
    if name.startswith("statistics"):
        dtype = getattr(torch, name.split()[1])
        assert dtype in CODES
        tensor = tensor_of(dtype, size // dtype.itemsize)
        return lambda: native(tensor)
    if name == "CRC-32 (md5)":
        return lambda: (_native.crc32(address, size), floats)
    if name == "xor":
        return lambda: (_native.xor64(address, size, 1), floats)
    return lambda: (_native.hash64(address, size, (size // 4,), 1), floats)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "name",
    [
        "copy of the bytes",
        "torch.sum",
        "statistics float32",
        "statistics bfloat16",
        "statistics float16",
        "statistics int8",
        "CRC-32 (md5)",
        "xor",
        "hash",
    ],
)
def test_bandwidth(benchmark, name, size):
    benchmark.group = size
    benchmark.extra_info.update(name=name, size=size, bytes=SIZES[size])
    assert benchmark(reader(name, SIZES[size])) is not None
