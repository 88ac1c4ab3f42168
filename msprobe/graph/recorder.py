"""What probes do at run time: names, selection, records, through the capture of the eager part.

A graph is straight-line code, so all its calls are named when it is entered, in their order: what the compiler does to
the order of the probes cannot change a name. Eager calls before and after it count on.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from msprobe.core.backward_span import Span
from msprobe.core.open_call import OpenCall
from msprobe.core.recorder import as_sequence
from msprobe.dispatch.api_mode import COMPILED_BACKWARD
from msprobe.dispatch.spans import needs_gradients
from msprobe.graph.call_template import fill
from msprobe.graph.graph_plan import REGISTRY, Event, GraphPlan, Reading, TracedCall
from msprobe.graph.run_calls import RunCalls
from msprobe.graph.sharded_values import put_together

if TYPE_CHECKING:
    from msprobe.dispatch.capture import Capture
    from msprobe.dispatch.modules import ModuleHooks

_task_id = torch._C._current_graph_task_id
_current_node = torch._C._current_autograd_node
NOT_RECORDED = -1
"""Number of a run that leaves no records."""


class GraphRun:
    """One run of a probed graph, kept until the step ends: a backward pass may come at any time."""

    __slots__ = ("calls", "epoch", "expected", "plan", "spans", "task", "waiting")

    def __init__(self, plan: GraphPlan, epoch: int) -> None:
        self.plan = plan
        self.epoch = epoch
        self.calls: dict[int, OpenCall] = {}
        self.spans: dict[int, Span] = {}
        self.waiting: list[tuple[int, Span, str, dict[str, Any]]] = []  # of the backward pass `task`
        self.expected = 0
        self.task = -1


class GraphRecorder:
    """Makes the records of compiled calls.

    Parameters
    ----------
    capture : Capture
    modules : ModuleHooks
        Knows which modules are recorded, and their names.

    Attributes
    ----------
    runs : Counter
        How often each graph has run in this step, by its number.
    """

    def __init__(self, capture: Capture, modules: ModuleHooks) -> None:
        self.capture = capture
        self._modules = modules
        self.runs: Counter[int] = Counter()
        self._runs: dict[int, GraphRun] = {}
        self._numbers = itertools.count()
        self._calls = RunCalls(capture, modules)

    def forget_step(self) -> None:
        """The step is over: what comes of its runs is too late."""
        for run in list(self._runs.values()):
            self._flush(run)
        self._runs.clear()
        self._calls.forget_step()
        self.runs.clear()

    # -- around a run

    def enter(self, plan: GraphPlan, frame: FrameType | None) -> int:
        """A graph is about to run in ``frame``; returns the number that its probes are given."""
        capture = self.capture
        if not capture.running or capture.writer is None:
            return NOT_RECORDED
        capture.coverage.low_risk += plan.low_risk
        for reason, count in plan.left_out.items():
            capture.coverage.not_recorded[reason] += count
        self.runs[plan.number] += 1
        run = GraphRun(plan, capture.epoch)
        with torch._C.DisableTorchFunction():
            self._name_calls(run, frame)
        number = next(self._numbers)
        self._runs[number] = run
        return number

    def leave(self, number: int) -> None:
        """The graph has run: add its forward records, in order."""
        run = self._runs.get(number)
        if run is None:
            return
        capture = self.capture
        for call, begins in run.plan.events:
            opened = None if begins else run.calls.pop(call, None)
            if opened is None:
                continue
            if opened.wants_gradients:
                run.spans[call] = _span_of(opened, call)
            if capture.writer is not None and opened.epoch == capture.epoch and capture.records_forward(opened):
                record = opened.record or {}
                record["fx"] = self._place(run, call)
                capture.writer.add(opened.call.forward, record)
            opened.record = opened.frame = None
        run.calls.clear()

    def fail(self, number: int, depth: int) -> None:
        """The graph raised: what it had begun is over."""
        del self.capture.threads.modules[depth:]
        run = self._runs.pop(number, None)
        if run is not None:
            self.capture.coverage.not_recorded["call in a compiled graph that raised"] += len(run.calls)

    def _name_calls(self, run: GraphRun, frame: FrameType | None) -> None:
        modules = self.capture.threads.modules
        for call, module, base, stack_of in self._calls.of(run.plan, frame):
            if base is None:
                self._close(run, call, module)
                continue
            opened = self.capture.place(base, stack_of, None, module)
            if opened is None:
                continue
            run.calls[call.number] = opened
            if module is not None:
                modules.append(opened)

    def _close(self, run: GraphRun, call: TracedCall, module: torch.nn.Module | None) -> None:
        """A call ends; that of a module may have begun in an earlier graph."""
        opened = run.calls.get(call.number)
        if call.module is not None and module is not None:
            opened = self._modules.pop(module)
            if opened is not None:
                run.calls[call.number] = opened
        if opened is not None and not self.capture.selection.everything:
            self.capture.selection.leave(opened.call)

    # -- probes

    def probe(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int], run: torch.Tensor, event: int) -> None:
        """A probe is reached. Never raises."""
        with torch._C.DisableTorchFunction(), torch.no_grad():
            what = REGISTRY.events[event]
            try:
                number = int(run.item())
                if number == NOT_RECORDED:
                    return
                found = self._runs.get(number)
                if found is None:
                    self.capture.coverage.not_recorded["gradients of a call of an earlier step"] += 1
                elif what.reading is Reading.GRADIENTS:
                    self._gradients(found, what, put_together(tensors, what.layouts))
                else:
                    parts = [tensor.detach() for tensor in tensors]
                    self._values(found, what, put_together(parts, what.layouts), numbers)
            except Exception as error:  # noqa: BLE001 - hook boundary
                self.capture.failed(f"{what.reading.value} of {REGISTRY.calls[what.call].base or 'a module'}", error)

    def _values(self, run: GraphRun, event: Event, tensors: list[torch.Tensor], numbers: Sequence[int]) -> None:
        capture = self.capture
        opened = run.calls.get(event.call)
        if opened is None or opened.epoch != capture.epoch or not capture.records_forward(opened):
            return
        call, mode = REGISTRY.calls[event.call], capture.data_mode
        if event.reading is not Reading.OUTPUTS and mode.input:
            args, kwargs = fill(call.args, tensors, numbers), fill(call.kwargs, tensors, numbers)
            inputs = capture.encode_inputs(opened.call, args, kwargs)
            opened.record = {**inputs, **(opened.record or {})}
        if event.reading is not Reading.INPUTS and mode.output:
            if event.reading is Reading.CALL:
                tensors, numbers = tensors[call.tensors :], numbers[call.numbers :]
            record = opened.record = opened.record or {}
            output = fill(REGISTRY.results[event.call].output, tensors, numbers)
            capture.encode_outputs(opened, record, as_sequence(output))

    def _gradients(self, run: GraphRun, event: Event, tensors: Sequence[torch.Tensor]) -> None:
        span = run.spans.get(event.call)
        task = _task_id()
        if task != run.task:
            self._flush(run)
            run.task = task
            run.expected = sum(number in REGISTRY.backward_order for number, begins in run.plan.events if not begins)
        run.expected -= 1
        if span is not None:
            arrived = iter(tensors)
            inputs = [next(arrived) if present else None for present in event.inputs]
            outputs = [next(arrived) if present else None for present in event.outputs]
            measured = self.capture.gradients.measure_pass(span, inputs, outputs)
            if measured is not None:
                name, record = measured
                record["fx"] = self._place(run, event.call)
                run.waiting.append((REGISTRY.backward_order.get(event.call, 0), span, name, record))
        # The compiler orders what it has compiled; otherwise autograd itself calls the probes, in its order.
        if run.expected <= 0 or type(_current_node()).__name__ != COMPILED_BACKWARD:
            self._flush(run)

    def _flush(self, run: GraphRun) -> None:
        """Add the backward records that are there, in the order in which autograd would have made them."""
        waiting, run.waiting = run.waiting, []
        if self.capture.writer is not None:
            for _, span, name, record in sorted(waiting, key=lambda pending: pending[0]):
                self.capture.gradients.emit_pass(span, name, record)

    def _place(self, run: GraphRun, call: int) -> dict[str, Any]:
        return {"graph": run.plan.number, "node": REGISTRY.results[call].node}


def _span_of(opened: OpenCall, call: int) -> Span:
    span = Span(opened, opened.epoch, 0, REGISTRY.calls[call].tensors)
    span.has_parameters = opened.module is not None and needs_gradients(opened.module)
    return span
