"""Which kernel measures tensors of a device, how often each of them did, and why a slower one had to."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Literal, TypeAlias

Backend: TypeAlias = Literal["native", "torch"]

_CPU_REASON = "dtype or pending negation that the native kernels do not read"


@dataclass(slots=True)
class KernelCounts:
    """Tensors measured by each kernel in this process. Threads that race may lose a count: it is for coverage only.

    Attributes
    ----------
    native, torch
        CPU tensors by the compiled kernels and by framework operations.
    devices
        Other tensors by device type and kernel. A checksum beside statistics counts as well.
    fallbacks
        Why framework operations had to read tensors of a device type: reasons and how often.
    """

    native: int = 0
    torch: int = 0
    devices: Counter[tuple[str, str]] = field(default_factory=Counter)
    fallbacks: dict[str, Counter[str]] = field(default_factory=dict)

    def reasons(self, device: str) -> Counter[str]:
        """Return the counter of fallback reasons of a device type."""
        return self.fallbacks.setdefault(device, Counter())


#: The counts of this process.
COUNTS = KernelCounts()


@cache
def native_module() -> ModuleType | None:
    """Return the compiled CPU kernels, or None when they are not built or MSPROBE_NO_NATIVE=1 is set."""
    if os.environ.get("MSPROBE_NO_NATIVE") == "1":
        return None
    try:
        return import_module("msprobe.kernels._native")
    except ImportError:
        return None


def backend(device: str = "cpu") -> Backend:
    """Return which kernel measures tensors of `device`.

    Parameters
    ----------
    device
        Device type, such as ``"cpu"`` or ``"cuda"``; an index (``"cuda:0"``) is ignored.

    Returns
    -------
    str
        ``"native"`` for the compiled kernels, ``"torch"`` for a composition of framework operations.
    """
    return "native" if device.partition(":")[0] == "cpu" and native_module() is not None else "torch"


def counts() -> dict[str, Any]:
    """Return how many tensors each kernel measured in this process.

    Returns
    -------
    dict
        ``{"native": CPU tensors, "torch": CPU tensors, DEVICE: {KERNEL: tensors}, "fallbacks": {DEVICE: {REASON:
        tensors}}}``. Devices and reasons are there when they occurred.
    """
    native = native_module()
    encoded = native.encoded_count() if native is not None and hasattr(native, "encoded_count") else 0
    found: dict[str, Any] = {"native": COUNTS.native + encoded, "torch": COUNTS.torch}
    for (device, kernel), number in COUNTS.devices.copy().items():
        found.setdefault(f"{device} (deferred)" if device == "cpu" else device, {})[kernel] = number
    fallbacks = {device: dict(reasons) for device, reasons in COUNTS.fallbacks.copy().items() if reasons}
    if COUNTS.torch:
        fallbacks.setdefault("cpu", {})[_cpu_reason()] = COUNTS.torch
    if fallbacks:
        found["fallbacks"] = fallbacks
    return found


def _cpu_reason() -> str:
    from msprobe.kernels.cpu.bindings import availability  # noqa: PLC0415 - looked up when something fell back

    return availability().reason or _CPU_REASON
