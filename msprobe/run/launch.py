"""Put a debugger around a program: check everything first, wait for torch, run the program."""

from __future__ import annotations

import atexit
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from msprobe.core.config_load import load_config
from msprobe.core.interruptions import pass_on_interruption
from msprobe.run.import_watch import when_imported
from msprobe.run.program import Program, check_program, run_program
from msprobe.run.step_class import StepClass

if TYPE_CHECKING:
    from msprobe.run.steps import ScriptSteps

_LOG = logging.getLogger("msprobe")


class Launch:
    """One run of a program under a debugger.

    Parameters
    ----------
    config_path : Path
    program : Program
    step_on : str, optional
        Module class whose calls divide the run into steps; None: optimiser steps.

    Raises
    ------
    ConfigError
        If the configuration cannot be used.
    LifecycleError
        If the script cannot be read or ``step_on`` is no name of a class.
    """

    def __init__(self, config_path: Path, program: Program, step_on: str | None = None) -> None:
        config = load_config(config_path, framework="pytorch")
        check_program(program)
        self._program = program
        self._config_path = Path.cwd() / config_path
        # The program may change folders before it imports torch. A file that is followed may change its dump_path.
        self._dump_path = Path.cwd() / config.dump_path.expanduser() if config.dump_enable is None else None
        self._step_class = StepClass(step_on) if step_on is not None else None
        self._steps: ScriptSteps | None = None
        self._pid = os.getpid()

    def __call__(self) -> None:
        """Run the program; what it raises passes through."""
        atexit.register(self._tell)
        when_imported("torch", self._watch)
        run_program(self._program)

    def _watch(self) -> None:
        try:
            from msprobe.pytorch import PrecisionDebugger  # noqa: PLC0415 - torch is there now
            from msprobe.run.steps import ScriptSteps  # noqa: PLC0415

            debugger = PrecisionDebugger(self._config_path, dump_path=self._dump_path)
            self._steps = ScriptSteps(debugger, self._step_class)
            self._steps.begin()
        except Exception as error:  # noqa: BLE001 - hook boundary: the program goes on
            pass_on_interruption(error)
            _LOG.warning("msprobe run: nothing is recorded: %s: %s", type(error).__name__, error)

    def _tell(self) -> None:
        """At exit: say why there may be less than was hoped for."""
        if os.getpid() != self._pid:
            return
        if self._steps is None:
            _LOG.warning("msprobe run: the program did not import torch, so nothing was recorded")
        elif self._step_class is not None and not self._step_class.calls:
            _LOG.warning("msprobe run: %s", self._step_class.unused())
