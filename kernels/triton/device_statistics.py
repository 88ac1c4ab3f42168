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
from functools import partial
from typing import Any, TypeAlias

import torch
from msprobe.kernels.triton.crc32 import LIMIT, launch_crc32, power_table
from msprobe.kernels.triton.elements import ELEMENTS, Element
from msprobe.kernels.triton.hash64 import launch_hash64
from msprobe.kernels.triton.layouts import Rows, memory_rows
from msprobe.kernels.triton.nonfinite import BIT_TESTS, launch_nonfinite
from msprobe.kernels.triton.results import (
    Checksum,
    Floats,
    Result,
    TensorStatistics,
    Words,
    read_checksum,
    read_first_word,
    read_statistics,
)
from msprobe.kernels.triton.ring import ResultRing, Run
from msprobe.kernels.triton.table_statistics import launch_table_statistics
from msprobe.kernels.triton.tensor_statistics import SCRATCH_WORDS, launch_tensor_statistics
from msprobe.kernels.triton.xor64 import launch_xor64

__all__ = ["BLOCK_ROWS", "COPY_LIMIT", "Checksum", "DeviceStatistics", "Result", "TensorStatistics", "is_capturing"]

#: Rows that are copied at a time.
BLOCK_ROWS = 4096
#: A tensor up to this many bytes that is not contiguous is copied on the device for its checksum.
COPY_LIMIT = 1 << 30
_NO_ROWS = "strides without equal rows"


_Finish: TypeAlias = Callable[[Words, Floats], Result]
_Launch: TypeAlias = "Callable[[_Stream, Run, int], None]"


@dataclass(frozen=True, slots=True)
class _Pending:
    """Where the row of a slot is and how to read it; without a ring the result needs no row."""

    stream: _Stream | None
    position: int
    finish: _Finish


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
    """Launches kernels and hands out slots; `flush` returns one result per slot.

    Every ``submit`` method returns None for a tensor that it does not read; `refused` then counts the reason, and the
    caller measures the tensor in another way. Tensors are strided, own memory, and belong to one of the devices that
    `availability.triton_availability` serves. Safe for threads; call it with autograd and torch modes off.

    Parameters
    ----------
    zeros
        Count zeros as well.
    rows
        Rows of a block of results (64 bytes each).

    Attributes
    ----------
    refused
        Tensors that were not read, by reason.
    failure
        Why a kernel could not be launched, after which every tensor is refused; None while all goes well.
    """

    __slots__ = ("_lock", "_pending", "_rows", "_streams", "_zeros", "failure", "refused")

    def __init__(self, *, zeros: bool = False, rows: int = BLOCK_ROWS) -> None:
        self._zeros = zeros
        self._rows = rows
        self._lock = threading.Lock()
        self._streams: dict[tuple[torch.device, Any], _Stream] = {}
        self._pending: list[_Pending] = []
        self.refused: Counter[str] = Counter()
        self.failure: str | None = None

    def submit(self, tensor: torch.Tensor) -> int | None:
        """Launch the statistics of a tensor with at least one element; the result is a `TensorStatistics`."""
        read = self._readable(tensor)
        if read is None:
            return None
        element, layout = read

        def launch(stream: _Stream, run: Run, _: int) -> None:
            launch_tensor_statistics(
                tensor, layout, element, rows=run.rows, row=run.first, scratch=stream.scratch, zeros=self._zeros
            )

        return self._queue_one(tensor.device, launch, partial(read_statistics, element, layout.repeats))

    def submit_many(self, tensors: Sequence[torch.Tensor]) -> list[int | None]:
        """Launch the statistics of tensors with at least one element each, with one kernel per device and dtype."""
        slots: list[int | None] = [None] * len(tensors)
        groups: dict[tuple[torch.device, torch.dtype, bool], list[int]] = {}
        for index, tensor in enumerate(tensors):
            if tensor.is_contiguous() and tensor.dtype in ELEMENTS and not tensor.is_neg():
                aligned = tensor.data_ptr() % 16 == 0
                groups.setdefault((tensor.device, tensor.dtype, aligned), []).append(index)
            else:
                slots[index] = self.submit(tensor)
        for members in groups.values():
            found = self._submit_group([tensors[index] for index in members])
            for index, slot in zip(members, found, strict=True):
                slots[index] = slot
        return slots

    def submit_checksum(self, mode: Checksum, tensor: torch.Tensor) -> int | None:
        """Launch a checksum of the bytes in logical order; the result is an int (see `xor64`, `hash64`, `crc32`)."""
        nbytes = tensor.numel() * tensor.itemsize
        finish = partial(read_checksum, mode, nbytes, tuple(tensor.shape))
        if not nbytes:
            return self._append(finish)
        if mode == "crc32" and nbytes > LIMIT:
            self._refuse("more bytes than the CRC-32 kernel counts")
            return None
        plain = tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
        if not plain and nbytes > COPY_LIMIT:
            self._refuse("checksum of a large tensor that is not contiguous")
            return None

        def launch(stream: _Stream, run: Run, _: int) -> None:
            content = tensor if plain else tensor.resolve_conj().resolve_neg().contiguous()
            if mode == "xor":
                launch_xor64(content, rows=run.rows, row=run.first)
            elif mode == "hash":
                launch_hash64(content, rows=run.rows, row=run.first)
            else:
                launch_crc32(content, powers=stream.powers(), rows=run.rows, row=run.first)

        return self._queue_one(tensor.device, launch, finish)

    def submit_probe(self, tensor: torch.Tensor) -> int | None:
        """Launch the search for a NaN or an infinity; the result is 1 if there is one, else 0."""
        if tensor.dtype not in BIT_TESTS or not tensor.numel():
            return self._append(read_first_word)
        layout = memory_rows(tensor)
        if layout is None:
            self._refuse(_NO_ROWS)
            return None

        def launch(_stream: _Stream, run: Run, _: int) -> None:
            launch_nonfinite(tensor, layout, rows=run.rows, row=run.first)

        return self._queue_one(tensor.device, launch, read_first_word)

    def flush(self) -> list[Result]:
        """Wait for the launched kernels and return the results; slot numbers, from 0 again afterwards, index them."""
        with self._lock:
            pending, self._pending = self._pending, []
            streams = list(self._streams.values())
            for stream in streams:
                stream.ring.send()  # all copies are under way before the first is waited for
            found = {id(stream): stream.ring.fetch() for stream in streams}
        words = {key: rows.tolist() for key, rows in found.items()}
        floats = {key: rows.view("float64").tolist() for key, rows in found.items()}
        return [_read(item, words, floats) for item in pending]

    def _submit_group(self, tensors: list[torch.Tensor]) -> Sequence[int | None]:
        """Launch contiguous tensors of one device, dtype and alignment by one table."""
        if len(tensors) == 1:
            return [self.submit(tensors[0])]
        element = ELEMENTS[tensors[0].dtype]

        def launch(_: _Stream, run: Run, done: int) -> None:
            part = tensors[done : done + run.count]
            launch_table_statistics(part, element, rows=run.rows, row=run.first, zeros=self._zeros)

        found = self._queue(tensors[0].device, launch, partial(read_statistics, element, 1), len(tensors))
        return [None] * len(tensors) if found is None else found

    def _readable(self, tensor: torch.Tensor) -> tuple[Element, Rows] | None:
        """Return how to read a tensor; counts the reason when it cannot be read."""
        element = ELEMENTS.get(tensor.dtype)
        if element is None:
            self._refuse(f"dtype {tensor.dtype}")
            return None
        if tensor.is_neg():
            self._refuse("negative bit")
            return None
        layout = memory_rows(tensor)
        if layout is None:
            self._refuse(_NO_ROWS)
            return None
        return element, layout

    def _queue_one(self, device: torch.device, launch: _Launch, finish: _Finish) -> int | None:
        slots = self._queue(device, launch, finish, 1)
        return None if slots is None else slots[0]

    def _queue(self, device: torch.device, launch: _Launch, finish: _Finish, count: int) -> range | None:
        """Launch kernels for `count` rows and return their slots. `launch` gets the rows run by run."""
        if self.failure is not None:
            self._refuse(self.failure, count)
            return None
        if is_capturing(device):
            self._refuse("a graph is being captured", count)
            return None
        # The lock spans the launch: no other thread may send the block away between taking a row and writing it.
        with self._lock, _on_device(device):
            stream = self._stream(device)
            first, done = len(self._pending), 0
            try:
                while done < count:
                    run = stream.ring.take(count - done)
                    launch(stream, run, done)
                    positions = range(run.position, run.position + run.count)
                    self._pending += [_Pending(stream, position, finish) for position in positions]
                    done += run.count
            except torch.OutOfMemoryError:  # a passing state, unlike the failures below
                self._refuse("out of device memory", count)
                return None
            except Exception as error:  # noqa: BLE001 - whatever stops a compilation must not stop the training
                self.failure = f"the Triton kernel failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
                self._refuse(self.failure, count)
                return None
        return range(first, first + count)

    def _append(self, finish: _Finish) -> int:
        """Give a slot to a result that needs no kernel."""
        with self._lock:
            self._pending.append(_Pending(None, 0, finish))
            return len(self._pending) - 1

    def _refuse(self, reason: str, count: int = 1) -> None:
        self.refused[reason] += count

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


def _read(item: _Pending, words: dict[int, list[Words]], floats: dict[int, list[Floats]]) -> Result:
    if item.stream is None:
        return item.finish([0], [0.0])
    key = id(item.stream)
    return item.finish(words[key][item.position], floats[key][item.position])
