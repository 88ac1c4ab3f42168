"""What level L0 needs of MindSpore's dump on targets where a graph cannot call Python. Pure.

Task ``tensor``: a path for TensorDump. Task ``statistics``: TensorDump itself is not run; MindSpore's kernel dump
writes the statistics of its inputs instead, so it is given a file as at level L2.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from msprobe.core.config_record import Config, Device, Precision
from msprobe.core.support import Mode
from msprobe.ms_static.acceptance import absolute_path, check_for_mode
from msprobe.ms_static.categories import statistic_categories
from msprobe.ms_static.kernel_dump import ACL_VARIABLE, CONFIG_VARIABLE, NET_NAME, KernelDump
from msprobe.ms_static.tap_places import Place
from msprobe.ms_static.versions import Version, installed_version

OPERATOR = "TensorDump"
SKIP_VARIABLE = "MS_KERNEL_LAUNCH_SKIP"
MODULES_VARIABLE = "MS_JIT_MODULES"
TAP_FOLDER = "taps"

_PACKAGE = "msprobe"
_TAP = re.compile(r"tap-(\d+)(?:_|\Z)")


def tap_prefix(config: Config) -> str:
    """Return the path and beginning of the name of every file; MindSpore replaces ``{rank}``.

    It has no ``{step}``: what MindSpore counts as a step need not be one of ours. Files are read when recording stops.
    """
    return f"{absolute_path(config.dump_path)}/{TAP_FOLDER}/{{rank}}/tap-"


def place_in_name(name: str) -> Place | None:
    """Return the place that a file or a kernel is named after; None if it is named after none."""
    found = _TAP.search(name)
    return Place.from_number(int(found[1])) if found is not None else None


def plan_tap_statistics(
    config: Config, mode: Mode, *, version: Version | None = None, environ: Mapping[str, str] = os.environ
) -> KernelDump:
    """Return what MindSpore is given for statistics of Cells.

    Parameters
    ----------
    config : Config
        With level L0 and task statistics; valid for some mode of MindSpore.
    mode : Mode
        Graph mode with jit_level O0 or O1.
    version : tuple of int, optional
        The MindSpore that reads the file; by default the installed one.
    environ : mapping
        Environment of the process that runs the script.

    Raises
    ------
    ConfigError
        With every reason why the mode does not take this configuration.
    """
    check_for_mode(config, mode, environ)
    folder = absolute_path(config.dump_path)
    common: dict[str, Any] = {
        "dump_mode": 1,
        "path": str(folder),
        "net_name": NET_NAME,
        "iteration": "|".join(map(str, sorted(config.step))) or "all",
        "saved_data": "statistic",
        "input_output": 0,
        "kernels": [OPERATOR],
        "support_device": list(range(8)),
        "op_debug_mode": 0,
        "statistic_category": statistic_categories(config.summary_mode, version or installed_version()),
    }
    e2e = {
        "enable": False,
        "trans_flag": True,
        "stat_calc_mode": Device.DEVICE.value,
        "device_stat_precision_mode": "high" if config.precision is Precision.HIGH else "low",
    }
    name = "kernel_kbyk_dump.json"
    modules = [word for word in environ.get(MODULES_VARIABLE, "").split(",") if word and word != _PACKAGE]
    environment = {
        CONFIG_VARIABLE: str(folder / name),
        ACL_VARIABLE: None,
        SKIP_VARIABLE: OPERATOR,
        MODULES_VARIABLE: ",".join([*modules, _PACKAGE]),
    }
    return KernelDump(folder, name, {"common_dump_settings": common, "e2e_dump_settings": e2e}, environment)
