"""Every instruction set that this processor has gives the same bits, whichever the kernels choose."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from functools import cache

import pytest
from msprobe.kernels import _native

SCRIPT = """
import json, zlib
import numpy as np
from msprobe.kernels import _native
rng = np.random.default_rng(11)
found = []
for code, width in [(0,1),(1,1),(2,2),(3,4),(4,8),(5,2),(6,4),(7,8),(8,4),(9,8),(10,16),(11,1),(15,2),
                    (23,1),(24,1),(25,1),(26,1),(27,2),(28,4),(29,8),(44,1)]:
    for numel in (1, 15, 16, 255, 256, 300, 4096, 9001, *((65280, 150000) if width == 1 else ())):
        raw = rng.integers(0, 256, numel * width, dtype=np.uint8)
        for data in (raw, raw & 0x3f):
            found.append(repr(_native.stats(data.ctypes.data, numel, code, 1)))
            found.append(_native.find_nonfinite(data.ctypes.data, numel, code))
normal = rng.standard_normal(9001)
for values, code in [(normal, 7), (normal.astype(np.float32), 6), (normal.astype(np.float16), 5)]:
    found.append(repr(_native.stats(values.ctypes.data, 9001, code, 1)))
for size in (0, 7, 63, 64, 65, 255, 256, 257, 1000, 70001):
    data = rng.integers(0, 256, size, dtype=np.uint8)
    assert _native.crc32(data.ctypes.data, size) == zlib.crc32(data)
    found.append([_native.xor64(data.ctypes.data, size, 1), _native.hash64(data.ctypes.data, size, (size,), 1)])
print(json.dumps([_native.isa(), found]))
"""
LEVELS = ("baseline", "avx2", "avx512")


@cache
def results(level: str) -> tuple[str, list[object]]:
    environment = {**os.environ, "MSPROBE_ISA": level}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    isa, found = json.loads(done.stdout)
    return isa, found


def test_instruction_sets_give_the_same_bits():
    by_isa = dict(results(level) for level in LEVELS)
    expected = next(iter(by_isa.values()))
    assert len(expected) > 500
    assert all(found == expected for found in by_isa.values())


def test_the_chosen_instruction_set_is_named():
    assert _native.isa() in ("avx512", "avx2", "baseline", "portable")
    if platform.machine() == "x86_64":
        assert results("baseline")[0] == "baseline"


@pytest.mark.parametrize("level", LEVELS)
def test_a_lower_instruction_set_can_be_asked_for(level):
    order = ("portable", "baseline", "avx2", "avx512")
    assert order.index(results(level)[0]) <= order.index(level)
