"""Launch statistics and checksums of device tensors now, read all results later with one copy.

A kernel is queued on the current stream before `submit` returns, so it sees the tensor as it is at the call; the
program may overwrite or free the tensor right after. Nothing waits for the device until `flush`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from msprobe.kernels.triton.crc32 import LIMIT, launch_crc32, power_table
from msprobe.kernels.triton.elements import ELEMENTS, Element
from msprobe.kernels.triton.hash64 import launch_hash64
from msprobe.kernels.triton.layouts import Rows, memory_rows
from msprobe.kernels.triton.nonfinite import BIT_TESTS, launch_nonfinite
from msprobe.kernels.triton.results import (
    Checksum,
    Floats,
    TensorStatistics,
    Words,
    read_checksum,
    read_statistics,
)
from msprobe.kernels.triton.ring import ResultRing, Run, read_blocks
from msprobe.kernels.triton.table_statistics import launch_table_statistics
from msprobe.kernels.triton.tensor_statistics import SCRATCH_WORDS, launch_tensor_statistics
from msprobe.kernels.triton.xor64 import launch_xor64

__all__ = ["BLOCK_ROWS", "COPY_LIMIT", "Checksum", "DeviceStatistics", "TensorStatistics", "is_capturing"]

#: Rows that are copied at a time.
BLOCK_ROWS = 4096
#: A tensor up to this many bytes that is not contiguous is copied on the device for its checksum.
COPY_LIMIT = 1 << 30
_NO_ROWS = "strides without equal rows"

StatisticsSink: TypeAlias = Callable[[TensorStatistics], None]
NumberSink: TypeAlias = Callable[[int], None]
_Deliver: TypeAlias = Callable[[Words, Floats], None]
_Launch: TypeAlias = "Callable[[_Stream, Run, int], None]"


@dataclass(frozen=True, slots=True)
class _Pending:
    """Where a row is and who gets what it means; without a stream there is no row to wait for."""

    stream: _Stream | None
    position: int
    deliver: _Deliver


class _Stream:
    """What launches on one stream share."""

    __slots__ = ("_device", "_powers", "ring", "scratch")

    def __init__(self, device: torch.device, stream: Any, rows: int) -> None:
        self._device = device
        self._powers: torch.Tensor | None = None
        self.ring = ResultRing(device, stream, rows)
        with torch.inference_mode(mode=False):
            self.scratch = torch.zeros(SCRATCH_WORDS, dtype=torch.int64, device=device)

    def powers(self) -> torch.Tensor:
        """Return the table of `crc32`, copied on this stream the first time."""
        if self._powers is None:
            table = power_table()
            with torch.inference_mode(mode=False):
                on_host = self._device.type == "cpu"
                self._powers = table if on_host else table.pin_memory().to(self._device, non_blocking=True)
        return self._powers


class DeviceStatistics:
    """Launches kernels, and hands their results to sinks in `flush`.

    Every ``submit`` method returns whether it took the tensor. If not, `refused` counts the reason, and the caller
    measures the tensor in another way. Tensors are strided, own memory, and belong to one of the devices that
    `availability.triton_availability` serves. Call it with autograd and torch modes off.

    Safe for threads: one may flush while others submit, and nobody waits for the device but who flushes. Sinks run in
    the flushing thread and must not raise.

    Parameters
    ----------
    zeros
        Count zeros as well.
    rows
        Rows of a block of results (64 bytes each).
    refused
        Counter to use as `refused`; by default one of its own.

    Attributes
    ----------
    refused
        Tensors that were not read, by reason.
    failure
        Why a kernel could not be launched, after which every tensor is refused; None while all goes well.
    """

    __slots__ = ("_lock", "_pending", "_rows", "_streams", "_zeros", "failure", "refused")

    def __init__(self, *, zeros: bool = False, rows: int = BLOCK_ROWS, refused: Counter[str] | None = None) -> None:
        self._zeros = zeros
        self._rows = rows
        self._lock = threading.Lock()
        self._streams: dict[tuple[torch.device, Any], _Stream] = {}
        self._pending: list[_Pending] = []
        self.refused: Counter[str] = Counter() if refused is None else refused
        self.failure: str | None = None

    def submit(self, tensor: torch.Tensor, sink: StatisticsSink) -> bool:
        """Launch the statistics of a tensor with at least one element."""
        read = self._readable(tensor)
        if read is None:
            return False
        element, layout = read

        def launch(stream: _Stream, run: Run, _: int) -> None:
            launch_tensor_statistics(
                tensor, layout, element, rows=run.rows, row=run.first, scratch=stream.scratch, zeros=self._zeros
            )

        return self._queue(tensor.device, launch, [_to_statistics(element, layout.repeats, sink)])

    def submit_many(self, tensors: Sequence[torch.Tensor], sinks: Sequence[StatisticsSink]) -> list[bool]:
        """Launch the statistics of tensors with at least one element each, with one kernel per device and dtype."""
        taken = [False] * len(tensors)
        groups: dict[tuple[torch.device, torch.dtype, bool], list[int]] = {}
        for index, tensor in enumerate(tensors):
            if tensor.is_contiguous() and tensor.dtype in ELEMENTS and not tensor.is_neg():
                aligned = tensor.data_ptr() % 16 == 0
                groups.setdefault((tensor.device, tensor.dtype, aligned), []).append(index)
            else:
                taken[index] = self.submit(tensor, sinks[index])
        for members in groups.values():
            if len(members) == 1:
                found = self.submit(tensors[members[0]], sinks[members[0]])
            else:
                found = self._submit_table([tensors[i] for i in members], [sinks[i] for i in members])
            for index in members:
                taken[index] = found
        return taken

    def submit_checksum(self, mode: Checksum, tensor: torch.Tensor, sink: NumberSink) -> bool:
        """Launch a checksum of the bytes in logical order; the sink gets an int (see `xor64`, `hash64`, `crc32`)."""
        nbytes = tensor.numel() * tensor.itemsize
        shape = tuple(tensor.shape)

        def deliver(words: Words, _: Floats) -> None:
            sink(read_checksum(mode, nbytes, shape, words))

        if not nbytes:
            return self._deliver_zero(deliver)
        if mode == "crc32" and nbytes > LIMIT:
            return self._refuse("more bytes than the CRC-32 kernel counts")
        plain = tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
        if not plain and nbytes > COPY_LIMIT:
            return self._refuse("checksum of a large tensor that is not contiguous")

        def launch(stream: _Stream, run: Run, _: int) -> None:
            content = tensor if plain else tensor.resolve_conj().resolve_neg().contiguous()
            if mode == "xor":
                launch_xor64(content, rows=run.rows, row=run.first)
            elif mode == "hash":
                launch_hash64(content, rows=run.rows, row=run.first)
            else:
                launch_crc32(content, powers=stream.powers(), rows=run.rows, row=run.first)

        return self._queue(tensor.device, launch, [deliver])

    def submit_probe(self, tensor: torch.Tensor, sink: NumberSink) -> bool:
        """Launch the search for a NaN or an infinity; the sink gets 1 if there is one, else 0."""

        def deliver(words: Words, _: Floats) -> None:
            sink(words[0])

        if tensor.dtype not in BIT_TESTS or not tensor.numel():
            return self._deliver_zero(deliver)
        layout = memory_rows(tensor)
        if layout is None:
            return self._refuse(_NO_ROWS)

        def launch(_stream: _Stream, run: Run, _: int) -> None:
            launch_nonfinite(tensor, layout, rows=run.rows, row=run.first)

        return self._queue(tensor.device, launch, [deliver])

    def flush(self) -> None:
        """Wait for the kernels launched so far and hand their results to the sinks, in the order of submission."""
        with self._lock:
            pending, self._pending = self._pending, []
            detached = [(stream, stream.ring.detach()) for stream in self._streams.values()]
        words: dict[int, list[Words]] = {}
        floats: dict[int, list[Floats]] = {}
        for stream, blocks in detached:
            rows = read_blocks(blocks)
            words[id(stream)] = rows.tolist()
            floats[id(stream)] = rows.view("float64").tolist()
        with self._lock:
            for stream, blocks in detached:
                stream.ring.give_back(blocks)
        for item in pending:
            if item.stream is None:
                item.deliver([0], [0.0])
            else:
                key = id(item.stream)
                item.deliver(words[key][item.position], floats[key][item.position])

    def _submit_table(self, tensors: list[torch.Tensor], sinks: list[StatisticsSink]) -> bool:
        """Launch contiguous tensors of one device, dtype and alignment by one table."""
        element = ELEMENTS[tensors[0].dtype]

        def launch(_: _Stream, run: Run, done: int) -> None:
            part = tensors[done : done + run.count]
            launch_table_statistics(part, element, rows=run.rows, row=run.first, zeros=self._zeros)

        return self._queue(tensors[0].device, launch, [_to_statistics(element, 1, sink) for sink in sinks])

    def _readable(self, tensor: torch.Tensor) -> tuple[Element, Rows] | None:
        """Return how to read a tensor; counts the reason when it cannot be read."""
        element = ELEMENTS.get(tensor.dtype)
        layout = None
        if element is None:
            self._refuse(f"dtype {tensor.dtype}")
        elif tensor.is_neg():
            self._refuse("negative bit")
        else:
            layout = memory_rows(tensor)
            if layout is None:
                self._refuse(_NO_ROWS)
        return None if element is None or layout is None else (element, layout)

    def _queue(self, device: torch.device, launch: _Launch, deliveries: Sequence[_Deliver]) -> bool:
        """Launch kernels for as many rows as there are deliveries. `launch` gets the rows run by run."""
        count = len(deliveries)
        if self.failure is not None:
            return self._refuse(self.failure, count)
        if is_capturing(device):
            return self._refuse("a graph is being captured", count)
        # The lock spans the launch: no other thread may send the block away between taking a row and writing it.
        with self._lock, _on_device(device):
            stream = self._stream(device)
            pending: list[_Pending] = []
            try:
                while len(pending) < count:
                    run = stream.ring.take(count - len(pending))
                    launch(stream, run, len(pending))
                    part = deliveries[len(pending) : len(pending) + run.count]
                    pending += [_Pending(stream, run.position + index, item) for index, item in enumerate(part)]
            except torch.OutOfMemoryError:  # a passing state, unlike the failures below
                return self._refuse("out of device memory", count)
            except Exception as error:  # noqa: BLE001 - whatever stops a compilation must not stop the training
                self.failure = f"the Triton kernel failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
                return self._refuse(self.failure, count)
            self._pending += pending
        return True

    def _deliver_zero(self, deliver: _Deliver) -> bool:
        """Queue a result that needs no kernel."""
        with self._lock:
            self._pending.append(_Pending(None, 0, deliver))
        return True

    def _refuse(self, reason: str, count: int = 1) -> Literal[False]:
        self.refused[reason] += count
        return False

    def _stream(self, device: torch.device) -> _Stream:
        current = None if device.type == "cpu" else torch.get_device_module(device).current_stream(device)
        key = (device, current)
        found = self._streams.get(key)
        if found is None:
            found = self._streams[key] = _Stream(device, current, self._rows)
        return found


def is_capturing(device: torch.device) -> bool:
    """Tell whether launches on the current stream are recorded into a graph instead of executed.

    Then no kernel may be launched by anybody: a replay of the graph would write into rows that belong to others.
    """
    return device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())


def _on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the current device, whatever the arguments are."""
    if device.type == "cpu":
        return nullcontext()
    module = torch.get_device_module(device)
    return nullcontext() if device.index == module.current_device() else module.device(device)


def _to_statistics(element: Element, repeats: int, sink: StatisticsSink) -> _Deliver:
    def deliver(words: Words, floats: Floats) -> None:
        sink(read_statistics(element, repeats, words, floats))

    return deliver
