"""Result rows on a device, fetched by one copy per flush.

Kernels write into rows that exist beforehand; nobody waits for them. A flush queues one copy into pinned host memory
and an event behind it on the stream of the kernels, and only who wants the numbers waits for that event. No other
stream and no later work is waited for.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

#: int64 words of a row.
ROW_WORDS = 8

Fetched = np.ndarray[tuple[int, int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Run:
    """Zeroed rows for kernels to write.

    Attributes
    ----------
    rows
        int64 [n, 8] on the device.
    first, count
        The rows of the run.
    position
        Index of the first of them in what the next `ResultRing.fetch` returns.
    """

    rows: torch.Tensor
    first: int
    count: int
    position: int


class _Block:
    """Rows on the device, where they go on the host, and the event after which they are there."""

    __slots__ = ("device_rows", "event", "host_rows", "used")

    def __init__(self, device: torch.device, capacity: int) -> None:
        on_host = device.type == "cpu"
        with torch.inference_mode(mode=False):  # a buffer made in inference mode could not be written outside it
            self.device_rows = torch.zeros(capacity, ROW_WORDS, dtype=torch.int64, device=device)
            self.host_rows = torch.empty(capacity, ROW_WORDS, dtype=torch.int64, pin_memory=not on_host)
        self.event: Any = None if on_host else torch.get_device_module(device).Event()
        self.used = 0


class ResultRing:
    """Rows of one device and one stream. Not thread-safe: the caller holds a lock from `take` until the launch.

    Parameters
    ----------
    device
        Where the rows lie.
    stream
        The stream of every kernel that writes them (None on the CPU).
    capacity
        Rows of a block. A full block is copied in the background while the next one is filled; blocks are used again.
    """

    __slots__ = ("_capacity", "_current", "_device", "_free", "_sent", "_stream", "_taken")

    def __init__(self, device: torch.device, stream: Any, capacity: int) -> None:
        self._device = device
        self._stream = stream
        self._capacity = capacity
        self._current = _Block(device, capacity)
        self._free: list[_Block] = []
        self._sent: list[_Block] = []
        self._taken = 0

    def take(self, limit: int = 1) -> Run:
        """Return between one and `limit` rows that lie behind one another."""
        if self._current.used == self._capacity:
            self.send()
        block = self._current
        count = min(limit, self._capacity - block.used)
        run = Run(block.device_rows, block.used, count, self._taken)
        block.used += count
        self._taken += count
        return run

    def send(self) -> None:
        """Queue the copy of the rows taken so far, and zero them for their next use. Waits for nothing."""
        block = self._current
        if not block.used:
            return
        with self._on_stream():
            rows = block.device_rows[: block.used]
            block.host_rows[: block.used].copy_(rows, non_blocking=True)
            rows.zero_()
            if block.event is not None:
                block.event.record(self._stream)
        self._sent.append(block)
        self._current = self._free.pop() if self._free else _Block(self._device, self._capacity)

    def fetch(self) -> Fetched:
        """Return all rows in the order in which they were taken, and start again. Waits for the last copy."""
        self.send()
        sent, self._sent, self._taken = self._sent, [], 0
        if not sent:
            return np.empty((0, ROW_WORDS), dtype=np.int64)
        if sent[-1].event is not None:
            sent[-1].event.synchronize()
        found = np.concatenate([block.host_rows[: block.used].numpy() for block in sent])
        for block in sent:
            block.used = 0
        self._free += sent
        return found

    def _on_stream(self) -> AbstractContextManager[Any]:
        if self._stream is None:
            return nullcontext()
        return torch.get_device_module(self._device).stream(self._stream)  # type: ignore[no-any-return]
