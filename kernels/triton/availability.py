"""Can the Triton kernels run here? The answer has a type, so that a program can print why not."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec


@dataclass(frozen=True, slots=True)
class TritonAvailability:
    """What is known about Triton in this process.

    Attributes
    ----------
    version
        Version of the installed triton, None when it cannot be imported.
    target
        What kernels are compiled for, such as ``cuda:90`` or ``hip:gfx942``; ``interpreter`` when TRITON_INTERPRET=1
        runs them as numpy programs on CPU tensors; None when they cannot run.
    reason
        Why they cannot run, and what to do; None when they can.
    """

    version: str | None
    target: str | None
    reason: str | None

    @property
    def usable(self) -> bool:
        """Whether a kernel can be launched."""
        return self.target is not None

    def serves(self, device_type: str) -> bool:
        """Tell whether tensors of a device type (``torch.device.type``) can be read; ROCm devices are ``cuda`` too."""
        if self.target is None:
            return False
        return device_type == ("cpu" if self.target == "interpreter" else "cuda")


@cache
def triton_availability() -> TritonAvailability:
    """Return whether the kernels can run in this process. The first call imports triton, which takes about a second."""
    if find_spec("triton") is None:
        return TritonAvailability(None, None, "triton is not installed (pip install 'msprobe[triton]')")
    try:
        version = str(import_module("triton").__version__)
    except Exception as error:  # noqa: BLE001 - a broken installation raises anything; the reason is the result
        return TritonAvailability(None, None, f"import triton failed: {type(error).__name__}: {error}")
    if os.environ.get("MSPROBE_NO_NATIVE") == "1":
        return TritonAvailability(version, None, "Triton kernels are switched off by MSPROBE_NO_NATIVE=1")
    if os.environ.get("TRITON_INTERPRET") == "1":
        return TritonAvailability(version, "interpreter", None)
    try:
        target = import_module("triton.runtime").driver.active.get_current_target()
    except Exception as error:  # noqa: BLE001 - drivers raise RuntimeError, OSError, ImportError and their own classes
        reason = f"triton {version} found no usable GPU driver: {type(error).__name__}: {error}"
        return TritonAvailability(version, None, reason)
    return TritonAvailability(version, f"{target.backend}:{target.arch}", None)
