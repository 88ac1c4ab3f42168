"""What a MindSpore user imports.

>>> from msprobe.mindspore import PrecisionDebugger
>>> debugger = PrecisionDebugger(config_path="config.json")          # doctest: +SKIP
>>> for batch in debugger.steps(dataset, net):                       # doctest: +SKIP
...     loss, gradients = forward_backward(*batch); optimizer(gradients)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msprobe.core.adapter import Adapter
from msprobe.core.config_record import Config, Level
from msprobe.core.debugger import Debugger
from msprobe.core.errors import ConfigError, LifecycleError, MsprobeError
from msprobe.core.saving import VariableSaver
from msprobe.core.support import Framework
from msprobe.mindspore_parts import CompiledPart
from msprobe.ms_dynamic.adapter import DynamicAdapter
from msprobe.ms_dynamic.calls import recorded_custom_function
from msprobe.ms_dynamic.capture import MindsporeCapture
from msprobe.ms_dynamic.ms_adapter import MsAdapterAdapter, running_msadapter
from msprobe.ms_dynamic.seeding import seed_all
from msprobe.ms_dynamic.train_callback import MsprobeInitStep, MsprobeStep
from msprobe.ms_static.adapter import framework_word, static_adapter
from msprobe.ms_static.context import running_mode

__all__ = [
    "ConfigError",
    "LifecycleError",
    "MsprobeError",
    "MsprobeInitStep",
    "MsprobeStep",
    "PrecisionDebugger",
    "save",
    "seed_all",
]


class PrecisionDebugger(Debugger):
    """Record what flows through a MindSpore model, step by step; see :class:`msprobe.core.debugger.Debugger`.

    Dynamic graphs (``PYNATIVE_MODE``, and MSAdapter) are recorded call by call. In ``GRAPH_MODE``, and at level L2 in
    either mode, MindSpore's own dump does the work. Set the mode before the debugger is made.

    Parameters
    ----------
    config_path : str or Path, optional
        A config.json; the packaged default otherwise.
    task, dump_path, level, step
        As in the config file; a value given here beats the file.

    Raises
    ------
    ConfigError
        Everything that is wrong with the configuration, in one message; also what the running mode does not take.
    """

    def __init__(
        self,
        config_path: str | Path | None = None,
        task: str | None = None,
        dump_path: str | Path | None = None,
        level: str | None = None,
        step: Sequence[int | str] | None = None,
    ) -> None:
        self._mode = running_mode()
        self._compiled: CompiledPart | None = None
        super().__init__(config_path, task, dump_path, level, step)

    def _framework(self) -> Framework:
        return framework_word()

    def _make_adapter(self, config: Config) -> Adapter:
        if self._mode.is_static or config.level is Level.L2:
            return static_adapter(config)
        torch = running_msadapter()
        return DynamicAdapter(config) if torch is None else MsAdapterAdapter(config, torch)

    @classmethod
    def start(cls, model: Any = None, token_range: Sequence[int] | None = None, rank_id: int | None = None) -> None:
        """Begin to record; see :meth:`msprobe.core.debugger.Debugger.start`.

        Raises
        ------
        LifecycleError
            As there; also if the context mode is another one than when the debugger was made.
        """
        debugger = cls._current()
        made, now = debugger._mode, running_mode()
        if made is not now:
            raise LifecycleError(
                f"this PrecisionDebugger was made for {made.value}, and the script runs as {now.value} now: call "
                "mindspore.set_context(mode=...) before PrecisionDebugger(...)"
            )
        if debugger._compiled is None:
            debugger._compiled = CompiledPart.of_model(debugger._session, model)
        super().start(model, token_range, rank_id)
        if debugger._compiled is not None:
            debugger._compiled.start(model, rank_id, token_range)

    @classmethod
    def stop(cls) -> None:
        """Stop recording; see :meth:`msprobe.core.debugger.Debugger.stop`."""
        super().stop()
        compiled = cls._current()._compiled
        if compiled is not None:
            compiled.stop()

    @classmethod
    def step(cls, *, discard: bool = False) -> None:
        """End the step; see :meth:`msprobe.core.debugger.Debugger.step`."""
        super().step(discard=discard)
        compiled = cls._current()._compiled
        if compiled is not None:
            compiled.step(discard=discard)

    @classmethod
    def set_init_step(cls, number: int) -> None:
        """Number the steps from ``number``; see :meth:`msprobe.core.debugger.Debugger.set_init_step`."""
        super().set_init_step(number)
        compiled = cls._current()._compiled
        if compiled is not None:
            compiled.set_init_step(number)

    def _saver(self) -> VariableSaver | None:
        adapter = self._session.adapter
        return adapter.saver if isinstance(adapter, DynamicAdapter) else None

    def _recording_capture(self) -> MindsporeCapture | None:
        adapter = self._session.adapter
        return adapter.capture if isinstance(adapter, DynamicAdapter) and adapter.records_apis else None

    def _record_function(self, prefix: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return recorded_custom_function(self._recording_capture, f"{prefix}.{name}", function)


def save(variable: Any, name: str, save_backward: bool = True) -> None:
    """Save single values; see :meth:`PrecisionDebugger.save`."""
    PrecisionDebugger.save(variable, name, save_backward)
