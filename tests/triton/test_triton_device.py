"""Launch now, read later: rows, blocks, tables, refusals, and the way from results to the statistics of a dump."""

from __future__ import annotations

import dataclasses
import math
import threading
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from msprobe.kernels.triton.device_statistics import DeviceStatistics, TensorStatistics
from msprobe.kernels.triton.elements import ELEMENTS
from msprobe.kernels.triton.layouts import Rows, memory_rows
from msprobe.kernels.triton.ring import ResultRing, read_blocks
from msprobe.kernels.triton.table_statistics import build_table, reference_table_statistics

from msprobe.measure.cpu import summarise, summarise_cpu
from msprobe.measure.dtypes import describe_dtype
from msprobe.measure.records import mean_and_norm

CPU = torch.device("cpu")


def test_values_are_those_of_the_moment_of_the_call() -> None:
    device = DeviceStatistics()
    found: list[TensorStatistics] = []
    tensor = torch.ones(5)
    device.submit(tensor, found.append)
    tensor.zero_()
    assert found == []
    device.flush()
    assert found[0].reduction[:2] == (1.0, 1.0)


def test_results_come_in_the_order_of_submission_however_many_blocks_they_fill() -> None:
    device = DeviceStatistics(rows=4)
    for _ in range(2):
        found: list[TensorStatistics] = []
        for index in range(11):
            device.submit(torch.tensor([float(index)]), found.append)
        device.flush()
        assert [item.reduction[0] for item in found] == list(range(11))
    device.flush()
    assert len(found) == 11


def test_kinds_of_results_may_be_mixed() -> None:
    device = DeviceStatistics()
    found: list[Any] = []
    device.submit(torch.tensor([2, 3]), found.append)
    device.submit_checksum("xor", torch.tensor([5, 6]), found.append)
    device.submit_probe(torch.empty(0), found.append)
    device.submit_probe(torch.tensor([math.nan]), found.append)
    device.flush()
    assert found[0].reduction[:4] == (3, 2, 5.0, 13.0)
    assert found[1:] == [5 ^ 6, 0, 1]


def test_a_table_equals_one_launch_per_tensor() -> None:
    generator = torch.Generator().manual_seed(3)
    sizes = (3, 20_000, 1, 8192, 9000)
    tensors = [torch.randn(size, generator=generator) for size in sizes]
    tensors += [torch.arange(4), torch.arange(7) - 3, torch.randn(1 << 10, generator=generator)[1:], torch.ones(3).t()]
    tensors += [torch.randn(8, 6, generator=generator)[:, :3], torch.ones(1).expand(5)]
    device = DeviceStatistics(zeros=True, rows=4)
    together: dict[int, TensorStatistics] = {}
    alone: dict[int, TensorStatistics] = {}
    assert all(device.submit_many(tensors, [partial(together.__setitem__, i) for i in range(len(tensors))]))
    for index, tensor in enumerate(tensors):
        device.submit(tensor, partial(alone.__setitem__, index))
    device.flush()
    assert together == alone
    found = [together[index].reduction[:2] for index in range(len(tensors))]
    assert found == [expected[:2] for expected in reference_table_statistics(tensors)]


def test_a_table_says_which_tensor_each_program_reads() -> None:
    words, programs = build_table([16, 32, 48], [1, 20_000, 8192], 7, ELEMENTS[torch.float32])
    assert programs == 5
    assert words[24:].tolist() == [0, 1, 1, 1, 2]
    assert words[8:16].tolist() == [32, 20_000, 8192, 1, 3, 8, 0, 0]


def test_what_is_not_read_is_refused_and_counted() -> None:
    device = DeviceStatistics()
    holes = torch.ones(4, 6, 8)[::2, ::2, ::2]
    assert not device.submit(holes, print)
    assert not device.submit(torch.randn(3, dtype=torch.complex64).conj().imag, print)
    assert not device.submit(torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), print)
    assert device.submit_many([holes], [print]) == [False]
    assert not device.submit_probe(holes, print)
    assert device.refused == {
        "strides without equal rows": 3,
        "negative bit": 1,
        "dtype torch.float4_e2m1fn_x2": 1,
    }
    device.flush()


def test_a_kernel_that_fails_is_reported_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = dataclasses.replace(ELEMENTS[torch.float32], stored="no type")
    device = DeviceStatistics()
    found: list[TensorStatistics] = []
    device.submit(torch.ones(2), found.append)
    monkeypatch.setitem(ELEMENTS, torch.float32, broken)
    assert not device.submit(torch.ones(2), found.append)
    assert "the Triton kernel failed" in device.failure
    assert not device.submit(torch.ones(2, dtype=torch.int32), found.append)
    assert device.refused[device.failure] == 2
    device.flush()
    assert [item.reduction[0] for item in found] == [1.0]


def test_results_become_the_statistics_that_the_cpu_path_measures() -> None:
    generator = torch.Generator().manual_seed(5)
    tensors = [
        torch.randn(6, 10, generator=generator).to(dtype)
        for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.float8_e4m3fn)
    ]
    tensors += [torch.arange(9), torch.tensor([True, False]), torch.tensor([1.0, math.nan]), torch.zeros(2)]
    tensors += [torch.tensor([2**64 - 1], dtype=torch.uint64), torch.tensor([3e200, 4e200], dtype=torch.float64)]
    device = DeviceStatistics(zeros=True)
    results: list[TensorStatistics] = []
    for tensor in tensors:
        device.submit(tensor, results.append)
    device.flush()
    for item, tensor in zip(results, tensors, strict=True):
        info = describe_dtype(tensor.dtype)
        moments = tuple(item.scale * value for value in mean_and_norm(item.reduction, tensor.numel()))
        found = summarise(item.reduction, tensor.numel(), info, low=False, moments=moments)
        expected = summarise_cpu(tensor, info, low=False)
        for name in ("max", "min", "mean", "norm", "nan", "inf", "zero"):
            value = getattr(expected, name)
            assert getattr(found, name) == pytest.approx(value, rel=2e-6, nan_ok=True), (tensor.dtype, name)
            assert type(getattr(found, name)) is type(value)


def test_threads_may_submit_while_another_flushes() -> None:
    device = DeviceStatistics(rows=8)
    found: dict[int, float] = {}

    def keep(index: int, item: TensorStatistics) -> None:
        found[index] = item.reduction[0]

    def work(base: int) -> None:
        for index in range(base, base + 10):
            device.submit(torch.tensor([index]), partial(keep, index))

    threads = [threading.Thread(target=work, args=(base,)) for base in (0, 100, 200)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        device.flush()
    device.flush()
    assert len(found) == 30
    assert all(index == value for index, value in found.items())


def test_results_of_inference_mode_can_be_added_outside_it() -> None:
    device = DeviceStatistics(rows=2)
    found: list[TensorStatistics] = []
    with torch.inference_mode():
        device.submit(torch.ones(2), found.append)
    device.submit(torch.ones(3), found.append)
    with torch.inference_mode():
        device.submit(torch.ones(4), found.append)
        device.flush()
    device.submit(torch.ones(5), found.append)
    device.flush()
    assert [item.reduction[2] for item in found] == [2.0, 3.0, 4.0, 5.0]


def test_a_run_of_rows_never_crosses_a_block() -> None:
    ring = ResultRing(CPU, None, 4)
    runs = [ring.take(3)]
    runs[0].rows[runs[0].first] = 7
    runs += [ring.take(3), ring.take(9), ring.take(1)]
    assert [(run.first, run.count, run.position) for run in runs] == [(0, 3, 0), (3, 1, 3), (0, 4, 4), (0, 1, 8)]
    found = read_blocks(ring.detach())
    assert found.shape == (9, 8)
    assert found[0].tolist() == [7] * 8
    assert not found[1:].any()


def test_rows_are_zero_when_they_are_used_again() -> None:
    ring = ResultRing(CPU, None, 2)
    for _ in range(3):
        run = ring.take(2)
        assert not run.rows[run.first : run.first + 2].any()
        run.rows[run.first : run.first + 2] = 1
        blocks = ring.detach()
        assert read_blocks(blocks).sum() == 16
        ring.give_back(blocks)


@pytest.mark.parametrize(
    ("tensor", "rows"),
    [
        (torch.empty(4, 6), Rows(24, 24, 24)),
        (torch.empty(4, 6).t(), Rows(24, 24, 24)),
        (torch.empty(4, 6)[:, 1:3], Rows(8, 2, 6)),
        (torch.empty(4, 6)[1], Rows(6, 6, 6)),
        (torch.empty(4, 6)[:, 1], Rows(4, 1, 6)),
        (torch.empty(6).expand(4, 6), Rows(6, 6, 6, 4)),
        (torch.empty(()), Rows(1, 1, 1)),
        (torch.empty(2, 3, 8).transpose(0, 1)[:, :, :4], Rows(24, 4, 8)),
        (torch.empty(4, 6, 8)[::2, ::2, ::2], None),
        (torch.empty(4, 6)[::2, ::2], None),
    ],
)
def test_layouts_are_recognised(tensor: torch.Tensor, rows: Rows | None) -> None:
    assert memory_rows(tensor) == rows


def test_nothing_is_printed_or_warned() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        device = DeviceStatistics(zeros=True)
        for value in (math.nan, math.inf, 3e38, 0.0):
            device.submit(torch.full((9,), value), str)
            device.submit_checksum("hash", torch.full((9,), value), str)
            device.submit_checksum("crc32", torch.full((9,), value), str)
        device.flush()
