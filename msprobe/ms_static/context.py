"""What MindSpore says about this process: how graphs run, where, and which rank it is."""

from __future__ import annotations

import mindspore
from mindspore._c_expression import MSContext
from mindspore.common.api import _pynative_executor
from mindspore.communication import get_local_rank, get_local_rank_size, get_rank
from mindspore.communication._comm_helper import GlobalComm

from msprobe.core.support import Mode
from msprobe.ms_static.acceptance import mode_of_jit_level
from msprobe.ms_static.kernel_dump import Target

_FIRST_ASCEND = "ascend910"
"""The one Ascend generation whose graphs run as a whole (O2) where nothing else is said."""


def running_mode() -> Mode:
    """Return how the script runs: dynamic graph, or graph mode with its jit_level."""
    if mindspore.get_context("mode") != mindspore.GRAPH_MODE:
        return Mode.DYNAMIC
    return mode_of_jit_level(_jit_level())


def _jit_level() -> str:
    configured = mindspore.context.get_jit_config().get("jit_level") or mindspore.get_context("jit_level")
    if configured:
        return str(configured)
    whole = device_target() is Target.ASCEND and MSContext.get_instance().get_ascend_soc_version() == _FIRST_ASCEND
    return "O2" if whole else "O0"


def device_target() -> Target:
    """Return where graphs run."""
    return Target.from_word(mindspore.get_context("device_target"))


def rank() -> int | None:
    """Rank of this process; None before communication is initialised."""
    return int(get_rank()) if GlobalComm.INITED else None


def numbering() -> tuple[int, int] | None:
    """Rank on this node and number of ranks there; None before communication is initialised."""
    return (int(get_local_rank()), int(get_local_rank_size())) if GlobalComm.INITED else None


def wait_for_kernels() -> None:
    """Return when everything that the script has launched on the host is done."""
    _pynative_executor.sync()
