"""Turn calls of MindSpore's dynamic graphs into records.

An API call, a Primitive and a Cell are begun, ended or aborted here; their gradients arrive through
:mod:`msprobe.ms_dynamic.gradients`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from mindspore import Tensor

from msprobe.core.call_stack import StackBook
from msprobe.core.config_record import Config
from msprobe.core.names import CallName
from msprobe.core.open_call import OpenCall
from msprobe.core.recorder import Recorder, as_sequence
from msprobe.core.tensor_leaves import leaves_of
from msprobe.core.thread_state import ThreadState
from msprobe.measure.mindspore_values import MindsporeEncoder
from msprobe.ms_dynamic.engine import records_gradients
from msprobe.ms_dynamic.gradients import GradientWatch
from msprobe.ms_dynamic.graph_edges import InputEdges, nodes_are_visible, plan_span
from msprobe.ms_dynamic.recompute import Recomputation


class CallState(ThreadState):
    """What a thread is in the middle of.

    Attributes
    ----------
    hiding : int
        Recorded APIs that are running, whose inner calls are not recorded.
    busy : bool
        Whether the tool itself is calling MindSpore.
    primitive : Primitive or None
        The recorded Primitive that is running.
    compiled : list of (OpenCall or None, bool)
        Calls compiled from bytecode that are running, and whether replacements stood before each.
    """

    def __init__(self, everywhere: list[list[OpenCall]]) -> None:
        super().__init__(everywhere)
        self.hiding = 0
        self.busy = False
        self.primitive: Any = None
        self.compiled: list[tuple[OpenCall | None, bool]] = []


class Hidden:
    """Context in which a thread's calls are those of the tool."""

    __slots__ = ("_before", "_threads")

    def __init__(self, threads: CallState) -> None:
        self._threads = threads

    def __enter__(self) -> None:
        self._before, self._threads.busy = self._threads.busy, True

    def __exit__(self, *_: object) -> None:
        self._threads.busy = self._before


class MindsporeCapture(Recorder):
    """Records of one debugger, step after step.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    parameters_of : callable
        Returns the parameters that a Cell holds itself, by name.
    """

    thread_state = CallState
    threads: CallState

    def __init__(self, config: Config) -> None:
        super().__init__(config, StackBook())
        self.gradients = GradientWatch(self)
        self.recomputation = Recomputation()
        self._sees_nodes = nodes_are_visible()
        if not self._sees_nodes:
            self.coverage.notes["backward"] = "this MindSpore shows no autograd nodes (2.10 does): no backward records"
        self.parameters_of: Callable[[Any], Mapping[str, Any]] = _parameters_of
        self._newest = -1  # largest sequence number of a node that was seen
        self.encoder: MindsporeEncoder = MindsporeEncoder(
            task=config.task,
            summary_mode=config.summary_mode,
            precision=config.precision,
            write_array=self._write_tensor,
            asynchronous=config.async_dump,
        )
        self.new_threads()

    @property
    def recording(self) -> bool:
        """Whether a call that this thread makes now may be recorded."""
        return self.running and not self.threads.busy

    def hidden(self) -> Hidden:
        """Inside, calls of this thread are those of the tool."""
        return Hidden(self.threads)

    def name_call(self, base: str, *, module: bool) -> CallName:
        """Name of a call that begins now: a recomputed one has that of the call it repeats."""
        return self.recomputation.name(base, self.counters.take, module=module)

    def own_parameters(self, module: Any) -> Mapping[str, Any]:
        """Parameters that belong to the Cell itself."""
        return self.parameters_of(module)

    def begin(
        self, base: str, args: Sequence[Any], kwargs: Mapping[str, Any], frame: FrameType | None, module: Any = None
    ) -> OpenCall | None:
        """A call begins: name it, decide about it, record its inputs as they are before it runs.

        Parameters
        ----------
        base : str
            ``Prefix.name`` or ``Cell.path.Class``.
        args, kwargs
            Arguments of the call.
        frame : FrameType or None
            The calling frame.
        module : Cell, optional
            The Cell, if this is the call of one.

        Returns
        -------
        OpenCall or None
            None when an API call is not recorded. The call of a Cell is always returned: calls inside need it as
            parent.
        """
        opened = self.place(base, self.stack_node, frame, module)
        if opened is None:
            return None
        if self.records_forward(opened) and self.data_mode.input:
            opened.record = self.encode_inputs(opened.call, args, kwargs)
        if opened.wants_gradients and self._sees_nodes and records_gradients():
            edges = InputEdges(leaves_of((*args, *kwargs.values()) if kwargs else args, Tensor))
            self._newest = max(self._newest, edges.newest)
            opened.edges, opened.since = edges, self._newest + 1
        return opened

    def end(self, opened: OpenCall, output: Any) -> None:
        """The call returned ``output``: record its outputs and watch its gradients."""
        if self._outlived(opened):
            return
        if self.records_forward(opened):
            record = opened.record or {}
            if self.data_mode.output:
                self.encode_outputs(opened, record, as_sequence(output))
            self.writer.add(opened.call.forward, record)  # type: ignore[union-attr]
        if opened.edges is not None:
            self._watch(opened, output)
        if not self.selection.everything:
            self.selection.leave(opened.call)

    def _watch(self, opened: OpenCall, output: Any) -> None:
        outputs = leaves_of(as_sequence(output), Tensor)
        plan = plan_span(opened.edges, opened.since, outputs)
        if plan is not None:
            self._newest = max(self._newest, plan.newest)
            self.gradients.watch(opened, plan, len(outputs))

    def close_step(self) -> dict[str, Any]:
        """End of a step: emit what waits for gradients, restart names and counts; return the coverage report."""
        report = super().close_step()
        self.recomputation.reset()
        return report

    def flush_gradients(self) -> None:
        """Emit the backward records that are still waiting for gradients."""
        self.gradients.flush()

    def resolve(self) -> None:
        """Read what waits; called before records are written, possibly by another thread."""
        with self._resolving, self.hidden():
            self.encoder.resolve()


def _parameters_of(cell: Any) -> Mapping[str, Any]:
    return {key: value for key, value in cell._params.items() if value is not None}
