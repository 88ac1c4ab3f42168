"""``parameters_grad`` records: the gradient of each parameter of a Cell, after every use of it was added up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msprobe.core.parameter_records import ParameterRecords
from msprobe.ms_dynamic.capture import MindsporeCapture
from msprobe.ms_dynamic.tensor_hooks import MindsporeHooks


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


class ParameterGradients(ParameterRecords):
    """Hooks on the parameters of a model.

    ``Cell.path.Class.parameters_grad.n`` holds the gradients of a Cell's own parameters in the n-th backward pass of
    the step.

    Parameters
    ----------
    capture : MindsporeCapture
    """

    def __init__(self, capture: MindsporeCapture) -> None:
        super().__init__(capture, MindsporeHooks(capture))
        self._period = _Period(self)
        self._handles: list[Any] = []

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
        self._gather(base, key, gradient)
