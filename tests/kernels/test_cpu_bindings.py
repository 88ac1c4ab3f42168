"""Arrays are measured alike with and without the compiled module, and its absence is explained."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import msprobe.kernels
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from msprobe.kernels.cpu import bindings, reference

NAMES = [name for name in reference.DTYPE_CODES if hasattr(np, name) or name == "bool"]
SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, max_side=7)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), name=st.sampled_from(NAMES), shape=SHAPES)
def test_arrays_of_any_order_and_byte_order_equal_the_reference(data, name, shape):
    dtype = np.dtype(name)
    raw = data.draw(st.binary(min_size=math.prod(shape) * dtype.itemsize, max_size=math.prod(shape) * dtype.itemsize))
    array = np.frombuffer(raw, np.uint8).copy()
    array = ((array & 1) if name == "bool" else array & 0x3F).view(dtype).reshape(shape)
    array = data.draw(st.sampled_from([array, array.T, array[..., ::-1] if array.ndim else array]))
    if data.draw(st.booleans()):
        array = array.astype(array.dtype.newbyteorder())
    native = array.astype(array.dtype.newbyteorder("="))
    found, expected = bindings.stats_array(array), reference.stats(native, reference.DTYPE_CODES[name])
    assert found[:2] == expected[:2]
    assert found[4:] == expected[4:]
    np.testing.assert_allclose(found[2:4], expected[2:4], rtol=1e-6)
    assert bindings.crc32_array(array) == zlib.crc32(array.tobytes())
    assert bindings.xor64_array(array) == reference.xor64(array)
    assert bindings.hash64_array(array) == reference.hash64(array)


def test_fields_of_structured_arrays_are_measured():
    records = np.zeros(9, np.dtype([("flag", np.uint8), ("value", np.float32)]))
    records["value"] = np.arange(9)
    assert bindings.stats_array(records["value"])[:3] == (8.0, 0.0, 36.0)
    assert bindings.hash64_array(records["value"]) == bindings.hash64_array(np.arange(9, dtype=np.float32))


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([None]), np.zeros(2, "f4,i4"), np.zeros(2, "M8[s]")])
def test_arrays_without_numbers_are_refused_by_name(array):
    with pytest.raises(TypeError, match="no statistics kernel for arrays of"):
        bindings.stats_array(array)


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_reference_norm_is_scaled(scale):
    assert reference.norm(np.full(4, scale), 7) == pytest.approx(2 * scale, rel=1e-15)
    assert reference.norm(np.full(4, scale * 1j), 10) == pytest.approx(2 * scale, rel=1e-15)
    assert reference.norm(np.zeros(3), 7) == 0.0


def test_the_module_is_available_and_named():
    found = bindings.availability()
    assert found.reason is None
    assert found.isa == found.module.isa()


def test_without_the_module_arrays_are_measured_and_the_reason_is_given(tmp_path: Path):
    source = Path(msprobe.kernels.__file__).parent
    package = tmp_path / "msprobe"
    shutil.copytree(source, package / "kernels", ignore=shutil.ignore_patterns("*.so", "*.pyd", "*.cpp", "*.h"))
    (package / "__init__.py").write_text("")
    script = (
        "import sys, numpy as np\n"
        "from msprobe.kernels.cpu import bindings\n"
        "print(bindings.availability().reason)\n"
        "print(bindings.stats_array(np.arange(4.0)), hex(bindings.hash64_array(np.arange(4.0))))\n"
        "assert 'torch' not in sys.modules\n"
    )
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {[str(tmp_path), *sys.path]!r}\n{script}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    reason, result = done.stdout.splitlines()
    assert "were not built" in reason
    assert "install g++ or clang++" in reason
    array = np.arange(4.0)
    assert result == f"{bindings.stats_array(array)} {bindings.hash64_array(array):#x}"
