"""Listen at the nodes of a call for its gradients and put them into one backward record.

A hook holds names and positions, never a node or an input: a graph that is dropped takes everything with it. Hooks of
nodes change nothing; a tap in the graph, as a backward hook of a Cell makes it, could change the order in which
gradients are added up.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msprobe.core.names import CallName
from msprobe.core.open_call import OpenCall
from msprobe.core.selection import Choice
from msprobe.ms_dynamic.engine import backward_pass, when_pass_ends
from msprobe.ms_dynamic.graph_edges import Slot, SpanPlan

if TYPE_CHECKING:
    from msprobe.ms_dynamic.capture import MindsporeCapture

_LOG = logging.getLogger("msprobe")
Gradients = tuple[Any, ...]


class Span:
    """The gradients of one call, over all backward passes through it."""

    __slots__ = (
        "arguments",
        "call",
        "choice",
        "contributions",
        "epoch",
        "gathering",
        "late",
        "parent",
        "passes",
        "results",
        "total",
    )

    def __init__(self, opened: OpenCall, results: int, plan: SpanPlan) -> None:
        self.call: CallName = opened.call
        self.parent = opened.parent
        self.choice: Choice = opened.choice
        self.epoch = opened.epoch
        self.results = results
        self.arguments: int = opened.edges.count
        self.passes = 0
        self.late = -2  # backward pass that was told to be too late
        self.gathering: Gathering | None = None
        self.total = len(plan.results) + len(plan.arguments) + len(plan.passed_through)
        self.contributions: dict[int, int] = {}  # argument position -> gradients that add up to it
        for listening in plan.arguments:
            for slot in listening.slots:
                self.contributions[slot.position] = self.contributions.get(slot.position, 0) + 1


class Gathering:
    """One backward pass over a span."""

    __slots__ = ("inputs", "missing", "name", "number", "outputs", "prefix", "sums", "waiting")

    def __init__(self, span: Span, name: str, prefix: str | None, number: int) -> None:
        self.name = name
        self.prefix = prefix
        self.number = number
        self.inputs: list[Any] = [None] * span.results
        self.outputs: list[Any] = [None] * span.arguments
        self.waiting = span.total
        self.missing = dict(span.contributions)
        self.sums: dict[int, Any] = {}


class GradientWatch:
    """Installs the hooks of calls and assembles their backward records."""

    def __init__(self, capture: MindsporeCapture) -> None:
        self._capture = capture
        self._unfinished: dict[int, Span] = {}
        self._leaf_handles: list[Any] = []
        self._announced = -1
        self._told = False  # that gradients come too late

    def watch(self, opened: OpenCall, plan: SpanPlan, results: int) -> None:
        """Listen for the gradients of a call that has just ended."""
        span = Span(opened, results, plan)
        for node, slots in plan.results:
            node.register_prehook(self._arriving(span, slots))
        for node, slots in plan.arguments:
            node.register_hook(self._leaving(span, slots))
        for passed in plan.passed_through:
            if passed.node.is_leaf():  # hooks of a leaf's node are never called
                hook = self._at_leaf(span, passed.result, passed.argument)
                self._leaf_handles.append(passed.tensor.register_hook(hook))
            else:
                passed.node.register_prehook(self._passing(span, passed.number, passed.result, passed.argument))

    def release(self) -> None:
        """Take the hooks of leaves away; those of nodes go with their graph."""
        for handle in self._leaf_handles:
            handle.remove()
        self._leaf_handles.clear()

    def _arriving(self, span: Span, slots: list[Slot]) -> Any:
        def hook(grad_outputs: Gradients) -> None:
            self._gather(span, slots, grad_outputs, (), ())

        return hook

    def _leaving(self, span: Span, slots: list[Slot]) -> Any:
        def hook(grad_inputs: Gradients, _grad_outputs: Gradients) -> None:
            self._gather(span, (), (), slots, grad_inputs)

        return hook

    def _passing(self, span: Span, number: int, result: int, argument: int) -> Any:
        arriving, leaving = (Slot(number, result),), (Slot(number, argument),)

        def hook(grad_outputs: Gradients) -> None:
            self._gather(span, arriving, grad_outputs, leaving, grad_outputs)

        return hook

    def _at_leaf(self, span: Span, result: int, argument: int) -> Any:
        passing = self._passing(span, 0, result, argument)

        def hook(gradient: Any) -> None:
            passing((gradient,))

        return hook

    def _gather(
        self,
        span: Span,
        arriving: Sequence[Slot],
        grad_outputs: Gradients,
        leaving: Sequence[Slot],
        grad_inputs: Gradients,
    ) -> None:
        """A node of the span runs; runs inside the backward pass, where an exception of ours must not surface."""
        capture = self._capture
        if span.epoch != capture.epoch or capture.writer is None:
            self._too_late(span)
            return
        with capture.hidden():
            try:
                gathering = self._gathering(span)
                if gathering is None:
                    return
                for slot in arriving:
                    self._keep(gathering, gathering.inputs, "input", slot.position, grad_outputs[slot.number])
                for slot in leaving:
                    self._add_up(gathering, slot.position, grad_inputs[slot.number])
                gathering.waiting -= 1
                if gathering.waiting == 0:
                    self._finish(span)
            except Exception as error:  # noqa: BLE001 - hook boundary
                capture.failed(f"gradients of {span.call.base}", error)

    def _gathering(self, span: Span) -> Gathering | None:
        number = backward_pass()
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
        self._unfinished[id(span)] = span
        if number not in (-1, self._announced):
            self._announced = number
            when_pass_ends(lambda: self.flush(number))
        return span.gathering

    def _keep(self, gathering: Gathering, into: list[Any], side: str, position: int, gradient: Any) -> None:
        mode = self._capture.data_mode
        if gradient is None or not (mode.input if side == "input" else mode.output):
            return
        path = gathering.prefix and f"{gathering.prefix}.{side}.{position}"
        into[position] = self._capture.encoder.encode(gradient, path)

    def _add_up(self, gathering: Gathering, position: int, gradient: Any) -> None:
        """Add what one more node sends to an argument's gradient, in order of arrival as autograd does."""
        missing = gathering.missing.get(position, 1) - 1
        gathering.missing[position] = missing
        before = gathering.sums.pop(position, None)
        if before is not None:
            gradient = before if gradient is None else before + gradient
        if missing > 0:
            if gradient is not None:
                gathering.sums[position] = gradient
            return
        self._keep(gathering, gathering.outputs, "output", position, gradient)

    def _finish(self, span: Span) -> None:
        gathering, span.gathering = span.gathering, None
        self._unfinished.pop(id(span), None)
        if gathering is None:
            return
        for position, gradient in gathering.sums.items():
            self._keep(gathering, gathering.outputs, "output", position, gradient)
        mode = self._capture.data_mode
        record: dict[str, Any] = {}
        if mode.input:
            record["input"] = gathering.inputs
        if mode.output:
            record["output"] = gathering.outputs
        self._capture.backward_record(span.parent, gathering.name, record)
        if not self._capture.selection.everything:
            self._capture.selection.leave_backward(gathering.name)

    def flush(self, number: int | None = None) -> None:
        """Emit what waits for nodes that did not run: the backward pass ``number`` (None: every one) is over."""
        with self._capture.hidden():
            for span in list(self._unfinished.values()):
                if number is None or span.gathering is None or span.gathering.number == number:
                    self._finish_safely(span)

    def _finish_safely(self, span: Span) -> None:
        try:
            self._finish(span)
        except Exception as error:  # noqa: BLE001 - called by the autograd engine
            self._capture.failed(f"gradients of {span.call.base}", error)

    def _too_late(self, span: Span) -> None:
        """Count a backward pass over a call of a step that is over, once for all its nodes."""
        number = backward_pass()
        if span.late == number:
            return
        span.late = number
        self._capture.coverage.not_recorded["gradients of a call of an earlier step"] += 1
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
        name = span.call.backward(span.passes)
        selection = self._capture.selection
        if not selection.everything and not selection.enter_backward(name, span.choice):
            selection.leave_backward(name)
            return None
        return name
