"""What a PyTorch user imports.

>>> from msprobe.pytorch import PrecisionDebugger
>>> debugger = PrecisionDebugger(config_path="config.json")          # doctest: +SKIP
>>> for batch in debugger.steps(loader, model):                      # doctest: +SKIP
...     loss = model(batch).sum(); loss.backward(); optimizer.step()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

from msprobe.core.config_record import Config
from msprobe.core.debugger import Debugger
from msprobe.core.errors import ConfigError, LifecycleError, MsprobeError, NaNDetectedError
from msprobe.core.saving import VariableSaver
from msprobe.core.support import Framework
from msprobe.dispatch.adapter import PytorchAdapter
from msprobe.dispatch.api_mode import ApiMode
from msprobe.dispatch.custom_calls import recording
from msprobe.dispatch.seeding import seed_all

__all__ = [
    "ConfigError",
    "LifecycleError",
    "MsprobeError",
    "NaNDetectedError",
    "PrecisionDebugger",
    "module_dump",
    "module_dump_end",
    "save",
    "seed_all",
]


class PrecisionDebugger(Debugger):
    """Record what flows through a PyTorch model, step by step; see :class:`msprobe.core.debugger.Debugger`.

    A process has one debugger: a second call returns the first. The life-cycle methods also work on the class
    (``PrecisionDebugger.start()``), so that files far from the construction need no reference.

    Parameters
    ----------
    config_path : str or Path, optional
        A config.json; the packaged default otherwise.
    task, dump_path, level, step
        As in the config file; a value given here beats the file.

    Raises
    ------
    ConfigError
        Everything that is wrong with the configuration, in one message.
    """

    def _framework(self) -> Framework:
        return "pytorch"

    def _make_adapter(self, config: Config) -> PytorchAdapter:
        return PytorchAdapter(config)

    @property
    def _adapter(self) -> PytorchAdapter:
        """Changes when the configuration changes while the run goes on."""
        return cast("PytorchAdapter", self._session.adapter)

    def _recording_mode(self) -> ApiMode | None:
        return self._adapter.recording_mode()

    def _record_function(self, prefix: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return recording(self._recording_mode, prefix, name, function)

    def _saver(self) -> VariableSaver | None:
        return self._adapter.saver

    def _while_compiling(self) -> bool:
        return torch.compiler.is_compiling()


def save(variable: Any, name: str, save_backward: bool = True) -> None:
    """Save single values; see :meth:`PrecisionDebugger.save`."""
    PrecisionDebugger.save(variable, name, save_backward)


def module_dump(module: torch.nn.Module, dump_name: str) -> None:
    """Record the calls of ``module`` only, as ``Module.{dump_name}.Class``, until :func:`module_dump_end`.

    No API call is recorded in between, as with mindstudio-probe.

    Raises
    ------
    LifecycleError
        If there is no debugger, or ``module`` is no ``torch.nn.Module``.
    """
    PrecisionDebugger._current()._adapter.begin_module_dump(module, dump_name)


def module_dump_end() -> None:
    """End :func:`module_dump`."""
    PrecisionDebugger._current()._adapter.end_module_dump()
