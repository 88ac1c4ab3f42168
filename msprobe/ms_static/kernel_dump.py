"""From the configuration to what MindSpore's own kernel dump is given: a JSON file and environment variables. Pure.

The keys of the file are those of MindSpore's dump document. Graphs with jit_level O0 and O1, and the ``jit`` parts of a
dynamic-graph script, run kernel by kernel; those with O2 run as a whole, and their file has no ``e2e_dump_settings``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from msprobe.core.config_record import CheckMode, Config, DataMode, Device, Level, Precision, Task
from msprobe.core.errors import ConfigError, Problem
from msprobe.core.support import Mode
from msprobe.ms_static.acceptance import absolute_path, check_for_mode
from msprobe.ms_static.categories import statistic_categories
from msprobe.ms_static.versions import CHECK_MODE_UNTIL, Version, installed_version, version_text

CONFIG_VARIABLE = "MINDSPORE_DUMP_CONFIG"
ACL_VARIABLE = "MS_ACL_DUMP_CFG_PATH"
NET_NAME = "Net"

_ALL_DEVICES = tuple(range(8))
# The CPU target cannot switch its dump off, but leaves out iterations that are not named: so all that can be are named,
# and outside start() and stop() the count stands beyond them (`dump_switch.PARKED`).
_ALL_NAMED = "0-1000000000"
_OVERFLOW_MODES = {CheckMode.ALL: 3, CheckMode.AICORE: 1, CheckMode.ATOMIC: 2}
_EXCEPTION_MODE = 4


class Target(Enum):
    """``device_target`` of MindSpore."""

    ASCEND = "Ascend"
    GPU = "GPU"
    CPU = "CPU"

    @classmethod
    def from_word(cls, word: str) -> Target:
        """Return the target of this name, in any case.

        Raises
        ------
        ConfigError
            If there is none.
        """
        for target in cls:
            if target.value.lower() == word.lower():
                return target
        allowed = "one of " + ", ".join(f'"{target.value}"' for target in cls)
        raise ConfigError([Problem("device_target", word, allowed, origin="argument")])


@dataclass(frozen=True, slots=True)
class KernelDump:
    """What MindSpore is given.

    Attributes
    ----------
    folder : Path
        Absolute dump_path: holds the file, and what MindSpore dumps.
    file_name : str
    content : mapping
        The file.
    environment : mapping of str to (str or None)
        Variables to set before MindSpore first reads its dump configuration; None: to unset.
    measured : bool
        MindSpore stores no statistics on this target: it dumps tensors, whose statistics we write.
    remarks : tuple of str
        What was accepted although it has no effect.
    """

    folder: Path
    file_name: str
    content: Mapping[str, Any]
    environment: Mapping[str, str | None]
    measured: bool = False
    remarks: tuple[str, ...] = ()

    @property
    def file(self) -> Path:
        """Where the file belongs."""
        return self.folder / self.file_name


def plan_kernel_dump(
    config: Config,
    mode: Mode,
    *,
    target: Target = Target.ASCEND,
    version: Version | None = None,
    environ: Mapping[str, str] = os.environ,
) -> KernelDump:
    """Return what MindSpore is given at level L2.

    Parameters
    ----------
    config : Config
        With level L2; valid for some mode of MindSpore.
    mode : Mode
        The mode that the script runs in.
    target : Target
    version : tuple of int, optional
        The MindSpore that reads the file; by default the installed one.
    environ : mapping
        Environment of the process that runs the script.

    Raises
    ------
    ConfigError
        With every reason why the mode or the target does not take this configuration.
    """
    if config.level is not Level.L2:
        hint = (
            'level "L0" taps the graph itself and is given no file, but with task "statistics" on Ascend; levels "L1" '
            'and "mix" need a dynamic graph'
        )
        raise ConfigError([Problem("level", config.level.value, '"L2" for a kernel dump', hint)])
    check_for_mode(config, mode, environ)
    version = version or installed_version()
    if config.task is Task.OVERFLOW_CHECK:
        return _overflow_dump(config, mode, target, version)
    if config.task is Task.EXCEPTION_DUMP:
        return _exception_dump(config, target)
    return _data_dump(config, mode, target, version)


def _data_dump(config: Config, mode: Mode, target: Target, version: Version) -> KernelDump:
    """Return the plan of tasks ``statistics`` and ``tensor``."""
    measured = config.task is Task.STATISTICS and target is Target.CPU
    statistics = config.task is Task.STATISTICS and not measured
    common = _common_settings(config)
    common["iteration"] = _iteration(config, target)
    common["saved_data"] = "statistic" if statistics else "tensor"
    if statistics:
        common["statistic_category"] = statistic_categories(config.summary_mode, version)
    content: dict[str, Any] = {"common_dump_settings": common}
    folder = absolute_path(config.dump_path)
    remarks: tuple[str, ...] = ()
    if measured and config.device is Device.DEVICE:
        remarks = ('statistics.device "device" has no effect on device target CPU',)
    if mode is Mode.STATIC_O2:
        # Without a format of its own the whole graph is dumped as bin, of which MindSpore makes no statistics.
        common |= {"op_debug_mode": 0, "file_format": "npy" if statistics else config.file_format.value}
        if target is Target.CPU:
            content["e2e_dump_settings"] = _e2e_settings(config, statistics=False)  # it runs kernel by kernel
        environment = _environment(folder / "kernel_graph_dump.json", acl=common["dump_mode"] == 0)
        return KernelDump(folder, "kernel_graph_dump.json", content, environment, measured, remarks)
    content["e2e_dump_settings"] = _e2e_settings(config, statistics=statistics)
    environment = _environment(folder / "kernel_kbyk_dump.json")
    return KernelDump(folder, "kernel_kbyk_dump.json", content, environment, measured, remarks)


def _common_settings(config: Config) -> dict[str, Any]:
    return {
        "dump_mode": 1 if config.list else 0,
        "path": str(absolute_path(config.dump_path)),
        "net_name": NET_NAME,
        "iteration": "all",
        "saved_data": "tensor",
        "input_output": _input_output(config.data_mode),
        "kernels": list(config.list),
        "support_device": sorted(config.rank or _ALL_DEVICES),
    }


def _e2e_settings(config: Config, *, statistics: bool) -> dict[str, Any]:
    settings: dict[str, Any] = {"enable": not config.async_dump, "trans_flag": True}
    if statistics:
        settings["stat_calc_mode"] = config.device.value
        settings["device_stat_precision_mode"] = "high" if config.precision is Precision.HIGH else "low"
    return settings


def _exception_dump(config: Config, target: Target) -> KernelDump:
    """Return the plan that has MindSpore keep the inputs of the kernel that fails."""
    common = _common_settings(config) | {"op_debug_mode": _EXCEPTION_MODE, "file_format": "npy"}
    content = {"common_dump_settings": common, "e2e_dump_settings": {"enable": True, "trans_flag": True}}
    folder, name = absolute_path(config.dump_path), "kernel_graph_exception_dump.json"
    remarks = []
    if target is Target.CPU:
        remarks.append("task exception_dump keeps nothing on device target CPU: MindSpore watches Ascend kernels only")
    return KernelDump(folder, name, content, _environment(folder / name), remarks=tuple(remarks))


def _overflow_dump(config: Config, mode: Mode, target: Target, version: Version) -> KernelDump:
    """Return the plan that has MindSpore keep kernels whose result overflows."""
    if target is Target.CPU:
        allowed = '"Ascend" for task "overflow_check": the CPU has no overflow detection'
        hint = 'use task "statistics" and `msprobe overflow_check`'
        raise ConfigError([Problem("device_target", target.value, allowed, hint)], f"configuration for {mode.value}")
    common = _common_settings(config)
    common |= {"saved_data": "full", "op_debug_mode": _OVERFLOW_MODES[config.check_mode], "file_format": "npy"}
    folder, name = absolute_path(config.dump_path), "kernel_graph_overflow_check.json"
    remarks = []
    if config.check_mode is not CheckMode.ALL and version >= CHECK_MODE_UNTIL:
        remarks.append(
            f"overflow_check.check_mode {config.check_mode} means all with MindSpore {version_text(version)}: "
            f"kinds are told apart before {version_text(CHECK_MODE_UNTIL)} only"
        )
    return KernelDump(
        folder, name, {"common_dump_settings": common}, _environment(folder / name), remarks=tuple(remarks)
    )


def _iteration(config: Config, target: Target) -> str:
    if config.step:
        return "|".join(map(str, sorted(config.step)))
    return _ALL_NAMED if target is Target.CPU else "all"


def _input_output(sides: DataMode) -> int:
    return 0 if sides.input == sides.output else 1 if sides.input else 2


def _environment(file: Path, *, acl: bool = False) -> dict[str, str | None]:
    return {CONFIG_VARIABLE: str(file), ACL_VARIABLE: str(file) if acl else None}
