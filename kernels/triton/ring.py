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
        Index of the first of them among all rows that the next `ResultRing.detach` hands over.
    """

    rows: torch.Tensor
    first: int
    count: int
    position: int


class Block:
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
    """Rows of one device and one stream. Not thread-safe: the caller holds a lock, from `take` until the launch too.

    Detached blocks belong to whoever detached them, so that waiting for a copy needs no lock.

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
        self._current = Block(device, capacity)
        self._free: list[Block] = []
        self._sent: list[Block] = []
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
        self._current = self._free.pop() if self._free else Block(self._device, self._capacity)

    def detach(self) -> list[Block]:
        """Send the rows taken so far and hand over all blocks that were sent; positions start at 0 again."""
        self.send()
        sent, self._sent, self._taken = self._sent, [], 0
        return sent

    def give_back(self, blocks: list[Block]) -> None:
        """Take back blocks that have been read, for their next use."""
        for block in blocks:
            block.used = 0
        self._free += blocks

    def _on_stream(self) -> AbstractContextManager[Any]:
        if self._stream is None:
            return nullcontext()
        return torch.get_device_module(self._device).stream(self._stream)  # type: ignore[no-any-return]


def read_blocks(blocks: list[Block]) -> Fetched:
    """Return the rows of detached blocks in the order in which they were taken. Waits for the copy of the last."""
    if blocks and blocks[-1].event is not None:
        blocks[-1].event.synchronize()
    rows = [block.host_rows[: block.used].numpy() for block in blocks]
    return np.concatenate(rows) if rows else np.empty((0, ROW_WORDS), dtype=np.int64)
