"""A debugger around a training step on ``npu:0`` of the fake writes what it writes on the CPU."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch

from msprobe.store import Dump

if TYPE_CHECKING:
    from aten_emulation import Emulation
    from conftest import FakeCann

pytestmark = pytest.mark.usefixtures("emulation")
MakeDebugger = Callable[..., Any]


class Block(torch.nn.Module):
    """Attention by hand, normalisation and an in-place activation."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.value = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.activation = torch.nn.ReLU(inplace=True)
        self.head = torch.nn.Linear(16, 5)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        query = self.query(hidden)
        weights = torch.softmax(query @ query.transpose(-1, -2) / 4, dim=-1)
        return self.head(self.activation(self.norm(hidden + weights @ self.value(hidden))))


def train(device: str, debugger: Any, during: Callable[[], None] = lambda: None) -> Block:
    """One AdamW step; ``during`` is called inside it, at its beginning and at its end.

    The optimiser gets ``foreach=False`` because torch chooses the fused loops by device: other names, not other values.
    """
    torch.manual_seed(7)
    model, batch, labels = Block(), torch.randn(2, 6, 16), torch.randint(0, 5, (12,))
    model.to(device)
    batch, labels = batch.to(device), labels.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    if debugger is not None:
        debugger.start(model)
    during()
    loss = torch.nn.functional.cross_entropy(model(batch).flatten(0, 1), labels)
    loss.backward()
    optimizer.step()
    during()
    if debugger is not None:
        debugger.stop()
        debugger.step()
    return model


def dumps(make: MakeDebugger, **config: Any) -> tuple[Dump, Dump]:
    """The same step recorded on the CPU and on the NPU."""
    from debugger_traces import dump_of

    found = []
    for device in ("cpu", "npu:0"):
        debugger = make(**config)
        train(device, debugger)
        found.append(dump_of(debugger))
    return found[0], found[1]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every scalar of a record with the way to it."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield path, value
        return
    for key, item in items:
        yield from leaves(item, f"{path}/{key}")


def assert_close(cpu: Dump, npu: Dump) -> None:
    assert list(cpu.data) == list(npu.data)
    for name, record in cpu.data.items():
        ours, theirs = dict(leaves(record)), dict(leaves(npu.data[name]))
        assert ours.keys() == theirs.keys(), name
        for path, value in ours.items():
            if isinstance(value, float):
                assert math.isclose(value, theirs[path], rel_tol=1e-4, abs_tol=1e-5), (name, path, value, theirs[path])
            elif value != "cpu":
                assert value == theirs[path], (name, path)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_step_on_the_npu_gives_the_records_of_the_cpu(level: str, debugger: MakeDebugger) -> None:
    cpu, npu = dumps(debugger, level=level, task="statistics")
    assert len(cpu.data) > 10
    assert_close(cpu, npu)


@pytest.mark.parametrize("precision", ["low", "high"])
def test_both_precisions_are_close_to_the_cpu(precision: str, debugger: MakeDebugger) -> None:
    assert_close(*dumps(debugger, level="L1", precision=precision))


@pytest.mark.parametrize("mode", ["xor", "hash", "md5"])
def test_checksums_of_equal_bytes_are_equal(mode: str, debugger: MakeDebugger) -> None:
    cpu, npu = dumps(debugger, level="L1", statistics={"summary_mode": mode})
    assert list(cpu.data) == list(npu.data)
    first = next(iter(cpu.data))
    assert first.startswith("Functional.linear.0")
    expected = [entry["md5"] for entry in cpu.data[first]["input_args"]]
    assert [entry["md5"] for entry in npu.data[first]["input_args"]] == expected


def test_reading_back_while_the_step_goes_on_loses_and_mixes_nothing(debugger: MakeDebugger) -> None:
    from debugger_traces import dump_of

    made = debugger(level="mix", task="statistics")
    train("cpu", made)
    cpu = dump_of(made)
    made = debugger(level="mix", task="statistics")
    over = threading.Event()

    def read_back() -> None:
        while not over.wait(0.005):
            writer = made._adapter.capture.writer
            if writer is not None:
                writer.flush()

    reader = threading.Thread(target=read_back)
    reader.start()
    try:
        train("npu:0", made)
    finally:
        over.set()
        reader.join()
    assert_close(cpu, dump_of(made))


def test_no_wait_for_the_device_inside_the_step(
    debugger: MakeDebugger, emulation: Emulation, fake_cann: FakeCann
) -> None:
    background: set[int] = set()

    def waits() -> tuple[int, int, int]:
        """Waits of every thread but those that read results back in batches, which stop nothing.

        A thread of an earlier dump may end between two looks: what it waited for stays out all the same.
        """
        background.update(thread.native_id or 0 for thread in threading.enumerate() if thread.name == "msprobe-flush")
        return (
            emulation.waits.total() - sum(emulation.waits[thread] for thread in background),
            fake_cann.calls("synchronise") - sum(fake_cann.calls("synchronise", thread) for thread in background),
            fake_cann.calls("copy_to_host") - sum(fake_cann.calls("copy_to_host", thread) for thread in background),
        )

    def step(made: Any) -> tuple[int, ...]:
        found: list[tuple[int, ...]] = []
        train("npu:0", made, during=lambda: found.append(waits()))
        return tuple(end - begin for begin, end in zip(*found, strict=True))

    plain = step(None)
    assert step(debugger(level="mix", task="statistics")) == plain
    for mode in ("md5", "xor", "hash"):
        assert step(debugger(level="L1", statistics={"summary_mode": mode})) == plain, mode


def test_the_step_on_the_npu_is_bitwise_that_without_the_tool(debugger: MakeDebugger) -> None:
    plain = train("npu:0", None)
    recorded = train("npu:0", debugger(level="mix", task="statistics"))
    for (name, expected), found in zip(plain.named_parameters(), recorded.parameters(), strict=True):
        assert torch.equal(expected.cpu(), found.cpu()), name


def test_coverage_tells_which_kernels_measured_and_why_no_others(debugger: MakeDebugger) -> None:
    from debugger_traces import dump_of

    made = debugger(level="L1", statistics={"summary_mode": "md5"})
    train("npu:0", made)
    coverage = dump_of(made).coverage
    assert coverage is not None
    assert {"torch statistics", "torch md5"} <= set(coverage["kernels"]["npu"])
    assert "the Triton kernels are for CUDA and ROCm devices" in coverage["kernels"]["fallbacks"]["npu"]
