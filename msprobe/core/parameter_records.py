"""Gather the gradients of a module's own parameters into ``parameters_grad`` records."""

from __future__ import annotations

from typing import Any

from msprobe.core.backward_passes import BackwardPasses
from msprobe.core.names import PARAMETERS_GRAD
from msprobe.core.recorder import Recorder


class ParameterRecords:
    """Gradients that have arrived, by module, until each parameter that needs one has its gradient.

    ``Module.path.Class.parameters_grad.n`` is the n-th record of the step, as ``{name: [tensor]}``. What is incomplete
    is recorded when the backward pass ends.

    Parameters
    ----------
    capture : Recorder
        Owner of the writer, the encoder and the counters.
    passes : BackwardPasses
        The framework's autograd engine.
    """

    def __init__(self, capture: Recorder, passes: BackwardPasses) -> None:
        self._capture = capture
        self._passes = passes
        self._open: dict[str, tuple[str, dict[str, Any]]] = {}  # base -> name of the record, and the record
        self._expected: dict[str, int] = {}  # base -> parameters that are listened to

    def _gradient_of(self, arrived: Any) -> Any:
        """The gradient, from what a hook of a parameter is given."""
        return arrived

    def _gather(self, base: str, key: str, arrived: Any) -> None:
        """A hook of parameter ``key`` of the module ``base`` was called. Never raises."""
        with self._passes.hidden():
            try:
                self._add(base, key, self._gradient_of(arrived))
            except Exception as error:  # noqa: BLE001 - hook boundary
                self._capture.failed(f"gradient of parameter {key} of {base}", error)

    def _add(self, base: str, key: str, gradient: Any) -> None:
        capture = self._capture
        waiting = self._open.get(base)
        if waiting is not None and key in waiting[1]:
            self._finish(base)
            waiting = None
        name, record = waiting if waiting is not None else self._begin(base)
        path = f"{name}.{key}" if capture.saves_tensors and capture.wants_tensors(name) else None
        record[key] = [capture.encoder.encode(gradient, path)]
        if len(record) >= self._expected.get(base, 0):
            self._finish(base)

    def flush(self) -> None:
        """Record what is there: the backward pass is over."""
        for base in list(self._open):
            self._finish(base)

    def _begin(self, base: str) -> tuple[str, dict[str, Any]]:
        if not self._open and self._passes.backward_pass() != -1:
            self._passes.at_end(self.flush)
        stem = f"{base}.{PARAMETERS_GRAD}"
        begun = self._open[base] = f"{stem}.{self._capture.counters.take(stem)}", {}
        return begun

    def _finish(self, base: str) -> None:
        self._capture.parameters_record(*self._open.pop(base))
