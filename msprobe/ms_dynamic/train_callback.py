"""Callbacks for ``mindspore.train.Model``: the debugger around every training step, without a loop of one's own."""

from __future__ import annotations

from typing import Any

from mindspore.train import Callback

from msprobe.core.debugger import Debugger


class MsprobeStep(Callback):  # type: ignore[misc]  # MindSpore has no types
    """Record each step of ``Model.train``; a step ends where a training step ends.

    Parameters
    ----------
    debugger : PrecisionDebugger
    model : Cell or sequence of Cell, optional
        For ``start(model)``; the network that ``Model`` trains when not given.

    Examples
    --------
    >>> model.train(1, dataset, callbacks=[MsprobeStep(debugger)])  # doctest: +SKIP
    """

    def __init__(self, debugger: Debugger, model: Any = None) -> None:
        super().__init__()
        self._debugger = debugger
        self._model = model
        self._started = False

    def on_train_begin(self, run_context: Any) -> None:
        """Start before the first graph is compiled."""
        self._start(run_context)

    def on_train_step_begin(self, run_context: Any) -> None:
        """Start, unless that was done already."""
        self._start(run_context)

    def on_train_step_end(self, run_context: Any) -> None:
        """The step is over."""
        self._started = False
        self._debugger.stop()
        self._debugger.step()

    def on_train_end(self, run_context: Any) -> None:
        """Training is over: nothing is left installed."""
        if self._started:
            self._started = False
            self._debugger.stop()

    def _start(self, run_context: Any) -> None:
        if self._started:
            return
        self._started = True
        model = self._model
        if model is None:
            model = run_context.original_args().train_network
        self._debugger.start(model)


class MsprobeInitStep(Callback):  # type: ignore[misc]
    """Number the steps from where a resumed training begins.

    Parameters
    ----------
    debugger : PrecisionDebugger, optional
        The one of the process when not given.
    """

    def __init__(self, debugger: Debugger | None = None) -> None:
        super().__init__()
        self._debugger = debugger

    def on_train_begin(self, run_context: Any) -> None:
        """Take over the number of steps that were trained before."""
        from msprobe.mindspore import PrecisionDebugger  # noqa: PLC0415 - it imports this module

        debugger = self._debugger if self._debugger is not None else PrecisionDebugger
        debugger.set_init_step(int(run_context.original_args().cur_step_num))
