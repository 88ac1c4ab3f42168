"""Wrong arguments to the native kernels raise an exception that names function, argument and value."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest
from msprobe.kernels import _native

DATA = np.ones(16, np.float32)
PTR = DATA.ctypes.data

WRONG = [
    (_native.stats, (PTR, 16, 6), TypeError, r"stats\(\) takes 4 to 4 positional arguments, got 3"),
    (_native.stats, (PTR, 0, 6, 1), ValueError, "without elements"),
    (_native.stats, (PTR, -1, 6, 1), ValueError, "numel must be >= 0, got -1"),
    (_native.stats, (PTR, 16, 99, 1), ValueError, "no kernel for dtype_code 99"),
    (_native.stats, (PTR, 16, 6, -2), ValueError, "threads must be >= 0, got -2"),
    (_native.stats, (0, 16, 6, 1), ValueError, "ptr is null for 64 bytes"),
    (_native.stats, ("x", 16, 6, 1), TypeError, "ptr must be an address as an integer, got 'x'"),
    (_native.stats, (PTR, 2.5, 6, 1), TypeError, "numel must be a 64-bit integer, got 2.5"),
    (_native.stats, (PTR, 2**70, 6, 1), OverflowError, "numel must be a 64-bit integer"),
    (_native.stats_strided, (PTR, (4, 4), (4,), 6, 1), ValueError, "2 sizes but 1 strides"),
    (_native.stats_strided, (PTR, (4, -4), (4, 1), 6, 1), ValueError, r"sizes must not be negative, got \(4, -4\)"),
    (_native.stats_strided, (PTR, [4, 4], (4, 1), 6, 1), TypeError, "sizes must be a tuple of at most 64 integers"),
    (_native.stats_strided, (PTR, (1,) * 65, (1,) * 65, 6, 1), TypeError, "at most 64 integers"),
    (_native.stats_strided, (PTR, (4, "a"), (4, 1), 6, 1), TypeError, "sizes must hold 64-bit integers"),
    (_native.stats_strided, (PTR, (4, 0), (4, 1), 6, 1), ValueError, "without elements"),
    (_native.stats_batch, (((PTR, 16, 6),), 1), TypeError, "tensors must be a list"),
    (_native.stats_batch, ([(PTR, 16)], 1), TypeError, r"each entry must be a tuple \(ptr, numel, dtype_code\)"),
    (_native.stats_batch, ([(PTR, 16, 6), (PTR, 16, 12)], 1), ValueError, "no kernel for dtype_code 12"),
    (_native.crc32, (PTR,), TypeError, r"crc32\(\) takes 2 to 3"),
    (_native.crc32, (PTR, -4), ValueError, "nbytes must be >= 0"),
    (_native.crc32, (PTR, 4, 2**32), ValueError, r"init must be a CRC-32 below 2\*\*32, got 4294967296"),
    (_native.xor64, (0, 8, 1), ValueError, "ptr is null for 8 bytes"),
    (_native.hash64, (PTR, 8, 3, 1), TypeError, "shape must be a tuple"),
    (_native.crc32_strided, (PTR, (4,), (1,), 3), ValueError, "itemsize must be 1, 2, 4, 8 or 16 bytes, got 3"),
    (_native.find_nonfinite, (PTR, 16, -1), ValueError, "no kernel for dtype_code -1"),
]


@pytest.mark.parametrize(("function", "arguments", "error", "message"), WRONG)
def test_wrong_arguments_are_named(function, arguments, error, message):
    with pytest.raises(error, match=message):
        function(*arguments)


def test_empty_content_has_checksums_even_without_an_address():
    assert _native.crc32(0, 0) == 0
    assert _native.xor64(0, 0, 1) == 0
    assert _native.hash64_strided(0, (3, 0), (0, 1), 4, 1) == _native.hash64(0, 0, (3, 0), 1)
    assert _native.find_nonfinite(0, 0, 6) is False


def test_calls_do_not_leak_references():
    array = np.ones((4, 4), np.float32)
    sizes, strides, entries = (4, 4), (1, 4), [(array.ctypes.data, 16, 6)]
    counts = [sys.getrefcount(value) for value in (sizes, strides, entries, entries[0])]
    for _ in range(100):
        _native.stats_strided(array.ctypes.data, sizes, strides, 6, 1)
        _native.stats_batch(entries, 1)
        _native.hash64(array.ctypes.data, 64, sizes, 1)
        with pytest.raises(ValueError, match="dtype_code"):
            _native.stats_strided(array.ctypes.data, sizes, strides, 99, 1)
    assert [sys.getrefcount(value) for value in (sizes, strides, entries, entries[0])] == counts


def test_the_interpreter_runs_on_while_a_large_tensor_is_read():
    """Several threads measure at once; every one gets the same result."""
    array = np.random.default_rng(0).standard_normal(1 << 20)
    expected = _native.stats(array.ctypes.data, array.size, 7, 1)
    found: list[tuple[float, ...]] = []

    def measure() -> None:
        found.extend(_native.stats(array.ctypes.data, array.size, 7, 2) for _ in range(5))

    threads = [threading.Thread(target=measure) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 20


@pytest.mark.parametrize("used_by", ["measure()[2]", "x.sum()"])
def test_a_forked_process_does_not_wait_for_threads_it_has_not(used_by):
    """The OpenMP pool that the parent (its kernels or its framework) has used is dead in the child."""
    script = (
        "import os, torch\n"
        "from msprobe.kernels import _native\n"
        "torch.set_num_threads(2)\n"
        "x = torch.ones(1 << 20)\n"
        "measure = lambda: _native.stats(x.data_ptr(), x.numel(), 6, 2)\n"
        f"assert {used_by} == 1 << 20\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0 if measure()[2] == 1 << 20 else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
