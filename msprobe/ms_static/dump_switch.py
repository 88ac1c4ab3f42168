"""MindSpore's dump configuration is read once, then switched by step: the calls that do so, in one place."""

from __future__ import annotations

import os

from mindspore._c_expression import _dump_set_dynamic, _dump_start, _dump_step, _dump_stop, _set_init_iter

from msprobe.core.errors import ConfigError, Problem
from msprobe.ms_static.kernel_dump import KernelDump
from msprobe.store.kernel_files import write_dump_config

PARKED = 2_000_000_000
"""Iteration that no configuration names: the CPU target, which has no switch, dumps nothing there."""


class DumpSwitch:
    """Has MindSpore dump the steps that are recorded, each as the iteration of its number.

    Parameters
    ----------
    plan : KernelDump
    stepwise : bool
        Whether steps are told at all; a whole graph (O2) and the tasks that watch for errors count by themselves.
    switchable : bool
        Whether the target can stop its dump; the CPU cannot.
    """

    def __init__(self, plan: KernelDump, *, stepwise: bool, switchable: bool) -> None:
        self.plan = plan
        self._stepwise = stepwise
        self._switchable = switchable
        self._iteration = 0

    def arm(self) -> None:
        """Write the file, set the environment, have MindSpore read it.

        Raises
        ------
        ConfigError
            The file cannot be written, or MindSpore refuses it, with MindSpore's reason.
        """
        try:
            write_dump_config(self.plan.file, self.plan.content)
        except OSError as error:
            allowed = f"a folder that can be written ({error.strerror})"
            raise ConfigError([Problem("dump_path", str(self.plan.folder), allowed)]) from error
        for name, value in self.plan.environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if not self._stepwise:
            return
        if self._switchable:
            _dump_set_dynamic()
        try:
            _set_init_iter(0 if self._switchable else PARKED)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            problem = Problem("the generated dump file", str(self.plan.file), f"what MindSpore takes ({reason})")
            raise ConfigError([problem]) from error

    def on(self, step: int) -> None:
        """Dump what runs from here on as iteration ``step``."""
        if not self._stepwise:
            return
        if self._switchable and step >= self._iteration:
            _dump_step(step - self._iteration)
        else:
            _set_init_iter(step)
        self._iteration = step
        if self._switchable:
            _dump_start()

    def off(self) -> None:
        """Dump nothing from here on."""
        if not self._stepwise:
            return
        if self._switchable:
            _dump_stop()
        else:
            _set_init_iter(PARKED)
