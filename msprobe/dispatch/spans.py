"""Listen at the autograd nodes of a call for its gradients.

A call that is one node costs one hook, and its record is made at once. Those of several nodes are gathered by
:mod:`msprobe.core.backward_records`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from msprobe.core.backward_records import Alarm, BackwardRecords
from msprobe.core.backward_span import Gathering, Slot, Span
from msprobe.core.open_call import OpenCall
from msprobe.dispatch.gradient_edges import SpanPlan
from msprobe.dispatch.tensor_hooks import TorchHooks
from msprobe.dispatch.watching import Watched
from msprobe.measure.quiet import Quiet

if TYPE_CHECKING:
    from msprobe.dispatch.capture import Capture

Gradients = tuple[torch.Tensor | None, ...]


def needs_gradients(module: torch.nn.Module) -> bool:
    """Whether a module has parameters of its own that need gradients."""
    return any(parameter is not None and parameter.requires_grad for parameter in module._parameters.values())


class GradientWatch(BackwardRecords):
    """Installs the hooks of calls and assembles their backward records.

    Parameters
    ----------
    capture : Capture
    """

    _capture: Capture

    def __init__(self, capture: Capture) -> None:
        super().__init__(capture, TorchHooks())

    def watch(self, opened: OpenCall, plan: SpanPlan, results: int) -> None:
        """Listen for the gradients of a call that has just ended."""
        assert opened.edges is not None  # noqa: S101 - a plan exists only for edges
        span = Span(opened, self._capture.epoch, results, opened.edges.count)
        if opened.module is not None:
            span.has_parameters = needs_gradients(opened.module)
        if self._capture.watcher is not None:
            self._capture.watcher.watch_nodes(span, plan)
        node = plan.single_node()
        if node is not None:
            node.register_hook(self._single(span, plan.results[node], plan.arguments.get(node, [])))
            return
        for slots in plan.arguments.values():
            span.expect(slots)
        span.total = len(plan.results) + len(plan.arguments) + len(plan.passed_through)
        for node, slots in plan.results.items():
            node.register_prehook(self._arriving(span, slots))
        for node, slots in plan.arguments.items():
            node.register_hook(self._leaving(span, slots))
        for node, number, result, argument in plan.passed_through:
            node.register_prehook(self._passing(span, Slot(number, result), Slot(number, argument)))

    # -- one node

    def _single(self, span: Span, results: Sequence[Slot], arguments: Sequence[Slot]) -> Any:
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
        self,
        span: Span,
        results: Sequence[Slot],
        arguments: Sequence[Slot],
        grad_inputs: Gradients,
        grad_outputs: Gradients,
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
        alarm = self._completed(span, watched, record) if watched is not None else None
        self._emit(span, name, record)
        return alarm

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
        self._pass_counted(span)
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
            self._emit(span, name, record)
        else:
            selection.leave_backward(name)

    # -- several nodes

    def _quiet(self) -> AbstractContextManager[Any]:
        return Quiet()

    def _begun(self, span: Span, gathering: Gathering) -> None:
        if self._capture.watcher is not None:
            gathering.watched = self._capture.watcher.begin(gathering.name, span)

    def _resumed(self, gathering: Gathering) -> None:
        self._capture.watcher.resume(gathering.watched)  # type: ignore[union-attr]

    def _sent(self, gathering: Gathering, gradient: torch.Tensor) -> None:
        self._capture.watcher.output(gathering.watched, gradient)  # type: ignore[union-attr]

    # -- both

    def _pass_counted(self, span: Span) -> None:
        if span.has_parameters and not self._capture.running:
            self._capture.coverage.not_recorded["parameters_grad of a backward pass after stop()"] += 1

    def _completed(self, span: Span, watched: Watched, record: dict[str, Any]) -> Alarm | None:
        span.watch = None
        return self._capture.watcher.end(watched, record)  # type: ignore[union-attr]
