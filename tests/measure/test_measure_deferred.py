"""The accelerator path, forced on CPU tensors: launched at once, read back in resolve()."""

from __future__ import annotations

import json
import math
import threading

import orjson
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.measure import device_rows
from msprobe.measure.deferred import RING_ROWS, DeferredRows
from msprobe.measure.dtypes import DTYPES, describe_dtype
from msprobe.measure.encode import ValueEncoder
from msprobe.measure.records import Statistics

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

DTYPE_LIST = [d for d, info in DTYPES.items() if info.kind in ("float", "int", "bool", "complex") and info.numbers == 1]


def values(dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    base = torch.randint(0, 9, (6, 10), generator=generator).float()
    if dtype.is_floating_point and dtype != torch.float8_e8m0fnu:
        base = base - 4.5
    return base.to(dtype)


def read(entry: object) -> dict:
    """The entry as a reader of the JSON sees it; NaN and infinities are floats again."""
    return json.loads(orjson.dumps(entry))


def same(entry: object, reference: object) -> None:
    found, expected = read(entry), read(reference)
    assert list(found) == list(expected)
    for key, value in expected.items():
        if isinstance(value, float):
            assert found[key] == pytest.approx(value, rel=2e-6, abs=1e-9, nan_ok=True)
        else:
            assert found[key] == value


@pytest.mark.parametrize("dtype", DTYPE_LIST, ids=str)
@pytest.mark.parametrize("precision", ["low", "high"])
def test_every_dtype_equals_the_immediate_entry(dtype: torch.dtype, precision: str) -> None:
    encoder, direct = ValueEncoder(precision=precision, immediate=()), ValueEncoder(precision=precision)
    tensors = [
        values(dtype),
        values(dtype).t(),
        values(dtype)[:, ::3],
        values(dtype)[0, 0],
        values(dtype)[:1].expand(5, 10),
    ]
    found = encoder.encode_sequence(tensors)
    assert all(entry["Max"] is None for entry in found)
    encoder.resolve()
    for entry, tensor in zip(found, tensors, strict=True):
        same(entry, direct.encode(tensor))


@pytest.mark.parametrize("special", [[math.nan, 1.0], [math.inf, -math.inf], [-math.inf, 2.0], [0.0, -0.0]])
def test_special_values_equal_the_immediate_entry(special: list[float]) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.complex64):
        encoder = ValueEncoder(immediate=())
        entry = encoder.encode(torch.tensor(special, dtype=torch.float64).to(dtype))
        encoder.resolve()
        same(entry, ValueEncoder().encode(torch.tensor(special, dtype=torch.float64).to(dtype)))


@pytest.mark.parametrize("factor", [1e200, 1e-200])
def test_squares_beyond_float64_are_scaled_on_the_device(factor: float) -> None:
    encoder = ValueEncoder(immediate=())
    entry = encoder.encode(torch.tensor([3 * factor, 4 * factor], dtype=torch.float64))
    encoder.resolve()
    assert entry["Norm"] == pytest.approx(5 * factor, rel=1e-12)
    assert entry["Mean"] == pytest.approx(3.5 * factor, rel=1e-12)


def test_a_device_without_float64_neither_overflows_nor_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_rows, "WITHOUT_FLOAT64", frozenset({"cpu"}))
    encoder = ValueEncoder(immediate=(), precision="high")
    large = encoder.encode(torch.full((100,), 1e30).bfloat16())
    small = encoder.encode(torch.full((100,), 1e-30))
    counts = encoder.encode(torch.full((4,), 2**40))
    encoder.resolve()
    assert large["Norm"] == pytest.approx(1e31, rel=1e-2)
    assert small["Norm"] == pytest.approx(1e-29, rel=1e-6)
    assert (counts["Max"], counts["Norm"]) == (2**40, pytest.approx(2.0**41))


def test_values_are_those_of_the_moment_of_the_call() -> None:
    encoder = ValueEncoder(immediate=())
    tensor = torch.ones(5)
    entry = encoder.encode(tensor)
    tensor.zero_()
    encoder.resolve()
    assert entry["Max"] == 1.0


@pytest.mark.parametrize("mode", ["md5", "xor", "hash"])
def test_checksums_equal_the_immediate_ones(mode: str) -> None:
    encoder = ValueEncoder(summary_mode=mode, immediate=())
    tensors = [values(torch.bfloat16).t(), torch.arange(7, dtype=torch.int8), torch.eye(3).to_sparse(), torch.empty(0)]
    tensors.append(torch.randn(3, dtype=torch.complex64).conj())
    found = encoder.encode_sequence(tensors)
    encoder.resolve()
    for entry, tensor in zip(found, tensors, strict=True):
        same(entry, ValueEncoder(summary_mode=mode).encode(tensor))


def test_large_tensors_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)  # a mean that cancels to almost nothing has no relative accuracy
    monkeypatch.setattr(device_rows, "DEVICE_CHUNK", 100)
    for tensor in (torch.randn(37, 41), torch.randn(37, 41).t(), torch.arange(1000), torch.rand(30, 30) > 0.5):
        encoder = ValueEncoder(immediate=(), precision="high")
        entry = encoder.encode(tensor)
        encoder.resolve()
        same(entry, ValueEncoder(precision="high").encode(tensor))


def test_quantised_and_float4_tensors_are_read() -> None:
    for tensor in (
        torch.quantize_per_tensor(torch.randn(50), 0.1, 3, torch.quint8),
        torch.quantize_per_channel(torch.randn(3, 50), torch.rand(3) + 0.1, torch.arange(3), 0, torch.qint8),
        torch.arange(200, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    ):
        encoder = ValueEncoder(immediate=(), precision="high")
        entry = encoder.encode(tensor)
        encoder.resolve()
        same(entry, ValueEncoder(precision="high").encode(tensor))


def test_more_tensors_than_one_buffer_holds_and_buffers_are_used_again() -> None:
    rows = DeferredRows(low=False)
    for _ in range(2):
        found: list[Statistics] = []
        for index in range(RING_ROWS + 5):
            rows.add(torch.tensor([index]), describe_dtype(torch.int64), found.append)
        rows.resolve()
        assert [statistics.max for statistics in found] == list(range(RING_ROWS + 5))
    assert sum(len(group) for group in rows._rings.values()) == 2


def test_several_threads_may_add() -> None:
    rows = DeferredRows(low=False, zeros=True)
    found: list[Statistics] = []

    def work(base: int) -> None:
        for index in range(100):
            rows.add(torch.tensor([base + index]), describe_dtype(torch.int64), found.append)

    threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows.resolve()
    assert sorted(statistics.max for statistics in found) == sorted(1000 * n + i for n in range(4) for i in range(100))


def test_resolving_nothing_or_twice_is_harmless() -> None:
    encoder = ValueEncoder(immediate=())
    encoder.resolve()
    entry = encoder.encode(torch.ones(2))
    encoder.resolve()
    encoder.resolve()
    assert entry["Max"] == 1.0


@given(st.lists(st.floats(width=32), min_size=1, max_size=30), st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=100, deadline=None)
def test_any_floats_equal_the_immediate_entry(numbers: list[float], dtype: torch.dtype) -> None:
    tensor = torch.tensor(numbers, dtype=dtype)
    encoder = ValueEncoder(immediate=(), precision="high")
    entry = encoder.encode(tensor)
    encoder.resolve()
    entry, expected = read(entry), read(ValueEncoder(precision="high").encode(tensor))
    mean, expected_mean = entry.pop("Mean"), expected.pop("Mean")
    same(entry, expected)
    scale = expected["Norm"] if math.isfinite(expected["Norm"]) else 0.0
    assert mean == pytest.approx(expected_mean, rel=1e-9, abs=1e-9 * scale, nan_ok=True)
