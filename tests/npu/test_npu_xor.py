"""XOR checksum on the device: the compiled operator and the composition give the checksum of the CPU."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from msprobe.kernels.npu import extension, xor64

from msprobe.measure.checksums import checksum_cpu, hex64
from msprobe.measure.quiet import Quiet

if TYPE_CHECKING:
    from aten_emulation import Emulation

pytestmark = pytest.mark.usefixtures("emulation", "built_operators")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool)
SIZES = (1, 2, 3, 7, 8, 9, 31, 64, 1000, 4097)


def random_tensor(dtype: torch.dtype, size: int) -> torch.Tensor:
    bits = torch.randint(0, 256, (size * dtype.itemsize,), dtype=torch.uint8)
    return bits % 2 == 1 if dtype is torch.bool else bits.view(dtype)


@pytest.fixture(params=["compiled", "composed"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the compiled operators, and as if they had not been built."""
    if request.param == "composed":
        monkeypatch.setattr(extension, "operators", lambda: None)
    return str(request.param)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_xor_on_the_device_equals_the_cpu_checksum(dtype: torch.dtype, way: str) -> None:
    for size in SIZES:
        tensor = random_tensor(dtype, size)
        found = xor64.xor64(tensor.npu())
        assert found.device.type == "npu", way
        assert found.dtype == torch.int64
        assert found.shape == ()
        with Quiet():
            assert hex64(int(found.item())) == checksum_cpu("xor", (tensor,)), (way, size)


def test_xor_of_a_view_reads_only_the_view(way: str) -> None:
    values = random_tensor(torch.int32, 301)
    for start in (1, 2, 3):  # storage offsets that cannot be read as 64-bit words
        view = values.npu()[start:]
        with Quiet():
            assert hex64(int(xor64.xor64(view).item())) == checksum_cpu("xor", (values[start:],)), way


def test_xor_folds_long_tensors_onto_a_bounded_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xor64, "WIDEST", 16)
    words = random_tensor(torch.int64, 1234)
    with Quiet():
        expected = checksum_cpu("xor", (words,))
    assert hex64(int(xor64.xor_words_composed(words.npu()).item())) == expected


def test_xor_launches_a_logarithmic_number_of_operators(emulation: Emulation, way: str) -> None:
    tensor = random_tensor(torch.int64, 100_003).npu()
    emulation.calls.clear()
    found = xor64.xor64(tensor)
    launches = sum(emulation.calls.values())
    assert launches <= math.log2(100_003) + 4, (way, emulation.calls)
    assert not emulation.calls["to_host"], "the checksum must not wait for the device"
    assert found.device == tensor.device


def test_xor_leaves_the_tensor_as_it_was(way: str) -> None:
    tensor = random_tensor(torch.float32, 513).npu().requires_grad_()
    before, version = tensor.detach().clone(), tensor._version
    found = xor64.xor64(tensor)
    assert torch.equal(tensor.detach().view(torch.int32), before.view(torch.int32)), way
    assert tensor._version == version
    assert not found.requires_grad


@pytest.mark.parametrize("tensor", [torch.zeros(0), torch.zeros(3, 4).t()], ids=["empty", "transposed"])
def test_xor_refuses_what_has_no_words_in_order(tensor: torch.Tensor, way: str) -> None:
    with pytest.raises(ValueError, match="give a contiguous tensor with elements"):
        xor64.xor64(tensor.npu() if tensor.numel() else tensor)
    assert way


def test_the_compiled_operator_refuses_other_than_words() -> None:
    operators: Any = extension.operators()
    with pytest.raises(RuntimeError, match=r"xor_words: expected int64\[n\]"):
        operators.xor_words(torch.zeros(3).npu())
