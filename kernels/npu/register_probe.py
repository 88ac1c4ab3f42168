"""Read the float status register after many calls, and fetch all readings with one copy.

The register is set by any operation of the device that overflows or meets a NaN, and stays set until it is cleared.
`RegisterProbe` queues clears and reads in stream order: reading number ``i`` lands in row ``i`` of a buffer on the
device. The runtime wants the device address of a word that holds the address of that row, so a table of all these words
is copied to the device once, when the buffer is made; a reading copies nothing and waits for nothing.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import torch
from msprobe.kernels.npu import extension

RegisterBackend: TypeAlias = Literal["compiled", "runtime"]

#: Readings of one buffer; 256 KiB on the device.
BLOCK_ROWS = 4096
_ROW_WORDS = 8
_ROW_BYTES = _ROW_WORDS * 8
_CHECK_MODE = 0


class RegisterError(RuntimeError):
    """A call of the CANN runtime failed; the text names the call, its code and what to do."""


class _Block(NamedTuple):
    """Buffer int64 [rows, 8], and int64 [rows] with the addresses of its rows. Both on the device."""

    rows: torch.Tensor
    addresses: torch.Tensor


class Readings:
    """Readings that were taken out of a probe; their buffers go back to it when they are fetched."""

    __slots__ = ("_blocks", "_give_back", "_used")

    def __init__(self, blocks: list[_Block], used: int, give_back: Callable[[list[_Block]], None]) -> None:
        self._blocks = blocks
        self._used = used
        self._give_back = give_back

    def fetch(self) -> list[bool]:
        """Wait for the current stream and return the readings in order: True where the register was set.

        One copy, whatever their number. To be called once.
        """
        if not self._used:
            return []
        values = torch.cat([block.rows[:, 0] for block in self._blocks])[: self._used].tolist()
        self._give_back(self._blocks)
        return [value != 0 for value in values]


class RegisterProbe:
    """Float status readings of one NPU.

    Call everything here inside `msprobe.measure.quiet.Quiet`: the operations must not be seen by modes of the user.

    Parameters
    ----------
    device
        The NPU, with index.
    rows
        Readings of one buffer. When it is full another one is made, which costs one copy to the device; buffers are
        used again after `Readings.fetch`.
    backend
        ``"compiled"`` for the operators of the extension, which wait for nothing; ``"runtime"`` calls the library of
        the runtime, which makes torch_npu hand over its queued tasks first. None takes the first one that is there.

    Raises
    ------
    RegisterError
        If the extension is asked for and not built, or the library of the runtime is missing.
    """

    __slots__ = ("_blocks", "_clear", "_device", "_lock", "_read", "_rows", "_spare", "_used", "backend")

    def __init__(self, device: torch.device, rows: int = BLOCK_ROWS, backend: RegisterBackend | None = None) -> None:
        compiled = extension.operators() if backend != "runtime" else None
        if compiled is not None:
            self._clear: Callable[[torch.Tensor], object] = compiled.clear_float_status.default
            self._read: Callable[[torch.Tensor, int], object] = compiled.read_float_status.default
        elif backend == "compiled":
            raise RegisterError(f"float status register of {device}: {extension.find()[1]}")
        else:
            runtime = _Runtime(device)
            self._clear, self._read = runtime.clear, runtime.read
        self.backend: RegisterBackend = "runtime" if compiled is None else "compiled"
        self._device = device
        self._rows = rows
        self._lock = threading.Lock()
        self._blocks = [self._make_block()]
        self._spare = [self._make_block()]  # for readings while those of the first one are fetched
        self._used = 0

    def clear(self) -> None:
        """Queue a clear of the register."""
        self._clear(self._blocks[0].addresses)

    def read_into_next_slot(self) -> int:
        """Queue a reading; returns its index in what the next `fetch` gives."""
        with self._lock:  # backward runs in a thread of its own
            index = self._used
            self._used += 1
            block, row = divmod(index, self._rows)
            if block == len(self._blocks):
                self._blocks.append(self._next_block())
            addresses = self._blocks[block].addresses
        self._read(addresses, row)
        return index

    def take(self) -> Readings:
        """Hand out every reading so far, without waiting. The next one has index 0 and lands in another buffer.

        Readings may go on while another thread fetches these.
        """
        with self._lock:
            used, self._used = self._used, 0
            if not used:
                return Readings([], 0, self._spare.extend)
            blocks, self._blocks = self._blocks, [self._next_block()]
        return Readings(blocks, used, self._spare.extend)

    def fetch(self) -> list[bool]:
        """Wait for the current stream and return every reading since the last `fetch` or `take`."""
        return self.take().fetch()

    def _next_block(self) -> _Block:
        return self._spare.pop() if self._spare else self._make_block()

    def _make_block(self) -> _Block:
        # A buffer made in inference mode could not be written outside it.
        with torch.inference_mode(mode=False):
            rows = torch.zeros(self._rows, _ROW_WORDS, dtype=torch.int64, device=self._device)
            first = rows.data_ptr()
            # Computed on the host, because the device's arange need not be exact for numbers as large as addresses.
            addresses = torch.arange(first, first + self._rows * _ROW_BYTES, _ROW_BYTES, dtype=torch.int64)
            return _Block(rows, addresses.to(self._device))


class _Runtime:
    """The register through the C interface of the runtime, where the extension is not built."""

    __slots__ = ("_clear", "_device", "_read")

    def __init__(self, device: torch.device) -> None:
        try:
            library = ctypes.CDLL("libascendcl.so")
            self._clear = library.aclrtNpuClearFloatOverFlowStatus
            self._read = library.aclrtNpuGetFloatOverFlowStatus
        except (OSError, AttributeError) as error:
            raise RegisterError(
                f"float status register of {device}: {error}; load the environment of CANN (source set_env.sh)"
            ) from error
        self._clear.argtypes = [ctypes.c_uint32, ctypes.c_void_p]
        self._read.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p]
        self._device = device

    def clear(self, anchor: torch.Tensor) -> None:
        with torch.get_device_module("npu").device(anchor.device):
            _check("aclrtNpuClearFloatOverFlowStatus", self._clear(_CHECK_MODE, self._stream()))

    def read(self, addresses: torch.Tensor, index: int) -> None:
        word = addresses.data_ptr() + index * addresses.itemsize
        with torch.get_device_module("npu").device(addresses.device):
            code = self._read(word, _ROW_BYTES, _CHECK_MODE, self._stream())
        _check("aclrtNpuGetFloatOverFlowStatus", code)

    def _stream(self) -> int:
        return int(torch.get_device_module("npu").current_stream(self._device).npu_stream)


def _check(call: str, code: int) -> None:
    if code:
        raise RegisterError(f"{call} failed with code {code}; look the code up in the error codes of AscendCL")
