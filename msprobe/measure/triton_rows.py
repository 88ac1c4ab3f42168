"""The Triton kernels as a dump needs them: where they can run, and what their results mean."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache, partial, reduce
from typing import Any

import torch

from msprobe.measure.backends import COUNTS
from msprobe.measure.checksums import Parts, checksum_cpu, combine_hashes, hex64
from msprobe.measure.cpu import summarise
from msprobe.measure.dtypes import DtypeInfo
from msprobe.measure.entry_parts import ChecksumMode
from msprobe.measure.records import Statistics, mean_and_norm

#: Result rows that are copied to the host at a time.
BLOCK_ROWS = 4096
_OTHER_DEVICE = "the Triton kernels are for CUDA and ROCm devices"


@cache
def missing_triton(kind: str) -> str | None:
    """Return why the Triton kernels do not read tensors of a device type, None when they do.

    The first call for a device that they could read imports triton, which takes about a second.
    """
    from msprobe.kernels.triton.availability import triton_availability  # noqa: PLC0415 - looks for triton

    if kind not in ("cuda", "cpu"):
        return _OTHER_DEVICE
    found = triton_availability()
    if found.serves(kind):
        return None
    return found.reason or f"triton runs for {found.target}"


class TritonRows:
    """Launches kernels for tensors of one device type. What they refuse is counted in `COUNTS` with the reason.

    Call it inside `quiet.Quiet`.

    Parameters
    ----------
    kind
        Device type for which `missing_triton` returns None.
    low, zeros
        See `deferred.DeferredRows`.
    """

    __slots__ = ("_kernels", "_kind", "_low")

    def __init__(self, kind: str, *, low: bool, zeros: bool) -> None:
        from msprobe.kernels.triton.device_statistics import DeviceStatistics  # noqa: PLC0415 - needs triton

        self._kernels = DeviceStatistics(zeros=zeros, rows=BLOCK_ROWS, refused=COUNTS.reasons(kind))
        self._kind = kind
        self._low = low

    def add(self, tensor: torch.Tensor, info: DtypeInfo, sink: Callable[[Statistics], None]) -> bool:
        """Launch the statistics of a strided tensor with at least one element; return whether a kernel took it."""
        numel, low = tensor.numel(), self._low

        def deliver(result: Any) -> None:
            found = result.reduction
            mean, norm = mean_and_norm(found, numel * info.numbers)
            moments = mean * result.scale, norm * result.scale
            sink(summarise(found, numel, info, low=low, moments=moments))

        return bool(self._kernels.submit(tensor, deliver))

    def add_checksum(self, mode: ChecksumMode, parts: Parts, sink: Callable[[str], None]) -> bool:
        """Launch the checksum of strided tensors; return whether kernels took all that are on the device.

        Parts on the host (the sizes of nested tensors) are read at once.
        """
        joined = _JoinedChecksum(mode, parts, sink)
        for index, part in enumerate(parts):
            if part.device.type != self._kind:
                joined.receive(index, int(checksum_cpu(mode, (part,)), 16))
            elif not self._kernels.submit_checksum(
                "crc32" if mode == "md5" else mode, part, partial(joined.receive, index)
            ):
                return False  # what was launched for earlier parts is never complete, and so never delivered
        return True

    def flush(self) -> None:
        """Wait for the kernels launched so far and hand their results to the sinks."""
        self._kernels.flush()


class _JoinedChecksum:
    """The checksums of parts as they come in, in any thread, and their common one when all are there."""

    __slots__ = ("_mode", "_numbers", "_sink", "_sizes")

    def __init__(self, mode: ChecksumMode, parts: Parts, sink: Callable[[str], None]) -> None:
        self._mode = mode
        self._sink = sink
        self._sizes = [part.numel() * part.itemsize for part in parts]
        self._numbers: dict[int, int] = {}

    def receive(self, index: int, number: int) -> None:
        """Take the checksum of one part."""
        self._numbers[index] = number
        if len(self._numbers) == len(self._sizes):
            self._sink(self._text([self._numbers[place] for place in range(len(self._sizes))]))

    def _text(self, numbers: list[int]) -> str:
        if self._mode == "xor":
            return hex64(reduce(operator.xor, numbers))
        if self._mode == "hash":
            return hex64(combine_hashes(numbers))
        from msprobe.kernels.triton.crc32 import join_crc32  # noqa: PLC0415 - needs triton

        total = numbers[0]
        for number, size in zip(numbers[1:], self._sizes[1:], strict=True):
            total = join_crc32(total, number, size)
        return f"{total:08x}"
