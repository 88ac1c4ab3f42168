"""Gather the gradients of a call, as they pass its autograd nodes, into one backward record.

A hook holds names and positions, never a node or an input tensor: a graph that is dropped takes everything with it. A
call of several nodes gathers what passes them until all have fired or the backward pass ends. Which nodes those are,
and how hooks hang on them, is the business of the framework's subclass.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from msprobe.core.backward_passes import BackwardPasses
from msprobe.core.backward_span import Gathering, Slot, Span
from msprobe.core.recorder import Recorder

_LOG = logging.getLogger("msprobe")
Gradients = Sequence[Any]


class Alarm(Protocol):
    """Something that the user asked to be told by an exception."""

    def sound(self) -> None:
        """Raise. Called outside every hook boundary, after the record was added."""


class BackwardRecords:
    """Assembles the backward records of calls.

    Parameters
    ----------
    capture : Recorder
        Owner of the writer, the encoder and the selection.
    passes : BackwardPasses
        The framework's autograd engine.
    """

    def __init__(self, capture: Recorder, passes: BackwardPasses) -> None:
        self._capture = capture
        self._passes = passes
        self._unfinished: dict[int, Span] = {}
        self._announced = -1  # backward pass that will tell its end
        self._told = False  # that gradients come too late

    # -- what a framework may add; the last three are for what its `_begun` has set as `watched`

    def _quiet(self) -> AbstractContextManager[Any]:
        """Inside, the tool computes with gradients, and the program sees nothing of it."""
        return nullcontext()

    def _pass_counted(self, span: Span) -> None:
        """A backward pass has reached the call; it may be too late for a record."""

    def _begun(self, span: Span, gathering: Gathering) -> None:
        """The first gradient of a backward pass has arrived; nothing is encoded yet."""

    def _resumed(self, gathering: Gathering) -> None:
        """What is encoded next belongs to this backward pass."""

    def _sent(self, gathering: Gathering, gradient: Any) -> None:
        """A gradient of an argument is complete, and encoded."""

    def _completed(self, span: Span, watched: Any, record: dict[str, Any]) -> Alarm | None:
        """The record is complete and will be added next."""
        return None

    # -- hooks of nodes

    def _arriving(self, span: Span, slots: Sequence[Slot]) -> Any:
        def hook(grad_outputs: Gradients) -> None:
            self._gather(span, slots, grad_outputs, (), ())

        return hook

    def _leaving(self, span: Span, slots: Sequence[Slot]) -> Any:
        def hook(grad_inputs: Gradients, _grad_outputs: Gradients) -> None:
            self._gather(span, (), (), slots, grad_inputs)

        return hook

    def _passing(self, span: Span, arriving: Slot, leaving: Slot) -> Any:
        """Hook of a node that comes before the call: one of its results is an argument of it."""
        results, arguments = (arriving,), (leaving,)

        def hook(grad_outputs: Gradients) -> None:
            self._gather(span, results, grad_outputs, arguments, grad_outputs)

        return hook

    def _gather(
        self,
        span: Span,
        arriving: Sequence[Slot],
        grad_outputs: Gradients,
        leaving: Sequence[Slot],
        grad_inputs: Gradients,
    ) -> None:
        """A node of the span runs: inside the backward pass, where no exception of ours must surface."""
        capture = self._capture
        if span.epoch != capture.epoch or capture.writer is None:
            self._too_late(span)
            return
        alarm = None
        with self._passes.hidden():
            try:
                gathering = self._gathering(span)
                if gathering is None:
                    return
                if gathering.watched is not None:
                    self._resumed(gathering)
                for slot in arriving:
                    self._keep(gathering, gathering.inputs, "input", slot, grad_outputs[slot.number])
                for slot in leaving:
                    self._add_up(gathering, slot, grad_inputs[slot.number])
                gathering.waiting -= 1
                if gathering.waiting == 0:
                    alarm = self._finish(span)
            except Exception as error:  # noqa: BLE001 - hook boundary
                capture.failed(f"gradients of {span.call.base}", error)
        if alarm is not None:
            alarm.sound()

    def _gathering(self, span: Span) -> Gathering | None:
        number = self._passes.backward_pass()
        if span.gathering is not None and span.gathering.number == number:
            return span.gathering
        if span.gathering is not None:
            self._finish(span)
        name = self._next_name(span)
        if name is None:
            return None
        capture = self._capture
        prefix = name if capture.saves_tensors and capture.wants_tensors(name) else None
        span.gathering = Gathering(span, name, prefix, number)
        self._begun(span, span.gathering)
        self._unfinished[id(span)] = span
        if number not in (-1, self._announced):
            self._announced = number
            self._passes.at_end(lambda: self._pass_is_over(number))
        return span.gathering

    # -- parts of a record

    def _keep(self, gathering: Gathering, into: list[Any], side: str, slot: Slot, gradient: Any) -> None:
        """Encode a gradient that is complete."""
        mode = self._capture.data_mode
        if gradient is None or not (mode.input if side == "input" else mode.output):
            return
        if slot.geometry is not None:
            with self._quiet():
                gradient = slot.geometry.cut(gradient)
        path = gathering.prefix and f"{gathering.prefix}.{side}.{slot.position}"
        into[slot.position] = self._capture.encoder.encode(gradient, path)
        if side == "output" and gathering.watched is not None:
            self._sent(gathering, gradient)

    def _add_up(self, gathering: Gathering, slot: Slot, gradient: Any) -> None:
        """Add what one more node sends to an argument's gradient, in order of arrival as autograd does."""
        missing = gathering.missing.get(slot.position, 1) - 1
        gathering.missing[slot.position] = missing
        before = gathering.sums.pop(slot.position, None)
        if before is not None:
            with self._quiet():
                gradient = before if gradient is None else before + gradient
        if missing > 0:
            if gradient is not None:
                gathering.sums[slot.position] = gradient
            return
        self._keep(gathering, gathering.outputs, "output", slot, gradient)

    def _finish(self, span: Span) -> Alarm | None:
        gathering, span.gathering = span.gathering, None
        self._unfinished.pop(id(span), None)
        if gathering is None:
            return None
        if gathering.watched is not None:
            self._resumed(gathering)
        for position, gradient in gathering.sums.items():
            self._keep(gathering, gathering.outputs, "output", Slot(0, position), gradient)
        mode = self._capture.data_mode
        record: dict[str, Any] = {}
        if mode.input:
            record["input"] = gathering.inputs
        if mode.output:
            record["output"] = gathering.outputs
        alarm = self._completed(span, gathering.watched, record) if gathering.watched is not None else None
        self._emit(span, gathering.name, record)
        return alarm

    # -- the end of a backward pass

    def _pass_is_over(self, number: int) -> None:
        """The autograd engine has finished a backward pass."""
        alarm = self.flush(number)
        if alarm is not None:
            alarm.sound()

    def flush(self, number: int | None = None) -> Alarm | None:
        """Emit what waits for nodes that did not run: the backward pass ``number`` (None: every one) is over.

        Returns the first alarm that was raised by one of them.
        """
        first = None
        with self._passes.hidden():
            for span in list(self._unfinished.values()):
                if number is not None and span.gathering is not None and span.gathering.number != number:
                    continue
                try:
                    alarm = self._finish(span)
                    first = first or alarm
                except Exception as error:  # noqa: BLE001 - called by the autograd engine
                    self._capture.failed(f"gradients of {span.call.base}", error)
        return first

    # -- also for a record that is made at once

    def _too_late(self, span: Span) -> None:
        """Count a backward pass over a call of a step that is over, once for all its nodes."""
        number = self._passes.backward_pass()
        if span.late_pass == number:
            return
        span.late_pass = number
        self._capture.coverage.not_recorded["gradients of a call of an earlier step"] += 1
        self._pass_counted(span)
        if not self._told:
            self._told = True
            _LOG.warning(
                "msprobe: a backward pass reached %s, a call of a step that is over; such gradients are not recorded. "
                "Call step() after the backward pass",
                span.call.forward,
            )

    def _next_name(self, span: Span) -> str | None:
        """Count a backward pass; its record name, or None if it is not wanted."""
        span.passes += 1
        self._pass_counted(span)
        name = span.call.backward(span.passes)
        selection = self._capture.selection
        if not selection.everything and not selection.enter_backward(name, span.choice):
            selection.leave_backward(name)
            return None
        return name

    def _emit(self, span: Span, name: str, record: dict[str, Any]) -> None:
        """Add a record that is complete."""
        self._capture.backward_record(span.parent, name, record)
        if not self._capture.selection.everything:
            self._capture.selection.leave_backward(name)
