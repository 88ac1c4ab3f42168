"""Listen at the nodes of a call for its gradients and put them into one backward record.

A hook holds names and positions, never a node or an input tensor: a graph that is dropped takes everything with it. A
call that is one autograd node costs one hook. A call of several nodes gathers what passes them until all have fired or
the backward pass ends.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from msprobe.core.names import CallName
from msprobe.core.open_call import OpenCall
from msprobe.core.selection import Choice
from msprobe.dispatch.gradient_edges import Slot, SpanPlan
from msprobe.dispatch.watching import Alarm, Watched
from msprobe.measure.quiet import Quiet

if TYPE_CHECKING:
    from msprobe.dispatch.capture import Capture

_LOG = logging.getLogger("msprobe")
Gradients = tuple[torch.Tensor | None, ...]
_task_id = torch._C._current_graph_task_id


class Span:
    """The gradients of one call, over all backward passes through it."""

    __slots__ = (
        "arguments",
        "call",
        "choice",
        "contributions",
        "epoch",
        "gathering",
        "has_parameters",
        "late_task",
        "parent",
        "passes",
        "results",
        "total",
        "watch",
    )

    def __init__(self, opened: OpenCall, epoch: int, results: int, arguments: int) -> None:
        self.call: CallName = opened.call
        self.parent = opened.parent
        self.choice: Choice = opened.choice
        self.epoch = epoch
        self.has_parameters = opened.module is not None and any(
            parameter is not None and parameter.requires_grad for parameter in opened.module._parameters.values()
        )
        self.late_task = -2  # of no backward pass
        self.results = results
        self.arguments = arguments
        self.passes = 0
        self.gathering: Gathering | None = None
        self.total = 0  # hooks that fire in one pass
        self.contributions: dict[int, int] = {}  # argument position -> gradients that add up to it
        self.watch: Any = None  # what the task's watcher knows about the pass before it has a name


class Gathering:
    """One backward pass over a span of several nodes."""

    __slots__ = ("inputs", "missing", "name", "outputs", "prefix", "sums", "task", "waiting", "watched")

    def __init__(self, span: Span, name: str, prefix: str | None, task: int) -> None:
        self.name = name
        self.prefix = prefix
        self.task = task
        self.inputs: list[Any] = [None] * span.results
        self.outputs: list[Any] = [None] * span.arguments
        self.waiting = span.total
        self.missing = dict(span.contributions)
        self.sums: dict[int, torch.Tensor] = {}
        self.watched: Watched | None = None


class GradientWatch:
    """Installs the hooks of calls and assembles their backward records."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._unfinished: dict[int, Span] = {}
        self._announced_task = -1
        self._told = False  # that gradients come too late

    def watch(self, opened: OpenCall, plan: SpanPlan, results: int) -> None:
        """Listen for the gradients of a call that has just ended."""
        assert opened.edges is not None  # noqa: S101 - a plan exists only for edges
        span = Span(opened, self._capture.epoch, results, opened.edges.count)
        if self._capture.watcher is not None:
            self._capture.watcher.watch_nodes(span, plan)
        node = plan.single_node()
        if node is not None:
            node.register_hook(self._single(span, plan.results[node], plan.arguments.get(node, [])))
            return
        for slots in plan.arguments.values():
            for slot in slots:
                span.contributions[slot.position] = span.contributions.get(slot.position, 0) + 1
        span.total = len(plan.results) + len(plan.arguments) + len(plan.passed_through)
        for node, slots in plan.results.items():
            node.register_prehook(self._arriving(span, slots))
        for node, slots in plan.arguments.items():
            node.register_hook(self._leaving(span, slots))
        for node, number, result, argument in plan.passed_through:
            node.register_prehook(self._passing(span, number, result, argument))

    # -- one node

    def _single(self, span: Span, results: list[Slot], arguments: list[Slot]) -> Any:
        def hook(grad_inputs: Gradients, grad_outputs: Gradients) -> None:
            if span.epoch != self._capture.epoch:
                self._too_late(span)
                return
            alarm = None
            with torch._C.DisableTorchFunction():
                try:
                    alarm = self._record_single(span, results, arguments, grad_inputs, grad_outputs)
                except Exception as error:  # noqa: BLE001 - hook boundary
                    self._capture.failed(f"gradients of {span.call.base}", error)
            if alarm is not None:
                alarm.sound()

        return hook

    def _record_single(
        self, span: Span, results: list[Slot], arguments: list[Slot], grad_inputs: Gradients, grad_outputs: Gradients
    ) -> Alarm | None:
        name = self._next_name(span)
        if name is None:
            return None
        capture = self._capture
        watcher = capture.watcher
        watched = watcher.begin(name, span) if watcher is not None else None
        if watched is not None:
            watcher.returned(watched)
        mode = capture.data_mode
        record: dict[str, Any] = {}
        prefix = name if capture.saves_tensors and capture.wants_tensors(name) else None
        if mode.input:
            gradients: list[Any] = [None] * span.results
            for number, position, _ in results:
                gradients[position] = grad_outputs[number]
            record["input"] = capture.encoder.encode_sequence(gradients, prefix and f"{prefix}.input")
        if mode.output:
            gradients = [None] * span.arguments
            for number, position, _ in arguments:
                gradients[position] = grad_inputs[number]
            record["output"] = capture.encoder.encode_sequence(gradients, prefix and f"{prefix}.output")
            if watched is not None:
                watcher.output(watched, gradients)
        return self._emit(span, name, record, watched)

    # -- gradients that are all there, from a compiled backward graph

    def measure_pass(self, span: Span, inputs: list[Any], outputs: list[Any]) -> tuple[str, dict[str, Any]] | None:
        """Count a backward pass over a call, and measure its gradients; :meth:`emit_pass` makes the record of them.

        Parameters
        ----------
        span : Span
        inputs, outputs : list of (Tensor or None)
            Gradients of the call's results and of its tensor arguments.

        Returns
        -------
        (str, dict) or None
            Name and content of the record, None if it comes too late or no selection wants it.
        """
        if span.epoch != self._capture.epoch:
            self._too_late(span)
            return None
        span.passes += 1
        self._note_missing_parameters(span)
        capture = self._capture
        if not capture.selection.may_record_backward(span.choice):
            return None
        name = span.call.backward(span.passes)
        record: dict[str, Any] = {}
        prefix = name if capture.saves_tensors and capture.wants_tensors(name) else None
        if capture.data_mode.input:
            record["input"] = capture.encoder.encode_sequence(inputs, prefix and f"{prefix}.input")
        if capture.data_mode.output:
            record["output"] = capture.encoder.encode_sequence(outputs, prefix and f"{prefix}.output")
        return name, record

    def emit_pass(self, span: Span, name: str, record: dict[str, Any]) -> None:
        """Add the record of a pass that is complete, if it is wanted: call in the order of the backward pass."""
        selection = self._capture.selection
        if selection.everything or selection.enter_backward(name, span.choice):
            self._emit(span, name, record, None)
        else:
            selection.leave_backward(name)

    # -- several nodes

    def _arriving(self, span: Span, slots: list[Slot]) -> Any:
        def hook(grad_outputs: Gradients) -> None:
            self._gather(span, slots, grad_outputs, (), None)

        return hook

    def _leaving(self, span: Span, slots: list[Slot]) -> Any:
        def hook(grad_inputs: Gradients, grad_outputs: Gradients) -> None:
            self._gather(span, (), (), slots, grad_inputs)

        return hook

    def _passing(self, span: Span, number: int, result: int, argument: int) -> Any:
        arriving, leaving = (Slot(number, result, None),), (Slot(number, argument, None),)

        def hook(grad_outputs: Gradients) -> None:
            self._gather(span, arriving, grad_outputs, leaving, grad_outputs)

        return hook

    def _gather(self, span: Span, arriving: Any, grad_outputs: Gradients, leaving: Any, grad_inputs: Any) -> None:
        if span.epoch != self._capture.epoch:
            self._too_late(span)
            return
        alarm = None
        with torch._C.DisableTorchFunction():
            try:
                gathering = self._gathering(span)
                if gathering is None:
                    return
                self._resume(gathering)
                for slot in arriving:
                    self._keep(gathering, gathering.inputs, "input", slot, grad_outputs[slot.number])
                for slot in leaving:
                    self._add_up(gathering, slot, grad_inputs[slot.number])
                gathering.waiting -= 1
                if gathering.waiting == 0:
                    alarm = self._finish(span)
            except Exception as error:  # noqa: BLE001 - hook boundary
                self._capture.failed(f"gradients of {span.call.base}", error)
        if alarm is not None:
            alarm.sound()

    def _resume(self, gathering: Gathering) -> None:
        if gathering.watched is not None:
            self._capture.watcher.resume(gathering.watched)  # type: ignore[union-attr]

    def _gathering(self, span: Span) -> Gathering | None:
        task = _task_id()
        if span.gathering is not None and span.gathering.task == task:
            return span.gathering
        if span.gathering is not None:
            self._finish(span)
        name = self._next_name(span)
        if name is None:
            return None
        capture = self._capture
        prefix = name if capture.saves_tensors and capture.wants_tensors(name) else None
        span.gathering = Gathering(span, name, prefix, task)
        if capture.watcher is not None:
            span.gathering.watched = capture.watcher.begin(name, span)
        self._unfinished[id(span)] = span
        if task not in (-1, self._announced_task):
            self._announced_task = task
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._pass_is_over(task))
        return span.gathering

    def _keep(
        self, gathering: Gathering, into: list[Any], side: str, slot: Slot, gradient: torch.Tensor | None
    ) -> None:
        mode = self._capture.data_mode
        if gradient is None or not (mode.input if side == "input" else mode.output):
            return
        if slot.geometry is not None:
            with Quiet():
                gradient = slot.geometry.cut(gradient)
        path = gathering.prefix and f"{gathering.prefix}.{side}.{slot.position}"
        into[slot.position] = self._capture.encoder.encode(gradient, path)
        if side == "output" and gathering.watched is not None:
            self._capture.watcher.output(gathering.watched, gradient)  # type: ignore[union-attr]

    def _add_up(self, gathering: Gathering, slot: Slot, gradient: torch.Tensor | None) -> None:
        """Add what one more node sends to an argument's gradient, in order of arrival as autograd does."""
        missing = gathering.missing.get(slot.position, 1) - 1
        gathering.missing[slot.position] = missing
        before = gathering.sums.pop(slot.position, None)
        if before is not None:
            with Quiet():
                gradient = before if gradient is None else before + gradient
        if missing > 0:
            if gradient is not None:
                gathering.sums[slot.position] = gradient
            return
        self._keep(gathering, gathering.outputs, "output", slot, gradient)

    def _finish(self, span: Span) -> Alarm | None:
        gathering = span.gathering
        span.gathering = None
        self._unfinished.pop(id(span), None)
        if gathering is None:
            return None
        self._resume(gathering)
        for position, gradient in gathering.sums.items():
            self._keep(gathering, gathering.outputs, "output", Slot(0, position, None), gradient)
        mode = self._capture.data_mode
        record: dict[str, Any] = {}
        if mode.input:
            record["input"] = gathering.inputs
        if mode.output:
            record["output"] = gathering.outputs
        return self._emit(span, gathering.name, record, gathering.watched)

    def _pass_is_over(self, task: int) -> None:
        """The autograd engine has finished a backward pass."""
        alarm = self.flush(task)
        if alarm is not None:
            alarm.sound()

    def flush(self, task: int | None = None) -> Alarm | None:
        """Emit what waits for nodes that did not run: the backward pass ``task`` (None: every one) is over.

        Returns the first alarm that was raised by one of them.
        """
        first = None
        with torch._C.DisableTorchFunction():
            for span in list(self._unfinished.values()):
                if task is not None and span.gathering is not None and span.gathering.task != task:
                    continue
                try:
                    alarm = self._finish(span)
                    first = first or alarm
                except Exception as error:  # noqa: BLE001 - called by the autograd engine
                    self._capture.failed(f"gradients of {span.call.base}", error)
        return first

    # -- both

    def _too_late(self, span: Span) -> None:
        """Count a backward pass over a call of a step that is over, once for all its nodes."""
        task = _task_id()
        if span.late_task == task:
            return
        span.late_task = task
        self._capture.coverage.not_recorded["gradients of a call of an earlier step"] += 1
        self._note_missing_parameters(span)
        if not self._told:
            self._told = True
            _LOG.warning(
                "msprobe: a backward pass reached %s, a call of a step that is over; such gradients are not recorded. "
                "Call step() after the backward pass",
                span.call.forward,
            )

    def _note_missing_parameters(self, span: Span) -> None:
        if span.has_parameters and not self._capture.running:
            self._capture.coverage.not_recorded["parameters_grad of a backward pass after stop()"] += 1

    def _next_name(self, span: Span) -> str | None:
        """Count a backward pass; its record name, or None if it is not wanted."""
        span.passes += 1
        self._note_missing_parameters(span)
        name = span.call.backward(span.passes)
        selection = self._capture.selection
        if not selection.everything and not selection.enter_backward(name, span.choice):
            selection.leave_backward(name)
            return None
        return name

    def _emit(self, span: Span, name: str, record: dict[str, Any], watched: Watched | None) -> Alarm | None:
        span.watch = None
        alarm = self._capture.watcher.end(watched, record) if watched is not None else None  # type: ignore[union-attr]
        self._capture.backward_record(span.parent, name, record)
        if not self._capture.selection.everything:
            self._capture.selection.leave_backward(name)
        return alarm
