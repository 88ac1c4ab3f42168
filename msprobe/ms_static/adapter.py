"""MindSpore side of a session for graph mode, and for level L2 in every mode."""

from __future__ import annotations

import os

from msprobe.core.adapter import Adapter
from msprobe.core.config_record import Config, Level
from msprobe.core.support import Framework
from msprobe.ms_static.acceptance import MODE_WORDS, check_for_mode
from msprobe.ms_static.cell_adapter import CellTapAdapter
from msprobe.ms_static.context import device_target, running_mode
from msprobe.ms_static.dump_tap_adapter import DumpTapAdapter
from msprobe.ms_static.kernel_adapter import KernelDumpAdapter
from msprobe.ms_static.kernel_dump import Target


def framework_word() -> Framework:
    """Return for whom a configuration must be valid now: the mode that the script runs in."""
    return MODE_WORDS[running_mode()]


def static_adapter(config: Config) -> Adapter:
    """Return the adapter for a configuration.

    Parameters
    ----------
    config : Config
        Valid for some mode of MindSpore.

    Raises
    ------
    ConfigError
        The mode that the script runs in now does not take it: the message says what does.
    """
    check_for_mode(config, running_mode(), os.environ)
    if config.level is Level.L2:
        return KernelDumpAdapter(config)
    return CellTapAdapter(config) if device_target() is Target.CPU else DumpTapAdapter(config)
