"""The entries of a dump by the Triton kernels are those of the CPU; CPU tensors stand in for device tensors."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
import torch
from msprobe.kernels.triton.elements import ELEMENTS

from msprobe.measure import triton_rows
from msprobe.measure.backends import counts
from msprobe.measure.dtypes import DTYPES
from msprobe.measure.encode import ValueEncoder
from msprobe.measure.summary import statistics

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning"),  # numpy runs the kernels
]
DEVICE = "cpu (deferred)"
MODES = ("statistics", "md5", "xor", "hash")
PLAIN = [dtype for dtype, info in DTYPES.items() if info.kind in ("float", "int", "bool", "complex")]


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    base = torch.randint(0, 9, shape, generator=generator).float()
    if dtype == torch.float4_e2m1fn_x2:
        return base.to(torch.uint8).view(dtype)
    if dtype.is_complex:
        return torch.complex(base - 4, base.flip(0) - 3).to(dtype)
    if dtype.is_floating_point and dtype != torch.float8_e8m0fnu:
        base = base - 4.5
    return base.to(dtype)


def layouts() -> Iterator[torch.Tensor]:
    """Every kind of tensor that has numbers, and some that have none."""
    base = torch.randn(6, 10, generator=torch.Generator().manual_seed(1))
    yield from (base, base.t(), base[:, ::3], base[::2, ::3], base[0, 0], base[:1].expand(5, 10), base.view(-1)[1:])
    yield base.view(2, 3, 10).permute(2, 0, 1)
    yield torch.randn(4, dtype=torch.complex64).conj()
    yield torch.randn(4, dtype=torch.complex64).conj().imag
    yield torch.quantize_per_tensor(base, 0.1, 3, torch.quint8)
    yield from (base.to_sparse(), base.to_sparse_csr(), torch.empty(0, 3), torch.empty(3, device="meta"))
    yield torch.nested.nested_tensor([base[0], base[1, :4]])
    yield torch.nested.nested_tensor([base[0], base[1, :4]], layout=torch.jagged)


def encoded(tensors: list[torch.Tensor], **options: Any) -> list[Any]:
    """Entries as a reader of the JSON sees them, measured by the device path."""
    encoder = ValueEncoder(immediate=(), **options)
    found = encoder.encode_sequence(tensors)
    encoder.resolve()
    return json.loads(orjson.dumps(found))


def assert_same(found: Any, expected: Any) -> None:
    assert list(found) == list(expected)
    for key, value in expected.items():
        if isinstance(value, float):
            assert found[key] == pytest.approx(value, rel=2e-6, abs=1e-7, nan_ok=True), key
        else:
            assert found[key] == value, key


def assert_entries(tensors: list[torch.Tensor], **options: Any) -> None:
    direct = json.loads(orjson.dumps(ValueEncoder(**options).encode_sequence(tensors)))
    for found, expected in zip(encoded(tensors, **options), direct, strict=True):
        assert_same(found, expected)


def counted(device: str = DEVICE) -> dict[str, int]:
    return dict(counts().get(device, {}))


def reasons() -> dict[str, int]:
    return dict(counts().get("fallbacks", {}).get("cpu", {}))


@pytest.mark.parametrize("precision", ["low", "high"])
def test_every_dtype_gives_the_entry_of_the_cpu(precision: str) -> None:
    tensors = [values(dtype, 6, 10) for dtype in PLAIN]
    before = counted().get("triton statistics", 0)
    assert_entries(tensors, precision=precision)
    assert counted()["triton statistics"] == before + len(set(PLAIN) & set(ELEMENTS))


@pytest.mark.parametrize("mode", MODES)
def test_every_layout_gives_the_entry_of_the_cpu(mode: str) -> None:
    assert_entries(list(layouts()), summary_mode=mode, precision="high")


@pytest.mark.parametrize("mode", MODES[1:])
def test_every_dtype_has_the_checksum_of_the_cpu(mode: str) -> None:
    before = counted().get(f"triton {mode}", 0)
    assert_entries([values(dtype, 3, 7) for dtype in PLAIN], summary_mode=mode)
    assert counted()[f"triton {mode}"] == before + len(PLAIN)


def test_special_values_give_the_entry_of_the_cpu() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.complex64):
        lists = [math.nan, 1.0], [math.inf, -math.inf], [-math.inf, 2.0], [0.0, -0.0], [3e200, 4e200], [3e-200, 4e-200]
        assert_entries([torch.tensor(item, dtype=torch.float64).to(dtype) for item in lists], precision="high")


@pytest.mark.parametrize("mode", MODES)
def test_values_are_those_of_the_moment_of_the_call(mode: str) -> None:
    tensors = [torch.arange(40.0), torch.arange(40.0).view(4, 10).t(), torch.ones(3, 4, 5)[::2, ::2, ::2]]
    expected = json.loads(orjson.dumps(ValueEncoder(summary_mode=mode).encode_sequence(tensors)))
    encoder = ValueEncoder(summary_mode=mode, immediate=())
    found = encoder.encode_sequence(tensors)
    for tensor in tensors:
        tensor.mul_(-7)
    encoder.resolve()
    assert json.loads(orjson.dumps(found)) == expected


def test_more_tensors_than_a_block_holds_come_out_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_rows, "BLOCK_ROWS", 4)
    encoder = ValueEncoder(immediate=(), summary_mode="md5")
    for _ in range(2):
        tensors = [torch.tensor([index]) for index in range(9)]
        found = encoder.encode_sequence(tensors)
        encoder.resolve()
        direct = ValueEncoder(summary_mode="md5").encode_sequence(tensors)
        assert json.loads(orjson.dumps(found)) == json.loads(orjson.dumps(direct))


def test_a_kernel_that_fails_is_replaced_by_torch_operations_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ELEMENTS, torch.float32, dataclasses.replace(ELEMENTS[torch.float32], stored="no type"))
    before = counted().get("torch statistics", 0)
    assert_entries([torch.ones(3, dtype=torch.int32), torch.randn(7), torch.arange(5)], summary_mode="md5")
    assert counted()["torch statistics"] == before + 2
    failures = {reason: number for reason, number in reasons().items() if "the Triton kernel failed" in reason}
    assert list(failures.values()) == [4]  # the launch that failed; its CRC-32 and the last tensor were not tried


def test_what_kernels_do_not_read_is_counted_with_the_reason() -> None:
    before = reasons()
    assert_entries([torch.ones(4, 6, 8)[::2, ::2, ::2], values(torch.float4_e2m1fn_x2, 4)], precision="high")
    for reason in ("strides without equal rows", "dtype torch.float4_e2m1fn_x2"):
        assert reasons()[reason] == before.get(reason, 0) + 1


def test_the_public_function_measures_a_device_tensor_at_once() -> None:
    from msprobe.measure.deferred import DeferredRows
    from msprobe.measure.dtypes import describe_dtype

    rows = DeferredRows(low=True, zeros=True)
    found: list[Any] = []
    rows.add(torch.tensor([0.0, 3.0, 4.0]), describe_dtype(torch.float32), found.append)
    rows.resolve()
    assert found == [statistics(torch.tensor([0.0, 3.0, 4.0]))]


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_read_back_before_resolve(mode: str) -> None:
    """On a device each of these operations would wait for it."""
    encoder = ValueEncoder(summary_mode=mode, immediate=())
    tensors = [torch.randn(5, 6), torch.randn(5, 6).t(), torch.ones(4, 6, 8)[::2, ::2, ::2], torch.arange(9)]
    with torch.autograd.profiler.profile() as profile:
        encoder.encode_sequence(tensors)
        encoder.encode_sequence([torch.randn(3, dtype=torch.complex64).conj(), torch.empty(0)])
    names = {event.name for event in profile.function_events}
    assert names
    assert not names & {"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero", "aten::equal"}
