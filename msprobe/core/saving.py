"""Level debug: write single values where the user asks for it, and their gradients when they arrive.

``name.n.debug`` is the value of the n-th ``save(..., name)`` of a step, ``name_grad.n.debug`` has the same structure
with the gradient of each tensor in it, null where none came. A further backward pass is a record of its own, ``#2``.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from msprobe.core.backward_passes import BackwardPasses
from msprobe.core.recorder import Recorder
from msprobe.measure.plain_scalars import json_key

_LOG = logging.getLogger("msprobe")


class TensorHooks(BackwardPasses, Protocol):
    """What a framework knows about the gradients of tensors."""

    def needs_gradient(self, value: Any) -> bool | None:
        """Whether a tensor needs a gradient; None if ``value`` is no tensor."""

    def watch(self, tensor: Any, arrived: Callable[[Any], None]) -> Callable[[], None]:
        """Call ``arrived`` with the gradient of ``tensor`` in each backward pass; returns what ends that."""


class _Place(NamedTuple):
    """Where a tensor that needs a gradient stands in a saved value."""

    path: str


class _Gradients:
    """Gradients of one saved value.

    Attributes
    ----------
    name : str
        Record name of the first backward pass.
    shape : Any
        The saved value with a :class:`_Place` for each tensor that needs a gradient, and None for all else.
    arrived : dict or None
        Entries of the running backward pass, by place.
    """

    __slots__ = ("arrived", "epoch", "expected", "name", "passes", "shape", "task")

    def __init__(self, name: str, shape: Any, expected: int, epoch: int) -> None:
        self.name = name
        self.shape = shape
        self.expected = expected
        self.epoch = epoch
        self.passes = 0
        self.task = -1
        self.arrived: dict[str, Any] | None = None

    @property
    def record_name(self) -> str:
        """Name of the record of the running backward pass."""
        return self.name if self.passes <= 1 else f"{self.name}#{self.passes}"


class VariableSaver:
    """Carries out ``PrecisionDebugger.save``.

    Parameters
    ----------
    capture : Recorder
        Owner of the writer, the encoder and the counters.
    hooks : TensorHooks
    tensors : bool
        Whether the tensors themselves are stored, too.
    """

    def __init__(self, capture: Recorder, hooks: TensorHooks, *, tensors: bool) -> None:
        self._capture = capture
        self._hooks = hooks
        self._tensors = tensors
        self._waiting: dict[int, _Gradients] = {}
        self._endings: list[Callable[[], None]] = []

    def save(self, variable: Any, name: str, *, save_backward: bool) -> None:
        """Write ``variable`` and, when they arrive, the gradients of its tensors.

        Parameters
        ----------
        variable
            A tensor, number, text, numpy array, or lists, tuples, mappings and dataclasses of them.
        name : str
            Beginning of the record's name.
        save_backward : bool
            Whether gradients are written, too.
        """
        with self._hooks.hidden():
            try:
                self._save(variable, name, save_backward)
            except Exception as error:  # noqa: BLE001 - hook boundary
                self._capture.failed(f"save({name!r})", error)

    def _save(self, variable: Any, name: str, save_backward: bool) -> None:
        capture = self._capture
        number = capture.counters.take(f"{name}.debug")
        record_name = f"{name}.{number}.debug"
        value = capture.encoder.encode(variable, record_name if self._tensors else None)
        if value is None and variable is not None:
            capture.counters.give_back(f"{name}.debug", number)
            capture.coverage.not_recorded[f"save() of a {type(variable).__name__}"] += 1
            _LOG.warning(
                "msprobe: save(%r): %s cannot be saved; give tensors, numbers, text, or lists and dicts of them",
                name,
                type(variable).__name__,
            )
            return
        self._write(record_name, value)
        if save_backward:
            self._watch(variable, f"{name}_grad.{number}.debug")

    def _watch(self, variable: Any, name: str) -> None:
        tensors: dict[str, Any] = {}
        shape = self._shape(variable, "", tensors, ())
        gradients = _Gradients(name, shape, len(tensors), self._capture.epoch)
        self._waiting[id(gradients)] = gradients
        for path, tensor in tensors.items():
            self._endings.append(self._hooks.watch(tensor, _Arrived(self, gradients, path)))

    def _shape(self, value: Any, path: str, tensors: dict[str, Any], parents: tuple[int, ...]) -> Any:
        """Structure of ``value`` as the encoder writes it; tensors that need a gradient are added to ``tensors``."""
        needs = self._hooks.needs_gradient(value)
        if needs is not None:
            if not needs:
                return None
            tensors[path] = value
            return _Place(path)
        pairs = _pairs(value)
        if pairs is None or id(value) in parents:
            return None
        inside = (*parents, id(value))
        found = {key: self._shape(item, f"{path}.{key}", tensors, inside) for key, item in pairs}
        return list(found.values()) if isinstance(value, (list, tuple)) and not hasattr(value, "_fields") else found

    def arrived(self, gradients: _Gradients, path: str, gradient: Any) -> None:
        """The gradient of the tensor at ``path`` has been computed."""
        capture = self._capture
        if gradients.epoch != capture.epoch or capture.writer is None:
            return
        with self._hooks.hidden():
            try:
                self._gather(gradients, path, gradient)
            except Exception as error:  # noqa: BLE001 - hook boundary
                capture.failed(f"gradient of {gradients.name}{path}", error)

    def _gather(self, gradients: _Gradients, path: str, gradient: Any) -> None:
        task = self._hooks.backward_pass()
        if gradients.arrived is not None and (gradients.task != task or path in gradients.arrived):
            self._finish(gradients)
        if gradients.arrived is None:
            gradients.arrived, gradients.task = {}, task
            gradients.passes += 1
            self._waiting[id(gradients)] = gradients
            if task != -1:
                self._hooks.at_end(lambda: self._flush(task))
        encoder = self._capture.encoder
        file = f"{gradients.record_name}{path}" if self._tensors else None
        gradients.arrived[path] = encoder.encode(gradient, file)
        if len(gradients.arrived) == gradients.expected:
            self._finish(gradients)

    def _finish(self, gradients: _Gradients) -> None:
        self._waiting.pop(id(gradients), None)
        arrived, gradients.arrived = gradients.arrived, None
        self._write(gradients.record_name, _filled(gradients.shape, arrived or {}))

    def _flush(self, task: int) -> None:
        """A backward pass is over: what has not come by now does not come."""
        for gradients in list(self._waiting.values()):
            if gradients.arrived is not None and gradients.task == task:
                self._finish(gradients)

    def _write(self, name: str, value: Any) -> None:
        if self._capture.writer is not None:
            self._capture.writer.add(name, value)

    def close_step(self) -> None:
        """Write nulls for the values that no backward pass has reached, and take the hooks away."""
        for gradients in list(self._waiting.values()):
            self._finish(gradients)
        for end in self._endings:
            end()
        self._endings.clear()


class _Arrived:
    """Called with the gradient of one place of a saved value."""

    __slots__ = ("_gradients", "_path", "_saver")

    def __init__(self, saver: VariableSaver, gradients: _Gradients, path: str) -> None:
        self._saver = saver
        self._gradients = gradients
        self._path = path

    def __call__(self, gradient: Any) -> None:
        self._saver.arrived(self._gradients, self._path, gradient)


def _pairs(value: Any) -> Iterator[tuple[str, Any]] | None:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, Mapping):
        return ((json_key(key), item) for key, item in value.items())
    fields = getattr(value, "_fields", None)
    if fields is not None and isinstance(value, tuple):
        return zip(fields, value, strict=True)
    if isinstance(value, (list, tuple)):
        return ((str(index), item) for index, item in enumerate(value))
    return None


def _filled(shape: Any, entries: Mapping[str, Any]) -> Any:
    """``shape`` with the entry of each place; None where no gradient came."""
    if isinstance(shape, _Place):
        return entries.get(shape.path)
    if isinstance(shape, list):
        return [_filled(item, entries) for item in shape]
    if isinstance(shape, dict):
        return {key: _filled(item, entries) for key, item in shape.items()}
    return None
