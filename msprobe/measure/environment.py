"""What can measure tensors on this machine, and why something cannot (``msprobe env``)."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

import msprobe

State = Literal["available", "fallback", "absent"]
_PACKAGES = ("torch", "torch_npu", "mindspore", "triton", "numpy", "orjson", "pydantic")


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that may be there.

    Attributes
    ----------
    name
        What it is.
    state
        ``available``; ``fallback``: something slower does its work; ``absent``: not on this machine.
    detail
        Which one it is, or why it is not there and what to do.
    """

    name: str
    state: State
    detail: str


def versions() -> dict[str, str]:
    """Return the versions of Python, msprobe and the packages it works with; "not installed" for missing ones."""
    found = {"msprobe": msprobe.__version__, "Python": f"{platform.python_version()} ({sys.executable})"}
    installed = {item.metadata["Name"].replace("-", "_") for item in metadata.distributions()}
    for package in _PACKAGES:
        found[package] = metadata.version(package) if package in installed else "not installed"
    return found


def kernel_lines() -> list[Line]:
    """Return what measures tensors of each kind of device. Imports what is installed, which may take seconds."""
    return [_cpu(), _triton(), *_npu()]


def _cpu() -> Line:
    from msprobe.kernels.cpu.bindings import availability  # noqa: PLC0415 - imported when asked for

    found = availability()
    if found.module is None:
        return Line("native CPU kernels", "fallback", f"tensors are measured by torch operations: {found.reason}")
    return Line("native CPU kernels", "available", f"instruction set {found.isa}")


def _triton() -> Line:
    from msprobe.kernels.triton.availability import triton_availability  # noqa: PLC0415

    found = triton_availability()
    if found.reason is None:
        return Line("Triton kernels", "available", f"triton {found.version} for {found.target}")
    state: State = "absent" if found.version is None else "fallback"
    return Line("Triton kernels", state, f"CUDA and ROCm tensors are measured by torch operations: {found.reason}")


def _npu() -> list[Line]:
    from msprobe.kernels.npu.availability import availability  # noqa: PLC0415

    found = availability()
    if found.torch_npu is None:
        return [Line("Ascend NPU", "absent", "; ".join(found.reasons))]
    lines = [Line("Ascend NPU", "available" if found.devices else "absent", f"{found.devices} devices")]
    detail = str(found.operators) if found.operators else "; ".join(found.reasons)
    lines.append(Line("NPU operators", "available" if found.operators else "fallback", detail))
    detail = "NPU tensors are measured by torch operations on the device: there are no kernels for them"
    lines.append(Line("NPU statistics", "fallback", detail))
    return lines
