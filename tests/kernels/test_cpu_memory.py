"""Reading a tensor takes no memory that grows with it, whatever its dtype and layout.

Each lane is one process that holds one buffer, of which every tensor is a view. The peak of its resident memory is set
back before each measurement. The last measurement is of a copy, so a meter that sees nothing fails the test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

METER = """
import itertools, json, re, warnings
warnings.simplefilter("ignore")
import numpy as np
buffer = np.random.default_rng(5).integers(0, 256, 2 * CONTENT, dtype=np.uint8)
bits = buffer & 1
rows = []

def resident(field):
    return 1024 * int(re.search(field + r":\\s+(\\d+)", open("/proc/self/status").read())[1])

def watch(name, function, warm, value):
    function(warm)
    with open("/proc/self/clear_refs", "w") as control:
        control.write("5")  # the peak becomes what is resident now
    before = resident("VmRSS")
    function(value)
    rows.append((name, resident("VmHWM") - before))
"""

TORCH = """
import torch
from msprobe.measure import statistics
from msprobe.measure.checksums import checksum_cpu
from msprobe.measure.quiet import Quiet

def checksum(mode):
    def run(tensor):
        with Quiet():
            return checksum_cpu(mode, (tensor,))
    return run

READERS = {"statistics": statistics, **{mode: checksum(mode) for mode in ("md5", "xor", "hash")}}
base, flags = torch.from_numpy(buffer), torch.from_numpy(bits)

def layouts(flat, n):
    yield "contiguous", flat[:n]
    yield "transposed", flat[:n].view(256, -1).t()
    yield "permuted", flat[:n].view(16, 64, -1).permute(2, 0, 1)
    yield "every second", flat[: 2 * n].view(-1, 64)[:, ::2]
    yield "part of rows", flat[: 2 * n].view(256, -1)[:, : n // 256]
    yield "rows repeated", flat[: n // 16].expand(16, -1)
    yield "elements repeated", flat[: n // 16, None].expand(-1, 16)

def pending(flat, n):
    if flat.dtype is torch.float32:
        yield "negative bit", torch._neg_view(flat[:n])
        yield "negative bit, transposed", torch._neg_view(flat[:n].view(256, -1).t())
    if flat.dtype is torch.complex64:
        yield "conjugate bit", flat[:n].conj()
        yield "conjugate bit, transposed", flat[:n].view(256, -1).t().conj()
        yield "imaginary part of a conjugate", flat[: n].conj().imag

for dtype in DTYPES:
    flat = (flags if dtype == "bool" else base).view(getattr(torch, dtype))
    for (layout, tensor), reader in itertools.product(LAYOUTS(flat, CONTENT // flat.itemsize), READERS):
        watch(f"{dtype} {layout}: {reader}", READERS[reader], tensor[:70], tensor)
watch("a copy", torch.clone, base[:5], base[:CONTENT])
print(json.dumps(rows))
"""

ARRAYS = """
from msprobe.kernels.cpu import bindings, reference
READERS = [bindings.stats_array, bindings.crc32_array, bindings.xor64_array, bindings.hash64_array]
for name in reference.DTYPE_CODES:
    if not hasattr(np, name) and name != "bool":
        continue
    dtype = np.dtype(name)
    flat = (bits if name == "bool" else buffer).view(dtype)
    square = flat[: CONTENT // dtype.itemsize].reshape(256, -1)
    views = {
        "backwards": flat[CONTENT // dtype.itemsize - 1 :: -1],
        "rows backwards": square[::-1],
        "both backwards": square[::-1, ::-1],
        "columns backwards, transposed": square[:, ::-1].T,
        "every second backwards": flat[: 2 * CONTENT // dtype.itemsize][::-2],
    }
    for (layout, array), function in itertools.product(views.items(), READERS):
        watch(f"{name} {layout}: {function.__name__}", function, array[:70], array)
watch("a copy", np.copy, buffer[:5], buffer[:CONTENT])
print(json.dumps(rows))
"""

DTYPES = (
    "uint8 int8 int16 int32 int64 uint16 uint32 uint64 bool float16 bfloat16 float32 float64 complex32 complex64 "
    "complex128 float8_e5m2 float8_e4m3fn float8_e5m2fnuz float8_e4m3fnuz float8_e8m0fnu"
)
#: Name of a lane: script, functions that give its layouts, dtypes, MiB of a tensor, MiB that reading may take. The
#: native kernels take a buffer of 64 KiB a thread, torch's operations temporaries for 2**16 elements.
LANES = {
    "native": (TORCH, "layouts", DTYPES, 2, 0.75),
    "arrays": (ARRAYS, "views", "all of numpy", 2, 0.75),
    "pending bits": (TORCH, "pending", "float32 complex64", 12, 9),
    "without native kernels": (TORCH, "layouts", "int64 complex64", 12, 9),
}


@pytest.mark.parametrize("lane", LANES)
def test_no_reader_copies_a_tensor_of_any_dtype_and_layout(lane):
    script, layouts, dtypes, content, allowed = LANES[lane]
    head = f"CONTENT = {content << 20}\nDTYPES = {dtypes.split()}\n"
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "MSPROBE_NO_NATIVE": "1" if lane == "without native kernels" else "0",
    }
    done = subprocess.run(
        [sys.executable, "-c", head + METER + script.replace("LAYOUTS", layouts)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {name: grown / 2**20 for name, grown in json.loads(done.stdout)}
    assert found.pop("a copy") > 0.8 * content, "the meter does not see a copy of a tensor: nothing is proved"
    assert len(found) >= 20
    assert {name: grown for name, grown in found.items() if grown > allowed} == {}
