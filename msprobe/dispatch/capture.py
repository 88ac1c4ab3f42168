"""Turn calls of PyTorch into records: the one mechanism behind every level.

An API call and a module call are begun, ended or aborted here; their gradients arrive through
:mod:`msprobe.dispatch.spans`. Callers hold ``torch._C.DisableTorchFunction()``, so nothing here is itself captured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import torch

from msprobe.core.backward_records import Alarm
from msprobe.core.call_stack import StackBook, StackNode
from msprobe.core.config_record import Config
from msprobe.core.names import CallName
from msprobe.core.open_call import OpenCall
from msprobe.core.recorder import Encoder, Recorder, as_sequence
from msprobe.dispatch.flat_phase import FlatPhase
from msprobe.dispatch.gradient_edges import InputEdges, plan_span, written_since
from msprobe.dispatch.recompute import Recomputation
from msprobe.dispatch.spans import GradientWatch
from msprobe.dispatch.task_watchers import make_watcher
from msprobe.dispatch.tensor_leaves import tensor_leaves
from msprobe.measure.backends import native_module
from msprobe.measure.encode import ValueEncoder
from msprobe.measure.no_values import NoValues

_sequence = torch._C._autograd._get_sequence_nr
_top_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_task_id = torch._C._current_graph_task_id
_is_grad_enabled = torch.is_grad_enabled
_REDISPATCH = torch.overrides.handle_torch_function.__code__  # runs because of the function mode
_CLIP = tuple(
    getattr(function, "__wrapped__", function).__code__
    for function in (torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad_value_)
)


class Capture(Recorder):
    """Records of one debugger, step after step.

    Parameters
    ----------
    config : Config
    """

    calls_alike = True  # whether all calls of an optimiser step are recorded alike
    trusts_versions = True  # whether a tensor with the version it had before needs no second reading

    def __init__(self, config: Config) -> None:
        super().__init__(config, StackBook(_CLIP, _REDISPATCH, getattr(native_module(), "stack_key", None)))
        self.recomputation = Recomputation()
        self.decisions: dict[bytes, tuple[str, StackNode]] = {}  # of FlatPhase, kept from step to step
        self.gradients = GradientWatch(self)
        self.watcher = make_watcher(config, self.selection, self.coverage, self.failed, self.resolve)
        self.encoder: Encoder = NoValues() if config.task == "structure" else self._make_encoder(config)
        self.new_threads()

    def _make_encoder(self, config: Config) -> ValueEncoder:
        return ValueEncoder(
            task="structure" if config.task == "nan_check" else config.task,
            summary_mode=config.summary_mode,
            precision=config.precision,
            write_tensor=self._write_tensor if self.watcher is None else self.watcher.write_tensor,
            asynchronous=config.async_dump,
        )

    def name_call(self, base: str, *, module: bool) -> CallName:
        """Name of a call that begins now: a recomputed one has that of the call it repeats."""
        if _top_hooks(True) is None and _task_id() == -1 and (_is_grad_enabled() or not self.recomputation.remembers):
            return CallName(base, self.counters.take(base), module)  # no checkpoint can be involved
        return self.recomputation.name(base, self.counters.take, module=module)

    def begin(
        self, base: str, args: Sequence[Any], kwargs: Mapping[str, Any], frame: FrameType | None, module: Any = None
    ) -> OpenCall | None:
        """A call begins: name it, decide about it, record its inputs as they are before it runs.

        Parameters
        ----------
        base : str
            ``Prefix.name`` or ``Module.path.Class``.
        args, kwargs
            Arguments of the call.
        frame : FrameType or None
            The calling frame.
        module : nn.Module, optional
            The module, if this is a module call.

        Returns
        -------
        OpenCall or None
            None when an API call is not recorded. A module call is always returned: calls inside need it as parent.
        """
        opened = self.place(base, self.stack_node, frame, module)
        if opened is None:
            return None
        if self.records_forward(opened):
            if self.watcher is not None:
                opened.watched = self.watcher.begin(opened.call.forward)
            if self.data_mode.input:
                opened.record = self.encode_inputs(opened.call, args, kwargs)
        if opened.wants_gradients and _is_grad_enabled():
            tensors = tensor_leaves((*args, *kwargs.values()) if kwargs else args)
            opened.edges = InputEdges(tensors)
            opened.since = _sequence()
        if opened.watched is not None:
            self.watcher.run(opened.watched, opened.record or {})  # type: ignore[union-attr]
        return opened

    def end(self, opened: OpenCall, output: Any, written: Any = None) -> Alarm | None:
        """The call returned ``output``: record its outputs and watch its gradients.

        ``written`` is what a call without output (``h[1:3] = x``) may have written to. Returns what the user wants to
        be told by an exception.
        """
        if self._outlived(opened):
            return None
        alarm = None
        results = (output,) if type(output) is torch.Tensor else as_sequence(output)
        if self.records_forward(opened):
            record = opened.record or {}
            if opened.watched is not None:
                self.watcher.returned(opened.watched)  # type: ignore[union-attr]
            if self.data_mode.output:
                self.encode_outputs(opened, record, results)
            if opened.watched is not None:
                self.watcher.output(opened.watched, output if written is None else written)  # type: ignore[union-attr]
                alarm = self.watcher.end(opened.watched, record)  # type: ignore[union-attr]
            self.writer.add(opened.call.forward, record)  # type: ignore[union-attr]
        if opened.edges is not None:
            outputs = tensor_leaves(results)
            if written is not None:
                outputs = written_since(opened.since, tensor_leaves((written,)))
            plan = plan_span(opened.edges, opened.since, outputs)
            if plan is not None:
                self.gradients.watch(opened, plan, len(outputs))
        if not self.selection.everything:
            self.selection.leave(opened.call)
        return alarm

    def begin_phase(self, name: str, frame: FrameType, plain: bool = False) -> None:
        """Do the same; ``plain``: nobody repeats its calls. They are torch's own code, and no closure of the user's."""
        self._close_flat_phase()
        super().begin_phase(name, frame)
        if not plain:
            return
        self.recomputation.remembers = False
        self.encoder.trust_versions(on=self.trusts_versions)
        alike = self.calls_alike and self.selection.everything and self.watcher is None and not self.saves_tensors
        if alike and self.keeps_stacks and self.data_mode.input and self.data_mode.output:
            self.threads.flat = FlatPhase(self, name, frame)

    def end_phase(self) -> None:
        """The phase is over, and with it the trust in version counters that it may have brought."""
        self.recomputation.remembers = True
        self._close_flat_phase()
        super().end_phase()

    def _close_flat_phase(self) -> None:
        flat = self.threads.flat
        if flat is not None:
            flat.close()

    def resolve(self) -> None:
        """Fill in what is still on an accelerator; waits if another thread is about it."""
        with self._resolving:
            self.encoder.resolve()
            if self.watcher is not None:
                self.watcher.resolve()

    def flush_gradients(self) -> None:
        """Emit the backward records that are still waiting for gradients."""
        self.gradients.flush()

    def close_step(self) -> dict[str, Any]:
        """End of a step: emit what waits for gradients, restart names and counts; return the coverage report."""
        report = super().close_step()
        if self.watcher is not None:
            self.watcher.close_step()
        self.recomputation.reset()
        return report

    def report(self) -> dict[str, Any]:
        """Coverage of the open step."""
        if self.watcher is not None:
            self.coverage.notes.update(self.watcher.notes())
        return super().report()
