"""Host memory for copies of tensors that wait to be written: taken, given back, used again.

Fresh memory costs several times more than the copy into it, because the system clears every page on first use. So what
was given back is kept for the next tensor, up to a limit.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import torch

#: Memory that waits for its next use, over all sizes, is at most this.
KEPT = 256 << 20
_SMALLEST = 1 << 12


class HostCopy:
    """A piece of host memory that holds the content of one tensor.

    It is no tensor: one that is made here would be seen by the program's own dispatch modes and count as its memory.

    Parameters
    ----------
    size
        Length of the piece.
    pinned
        Whether a device can write into it while the program goes on. Make such a piece inside `quiet.Quiet`.
    """

    __slots__ = ("_array", "_pinned_memory", "address", "pinned", "size")

    def __init__(self, size: int, *, pinned: bool) -> None:
        self._pinned_memory: torch.Tensor | None = None
        if pinned:
            with torch.inference_mode(mode=False):  # memory made in inference mode could not be written outside it
                self._pinned_memory = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
            self._array: np.ndarray[Any, np.dtype[np.uint8]] = self._pinned_memory.numpy()
        else:
            self._array = np.empty(size, dtype=np.uint8)
        self.address = self._array.ctypes.data
        self.size = size
        self.pinned = pinned

    def fill(self, address: int, nbytes: int) -> None:
        """Copy plain host memory into the piece."""
        ctypes.memmove(self.address, address, nbytes)

    def view(self, nbytes: int) -> memoryview:
        """Return the first `nbytes` bytes; valid until the piece is given back."""
        return self._array.data[:nbytes]

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...], nbytes: int) -> torch.Tensor:
        """Return the first `nbytes` bytes as a contiguous tensor; call it inside `quiet.Quiet`."""
        memory = self._pinned_memory
        if memory is None:
            with torch.inference_mode(mode=False):
                memory = torch.from_numpy(self._array)
        return memory[:nbytes].view(dtype).view(shape)


class HostCopies:
    """Pieces of host memory, given out to any thread."""

    __slots__ = ("_free", "_free_bytes", "_lock")

    def __init__(self) -> None:
        self._free: dict[tuple[int, bool], list[HostCopy]] = {}
        self._free_bytes = 0
        self._lock = threading.Lock()

    def take(self, nbytes: int, *, pinned: bool = False) -> HostCopy:
        """Return a piece of at least `nbytes` bytes (see `rounded`).

        Raises
        ------
        RuntimeError
            There is not that much memory, or it cannot be pinned.
        """
        size = rounded(nbytes)
        with self._lock:
            pieces = self._free.get((size, pinned))
            if pieces:
                self._free_bytes -= size
                return pieces.pop()
        return HostCopy(size, pinned=pinned)

    def give_back(self, copy: HostCopy) -> None:
        """Take a piece back; nobody may look at it any more."""
        with self._lock:
            if self._free_bytes + copy.size <= KEPT:
                self._free_bytes += copy.size
                self._free.setdefault((copy.size, copy.pinned), []).append(copy)


def rounded(nbytes: int) -> int:
    """Return the length of the piece for `nbytes` bytes: few different ones, at most a quarter too long.

    >>> [rounded(size) for size in (1, 4096, 4097, 5000, 100_000)]
    [4096, 4096, 5120, 5120, 114688]
    """
    if nbytes <= _SMALLEST:
        return _SMALLEST
    step = 1 << ((nbytes - 1).bit_length() - 3)
    return -(-nbytes // step) * step
