"""``parameters_grad`` records: the gradient of each parameter of a Cell, after every use of it was added up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msprobe.core.names import PARAMETERS_GRAD
from msprobe.ms_dynamic.capture import MindsporeCapture
from msprobe.ms_dynamic.engine import backward_pass, when_pass_ends


class _Period:
    """From start to stop.

    MindSpore cannot remove the hook of a parameter after an operator has raised: such a hook is left with this, and
    nothing in it.
    """

    __slots__ = ("gradients",)

    def __init__(self, gradients: ParameterGradients) -> None:
        self.gradients: ParameterGradients | None = gradients


def _hook(period: _Period, base: str, key: str) -> Callable[[Any], None]:
    def hook(gradient: Any) -> None:
        if period.gradients is not None:
            period.gradients.arrived(base, key, gradient)

    return hook


class ParameterGradients:
    """Hooks on the parameters of a model.

    ``Cell.path.Class.parameters_grad.n`` holds the gradients of a Cell's own parameters in the n-th backward pass of
    the step, as ``{name: [tensor]}``.
    """

    def __init__(self, capture: MindsporeCapture) -> None:
        self._capture = capture
        self._period = _Period(self)
        self._handles: list[Any] = []
        self._open: dict[str, dict[str, Any]] = {}
        self._expected: dict[str, int] = {}

    def record(self, cells: Iterator[tuple[str, Any]]) -> None:
        """Record the gradients of all parameters of these Cells."""
        seen: set[int] = set()
        for base, cell in cells:
            self._expected[base] = 0
            for key, parameter in self._capture.own_parameters(cell).items():
                if parameter.requires_grad and id(parameter) not in seen:
                    seen.add(id(parameter))
                    self._handles.append(parameter.register_hook(_hook(self._period, base, key)))
                    self._expected[base] += 1

    def remove(self) -> None:
        """Take all hooks away; what has arrived is recorded."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._period.gradients = None
        self._period = _Period(self)
        self._expected.clear()
        self.flush()

    def arrived(self, base: str, key: str, gradient: Any) -> None:
        """The gradient of a parameter has been computed."""
        capture = self._capture
        if not capture.running or capture.writer is None:
            return
        with capture.hidden():
            try:
                self._gather(base, key, gradient)
            except Exception as error:  # noqa: BLE001 - hook boundary
                capture.failed(f"gradient of parameter {key} of {base}", error)

    def _gather(self, base: str, key: str, gradient: Any) -> None:
        capture = self._capture
        waiting = self._open.get(base)
        if waiting is not None and key in waiting:
            self._finish(base)
            waiting = None
        if waiting is None:
            waiting = self._begin(base)
        name = waiting[""]
        path = f"{name}.{key}" if capture.saves_tensors and capture.wants_tensors(name) else None
        waiting[key] = [capture.encoder.encode(gradient, path)]
        if len(waiting) > self._expected.get(base, 0):
            self._finish(base)

    def flush(self) -> None:
        """Record what is there: the backward pass is over."""
        for base in list(self._open):
            self._finish(base)

    def _begin(self, base: str) -> dict[str, Any]:
        if not self._open and backward_pass() != -1:
            when_pass_ends(self.flush)
        stem = f"{base}.{PARAMETERS_GRAD}"
        waiting = self._open[base] = {"": f"{stem}.{self._capture.counters.take(stem)}"}
        return waiting

    def _finish(self, base: str) -> None:
        record = self._open.pop(base)
        self._capture.parameters_record(record.pop(""), record)
