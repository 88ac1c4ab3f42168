"""What stands in an FX graph around each call: looked at by autograd tracing, gone from the compiled program.

AOTAutograd runs the graph with real autograd nodes. At that moment the gradient edges of a call are found exactly as in
an eager run (:mod:`msprobe.dispatch.gradient_edges`), and the hooks on its nodes put probes into the backward graph. A
backend that runs the graph as it is (``backend="eager"``) gets the same hooks at run time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from msprobe.core.backward_span import Slot
from msprobe.dispatch.api_mode import ApiMode, hidden
from msprobe.dispatch.gradient_edges import InputEdges, SpanPlan, plan_span, written_since
from msprobe.graph.graph_bodies import recomputing
from msprobe.graph.graph_plan import REGISTRY, Event, Reading
from msprobe.graph.probe_ops import probe
from msprobe.graph.sharded_values import take_apart

_sequence = torch._C._autograd._get_sequence_nr
_task_id = torch._C._current_graph_task_id


class CallInFlight:
    """A call between its two marks in the graph."""

    __slots__ = ("edges", "numbers", "run", "since", "tensors")

    def __init__(self, tensors: list[torch.Tensor], numbers: list[Any], run: torch.Tensor) -> None:
        self.tensors = tensors
        self.numbers = numbers
        self.run = run
        self.since = _sequence()
        self.edges = InputEdges(tensors) if torch.is_grad_enabled() else None


def begin_call(number: int, run: torch.Tensor, *leaves: Any) -> CallInFlight | hidden | None:
    """Mark the beginning of call ``number``; ``leaves`` are the tensors of its arguments, then its numbers."""
    call = REGISTRY.calls[number]
    if recomputing():
        return _hide_repeated_call()
    with torch._C.DisableTorchFunction():
        flight = CallInFlight(list(leaves[: call.tensors]), list(leaves[call.tensors :]), run)
        result = REGISTRY.results.get(number)
        if call.module is not None or result is None or result.mutates:
            _emit(flight.tensors, flight.numbers, run, Event(number, Reading.INPUTS))
            flight.numbers = []
    return flight


def end_call(number: int, flight: CallInFlight | hidden | None, run: torch.Tensor, count: int, *leaves: Any) -> None:
    """Mark the end of call ``number``; ``leaves`` are the ``count`` tensors of its results, then its numbers."""
    call = REGISTRY.calls[number]
    if recomputing():
        if isinstance(flight, hidden):
            flight.__exit__()
        return
    assert not isinstance(flight, hidden)  # noqa: S101 - begun in the first run
    result = REGISTRY.results[number]
    tensors, numbers = list(leaves[:count]), list(leaves[count:])
    with torch._C.DisableTorchFunction():
        if flight is None or call.module is not None or result.mutates:
            _emit(tensors, numbers, run, Event(number, Reading.OUTPUTS))
        else:
            read = [*flight.tensors, *tensors], [*flight.numbers, *numbers]
            _emit(*read, run, Event(number, Reading.CALL))
        if flight is not None and flight.edges is not None:
            if not tensors:  # `h[1:3] = x` returns nothing
                tensors = written_since(flight.since, flight.tensors[:1])
            plan = plan_span(flight.edges, flight.since, tensors)
            if plan is not None:
                TracedSpan(number, run, len(tensors), flight.edges.count).watch(plan)


for _mark in (begin_call, end_call):
    torch.fx.node.has_side_effect(_mark)


def _emit(tensors: list[torch.Tensor], numbers: list[Any], run: torch.Tensor, event: Event) -> None:
    parts, layouts = take_apart(tensors)
    if layouts:
        event = replace(event, layouts=layouts)
    probe(parts, numbers, run, REGISTRY.event(event))


def _hide_repeated_call() -> hidden | None:
    """Keep a call that checkpointing repeats from the function mode, which a graph that runs as it is has around it."""
    for mode in torch.overrides._get_current_function_mode_stack():
        if isinstance(mode, ApiMode):
            hiding = hidden(mode)
            hiding.__enter__()
            return hiding
    return None


class TracedSpan:
    """The gradients of one call in a backward graph: gathered from its nodes, then probed together."""

    __slots__ = ("_call", "_gathered", "_inputs", "_left", "_outputs", "_run", "_task", "_waiting")

    def __init__(self, call: int, run: torch.Tensor, results: int, arguments: int) -> None:
        self._call = call
        self._run = run
        self._gathered = (results, arguments)
        self._waiting = 0
        self._task = -2
        self._restart(-2)

    def watch(self, plan: SpanPlan) -> None:
        """Listen at the nodes of the call, at the same places as an eager run: the order of records depends on it."""
        node = plan.single_node()
        if node is not None:
            self._waiting = 1
            node.register_hook(self._single(plan.results[node], plan.arguments.get(node, [])))
            return
        for node, slots in plan.results.items():
            node.register_prehook(self._arriving(slots))
        for node, slots in plan.arguments.items():
            node.register_hook(self._leaving(slots))
        for node, number, result, argument in plan.passed_through:
            node.register_prehook(self._passing(number, result, argument))
        self._waiting = len(plan.results) + len(plan.arguments) + len(plan.passed_through)

    def _single(self, results: list[Slot], arguments: list[Slot]) -> Any:
        def hook(leaving: Any, arriving: Any) -> None:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self._open()
                for slot in results:
                    self._inputs[slot.position] = arriving[slot.number]
                for slot in arguments:
                    self._outputs[slot.position] = leaving[slot.number]
                self._close()

        return hook

    def _restart(self, task: int) -> None:
        self._task = task
        results, arguments = self._gathered
        self._inputs: list[torch.Tensor | None] = [None] * results
        self._outputs: list[torch.Tensor | None] = [None] * arguments
        self._left = self._waiting

    def _arriving(self, slots: list[Slot]) -> Any:
        def hook(gradients: Any) -> None:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self._open()
                for slot in slots:
                    self._inputs[slot.position] = _cut(slot, gradients[slot.number])
                self._close()

        return hook

    def _leaving(self, slots: list[Slot]) -> Any:
        def hook(gradients: Any, _: Any) -> None:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self._open()
                for slot in slots:
                    self._add(slot, gradients[slot.number])
                self._close()

        return hook

    def _passing(self, number: int, result: int, argument: int) -> Any:
        def hook(gradients: Any) -> None:
            with torch._C.DisableTorchFunction():
                self._open()
                self._inputs[result] = self._outputs[argument] = gradients[number]
                self._close()

        return hook

    def _open(self) -> None:
        task = _task_id()
        if task == self._task:
            return
        if self._task != -2 and 0 < self._left < self._waiting:
            self._finish()
        self._restart(task)
        if self._waiting > 1:
            torch.autograd.Variable._execution_engine.queue_callback(self._pass_is_over)

    def _add(self, slot: Slot, gradient: torch.Tensor | None) -> None:
        """Add what one more node sends to an argument's gradient, in order of arrival as autograd does."""
        gradient = _cut(slot, gradient)
        before = self._outputs[slot.position]
        if gradient is not None:
            self._outputs[slot.position] = gradient if before is None else before + gradient

    def _close(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._finish()

    def _pass_is_over(self) -> None:
        """Nodes of the call did not run in this pass."""
        if self._left > 0:
            self._finish()

    def _finish(self) -> None:
        self._left = 0
        self._task = -2
        inputs, outputs = self._inputs, self._outputs
        present = [tensor for tensor in (*inputs, *outputs) if tensor is not None]
        flags = tuple(tensor is not None for tensor in inputs), tuple(tensor is not None for tensor in outputs)
        REGISTRY.gradients_traced(self._call)
        _emit(present, [], self._run, Event(self._call, Reading.GRADIENTS, *flags))


def _cut(slot: Slot, gradient: torch.Tensor | None) -> torch.Tensor | None:
    return gradient if gradient is None or slot.geometry is None else slot.geometry.cut(gradient)
