"""Level L0 of a session in graph mode: taps in the Cells of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mindspore import nn

from msprobe.core.config_record import Config, Precision, Task
from msprobe.core.errors import LifecycleError
from msprobe.measure.backends import counts
from msprobe.ms_static import context
from msprobe.ms_static.cell_taps import CellTaps
from msprobe.ms_static.python_taps import python_operators
from msprobe.ms_static.tap_records import TapRecorder
from msprobe.ms_static.tapped_cells import cells_of
from msprobe.store import StepWriter

_NO_TAP = (
    "step in which no tapped Cell ran: the model was not called between start() and stop(), or its graph had been "
    "compiled before the first start()"
)


class CellTapAdapter:
    """Adapter of level L0 in graph mode, for targets on which a graph can call Python.

    The taps become part of the graphs that are compiled after the first ``start()``, whether its step is recorded or
    not. Outside start() and stop() they do nothing.

    Parameters
    ----------
    config : Config
    earlier : CellTapAdapter, optional
        The adapter that this one takes over from.
    """

    framework = "mindspore"

    def __init__(self, config: Config, *, earlier: CellTapAdapter | None = None) -> None:
        self._config = config
        self._recorder: TapRecorder | None = earlier._recorder if earlier is not None else None
        self._taps: CellTaps | None = earlier._taps if earlier is not None else None
        self._models: list[Any] = earlier._models if earlier is not None else []
        self._writer: StepWriter | None = None

    def models_of(self, model: Any) -> Sequence[Any]:
        """Return the root Cells in ``model``; put taps in with the first of them."""
        roots = list(model) if isinstance(model, list | tuple) else [] if model is None else [model]
        wrong = [root for root in roots if not isinstance(root, nn.Cell)]
        if wrong:
            raise LifecycleError(
                f"start(model=...): expected a mindspore.nn.Cell or a list of them, not {type(wrong[0]).__name__}"
            )
        if not roots:
            raise LifecycleError(
                'level "L0" records Cells: call start(model=...) with a mindspore.nn.Cell or a list of them'
            )
        if self._taps is None:
            self._install(roots)
        elif [id(root) for root in roots] != [id(root) for root in self._models]:
            raise LifecycleError(
                "start(model=...): in graph mode the Cells of the first start() have taps; another model cannot be "
                "recorded in this process"
            )
        return roots

    def _install(self, roots: list[Any]) -> None:
        cells = cells_of(roots, nn.Cell.construct)
        recorder = TapRecorder(
            cells, low=self._config.precision is Precision.LOW, tensors=self._config.task is Task.TENSOR
        )
        self._taps = CellTaps(python_operators(recorder.enter, recorder.see), self._config.data_mode)
        self._taps.install(cells)
        self._recorder, self._models = recorder, roots

    def rank(self) -> int | None:
        """See `context.rank`."""
        return context.rank()

    def numbering(self) -> tuple[int, int] | None:
        """See `context.numbering`."""
        return context.numbering()

    def writer_options(self) -> dict[str, Any]:
        """A compiled graph has no Python call stack."""
        return {"tensors": self._config.task is Task.TENSOR, "render_stack": _no_stack}

    @property
    def writer(self) -> StepWriter | None:
        """The open step."""
        return self._recorder.writer if self._recorder is not None else None

    def open_step(self, writer: StepWriter) -> None:
        """Record into ``writer`` from now on."""
        if self._recorder is not None:
            self._recorder.writer = writer

    def attach(self, models: Sequence[Any]) -> None:
        """Record the calls that begin from here on."""
        if self._recorder is not None:
            context.wait_for_kernels()
            self._recorder.running = True

    def detach(self) -> None:
        """Record no more."""
        if self._recorder is not None:
            context.wait_for_kernels()
            self._recorder.running = False
            self._recorder.flush()

    def close_step(self) -> Mapping[str, Any]:
        """End the step; returns its coverage."""
        recorder = self._recorder
        if recorder is None:
            return self.report()
        recorder.flush()
        if not recorder.entered:
            recorder.coverage.not_recorded[_NO_TAP] += 1
        report = self.report()
        recorder.end_step()
        recorder.writer = None
        return report

    def report(self) -> Mapping[str, Any]:
        """Coverage of the open step."""
        if self._recorder is None:
            return {}
        return self._recorder.coverage.report(self._recorder.null_reasons, counts())

    def exhausted(self) -> str | None:
        """Every wanted step is recorded."""
        return None

    def conclude(self) -> None:
        """Take the taps out of the Cells; compiled graphs keep theirs, which do nothing."""
        if self._taps is not None:
            self._taps.remove()

    def reconfigured(self, config: Config) -> CellTapAdapter:
        """Compiled graphs keep the taps that they have."""
        raise LifecycleError("level L0 in graph mode cannot change while the program runs: start it again")

    def before_forward(self, model: Any, action: Callable[[], None]) -> Callable[[], None]:
        """A compiled graph does not say when its parts are called."""
        raise LifecycleError("start(token_range=...) does not work in graph mode: choose steps")


def _no_stack(_: object) -> list[str]:
    return []
