"""What an NPU user can expect on this machine, and why something is missing."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

from msprobe.kernels.npu import extension

#: First release of CANN in which the float status register can be read into a table of addresses.
REGISTER_CANN = (8, 5)


@dataclass(frozen=True, slots=True)
class NpuAvailability:
    """State of the NPU side of an installation.

    Attributes
    ----------
    torch_npu
        Version of torch_npu, None when it cannot be imported.
    devices
        Number of NPUs that torch_npu sees.
    operators
        Library with the compiled operators, None when there is none for these versions.
    reasons
        Why something is missing: one sentence each.
    """

    torch_npu: str | None
    devices: int
    operators: Path | None
    reasons: tuple[str, ...]


def availability() -> NpuAvailability:
    """Find out what there is. Imports torch_npu, and with it torch, if it is installed."""
    if importlib.util.find_spec("torch_npu") is None:
        return NpuAvailability(None, 0, None, ("torch_npu is not installed: tensors on Ascend NPUs do not exist here",))
    reasons: list[str] = []
    version, devices = None, 0
    # torch may be imported here for the first time, and would then import torch_npu by itself.
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    try:
        torch_npu = importlib.import_module("torch_npu")
        version = str(torch_npu.__version__)
        devices = int(importlib.import_module("torch").npu.device_count())
    except (ImportError, OSError, RuntimeError) as error:
        reasons.append(
            f"torch_npu cannot be imported: {type(error).__name__}: {error}; "
            "load the environment of CANN (source set_env.sh) before Python starts"
        )
    if version is not None and not devices:
        reasons.append("torch_npu sees no device; compare `npu-smi info` and ASCEND_RT_VISIBLE_DEVICES")
    library, missing = extension.find()
    if library is not None and version is not None:
        missing = extension.problem()
        library = library if missing is None else None
    if missing is not None:
        reasons.append(missing)
    return NpuAvailability(version, devices, library, tuple(reasons))


def register_problems() -> tuple[str, ...]:
    """Return why the float status register says nothing in this process; empty when it can be used.

    Needs torch_npu. The register is written in saturation mode only, and that is chosen before the process starts.
    """
    problems = []
    mode = os.environ.get("INF_NAN_MODE_FORCE_DISABLE")
    if mode != "1":
        problems.append(
            f"INF_NAN_MODE_FORCE_DISABLE is {mode!r}: in INF_NAN mode the float status register is not set; "
            "start the process with INF_NAN_MODE_FORCE_DISABLE=1"
        )
    text = str(importlib.import_module("torch_npu").npu.utils.get_cann_version("CANN"))
    found = re.search(r"(\d+)\.(\d+)", text)
    wanted = ".".join(map(str, REGISTER_CANN))
    if found is None:
        problems.append(f"the version of CANN is unknown (torch_npu reports {text!r}): {wanted} or newer is needed")
    elif (int(found[1]), int(found[2])) < REGISTER_CANN:
        problems.append(f"CANN {text} is too old for the float status register: install {wanted} or newer")
    return tuple(problems)
