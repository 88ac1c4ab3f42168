"""Which kernel measures tensors of a device, and how often each of them did."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Literal, TypeAlias

Backend: TypeAlias = Literal["native", "torch"]


@dataclass(slots=True)
class KernelCounts:
    """Tensors measured by each kernel in this process. Threads that race may lose a count: it is for coverage only."""

    native: int = 0
    torch: int = 0


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


def counts() -> dict[str, int]:
    """Return how many tensors each kernel measured in this process."""
    native = native_module()
    encoded = native.encoded_count() if native is not None and hasattr(native, "encoded_count") else 0
    return {"native": COUNTS.native + encoded, "torch": COUNTS.torch}
