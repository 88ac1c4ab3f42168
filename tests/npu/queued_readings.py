"""Run by a test in a process of its own, because torch_npu chooses its task queue when it starts.

Prints the readings of 50 clean calls and of one after an overflow.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import fake_cann_build
import torch


def main(folder: Path) -> None:
    """Queue readings through the compiled operators and look at the device memory without any operator."""
    runtime = fake_cann_build.load(folder)
    import torch_npu  # noqa: F401 - needs the fake
    from msprobe.kernels.npu.register_probe import RegisterProbe

    probe = RegisterProbe(torch.device("npu:0"), backend="compiled")
    synchronise, clears, reads = (lambda number=number: runtime.fake_cann_calls(number, 0) for number in (0, 3, 4))
    waits = synchronise()
    for _ in range(50):
        probe.clear()
        probe.read_into_next_slot()
    assert synchronise() == waits, "the host waited for the device"
    torch.npu.synchronize()
    assert (clears(), reads()) == (50, 50)
    runtime.fake_cann_raise_overflow(1)
    probe.read_into_next_slot()
    torch.npu.synchronize()
    rows = probe._blocks[0].rows
    words = (ctypes.c_int64 * rows.numel()).from_address(rows.data_ptr())
    print(words[: 51 * rows.stride(0) : rows.stride(0)], flush=True)
    os._exit(0)  # torch_npu's queue thread may still run when Python takes the process down, which then aborts


if __name__ == "__main__":
    main(Path(sys.argv[1]))
