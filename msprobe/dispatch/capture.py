"""Turn calls into records: the one mechanism behind every level.

An API call and a module call are begun, ended or aborted here; their gradients arrive through
:mod:`msprobe.dispatch.spans`. Everything in this file runs inside the user's step: strings are built once, stacks are
kept as offsets, and what can wait waits for the writer's flush. Callers hold ``torch._C.DisableTorchFunction()``, so
nothing here is itself captured.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import torch

from msprobe.core.api_lists import ApiLists
from msprobe.core.config_record import Config
from msprobe.core.coverage import Coverage
from msprobe.core.names import CallName, Counters
from msprobe.core.selection import ALL, NOTHING, Selection
from msprobe.dispatch.call_stack import StackBook, StackNode
from msprobe.dispatch.gradient_edges import InputEdges, plan_span, written_since
from msprobe.dispatch.open_call import OpenCall
from msprobe.dispatch.recompute import Recomputation
from msprobe.dispatch.spans import GradientWatch
from msprobe.dispatch.task_watchers import make_watcher
from msprobe.dispatch.tensor_leaves import tensor_leaves
from msprobe.dispatch.thread_state import ThreadState
from msprobe.dispatch.watching import Alarm
from msprobe.measure.backends import counts
from msprobe.measure.encode import EMPTY, ValueEncoder
from msprobe.store import StepWriter

_LOG = logging.getLogger("msprobe")
_sequence = torch._C._autograd._get_sequence_nr
_MODULE_LEVELS = ("L0", "mix")


class Capture:
    """Records of one debugger, step after step.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    running : bool
        Between start and stop of a step that is wanted.
    writer : StepWriter or None
        Of the open step.
    epoch : int
        Number of steps closed so far. Hooks of an earlier epoch do nothing.
    """

    thread_state: type[ThreadState] = ThreadState
    trusts_versions = True  # whether a tensor with the version it had before needs no second reading

    def __init__(self, config: Config) -> None:
        self.running = False
        self.writer: StepWriter | None = None
        self.epoch = 0
        self.level = config.level
        self.selection = Selection(
            config.list,
            config.scope,
            config.tensor_list,
            expand_modules=config.level == "mix",
            apis=ApiLists.of(config.white_list, config.black_list),
        )
        self.coverage = Coverage()
        if config.white_list or config.black_list:
            self.coverage.filter_by("filtered by white_list or black_list")
        self.stacks = StackBook()
        self.counters = Counters()
        self.recomputation = Recomputation()
        self.gradients = GradientWatch(self)
        self.data_mode = config.data_mode
        self._values = config.task != "structure"
        self._resolving = threading.RLock()
        self._tensors = config.task == "tensor"
        self._some_tensors = bool(config.tensor_list)
        self.watcher = make_watcher(config, self.selection, self.coverage, self.failed, self.resolve)
        self.saves_tensors = self._tensors or self._some_tensors
        self.keeps_stacks = config.extra_info
        self._hierarchy = config.extra_info and config.level in _MODULE_LEVELS
        self.encoder = ValueEncoder(
            task="structure" if config.task == "nan_check" else config.task,
            summary_mode=config.summary_mode,
            precision=config.precision,
            write_tensor=self._write_tensor if self.watcher is None else self.watcher.write_tensor,
            asynchronous=config.async_dump,
        )
        self.new_threads()

    # -- calls

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
        call = self.recomputation.name(base, self.counters.take, module=module is not None)
        if call.tag:
            self.coverage.recomputed += 1
        node = self.stack_node(frame) if self.keeps_stacks else None  # first: it drops modules that ended untold
        modules = self.threads.modules
        inner = modules[-1] if modules else None
        call.parent = inner.call if inner is not None else call.parent or self._phase(frame)
        opened = OpenCall(call, call.parent)
        opened.epoch = self.epoch
        opened.module, opened.node = module, node
        if self.selection.everything:
            opened.choice = ALL
        else:
            enclosing = inner.expansion if inner is not None else NOTHING
            opened.choice, opened.expansion = self.selection.enter(call, enclosing)
        watched = self.data_mode.backward and self.selection.may_record_backward(opened.choice)
        if not (opened.choice.forward or watched):
            self.coverage.filtered += 1
            if module is None:
                self.selection.leave(call)
                return None
        # A module that is left out still has its place: what is recorded inside hangs on it.
        if self.keeps_stacks and (module is not None or opened.choice.forward or opened.choice.backward):
            self._describe(opened, call.forward)
        if self._values and opened.choice.forward and self.data_mode.forward:
            if self.watcher is not None:
                opened.watched = self.watcher.begin(call.forward)
            if self.data_mode.input:
                opened.record = self._inputs(call, args, kwargs)
        if watched and torch.is_grad_enabled():
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
        call = opened.call
        alarm = None
        if self._values and opened.choice.forward and self.data_mode.forward:
            record = opened.record or {}
            if opened.watched is not None:
                self.watcher.returned(opened.watched)  # type: ignore[union-attr]
            if self.data_mode.output:
                self._outputs(opened, record, output)
            if opened.watched is not None:
                self.watcher.output(opened.watched, output if written is None else written)  # type: ignore[union-attr]
                alarm = self.watcher.end(opened.watched, record)  # type: ignore[union-attr]
            self.writer.add(call.forward, record)  # type: ignore[union-attr]
        if opened.edges is not None:
            outputs = tensor_leaves((output,) if type(output) is torch.Tensor else as_sequence(output))
            if written is not None:
                outputs = written_since(opened.since, tensor_leaves((written,)))
            plan = plan_span(opened.edges, opened.since, outputs)
            if plan is not None:
                self.gradients.watch(opened, plan, len(outputs))
        if not self.selection.everything:
            self.selection.leave(call)
        return alarm

    def abort(self, opened: OpenCall, error: BaseException | None) -> None:
        """The call raised: keep its inputs under a tagged name, and give its index to the next call."""
        if self._outlived(opened):
            return
        call = opened.call
        if not call.tag:
            self.counters.give_back(call.base, call.index)
            call = call.tagged("error")
        if self._values and opened.choice.forward and opened.record is not None:
            if error is not None and type(error).__name__ != "_StopRecomputationError":
                opened.record["error"] = f"{type(error).__name__}: {error}"[:500]
            self.writer.add(call.forward, opened.record)  # type: ignore[union-attr]
            if self.keeps_stacks:
                self._describe(opened, call.forward)
        if not self.selection.everything:
            self.selection.leave(opened.call)

    def _outlived(self, opened: OpenCall) -> bool:
        """Whether the step in which the call began is over: its record would land in another one."""
        if opened.epoch == self.epoch and self.writer is not None:
            return False
        self.coverage.not_recorded["call was open when its step ended"] += 1
        return True

    def failed(self, where: str, error: BaseException) -> None:
        """Something in the capture itself went wrong: the user's run goes on, the reason is kept."""
        self.coverage.not_recorded[f"failed in the tool: {type(error).__name__} ({where})"] += 1
        if self.writer is not None:
            self.writer.note_failure(f"{where}: " + "".join(traceback.format_exception(error)))
        else:
            _LOG.warning("msprobe could not record %s: %s", where, error)

    # -- parts of a record

    def wants_tensors(self, name: str) -> bool:
        """Whether the full tensors of the record ``name`` are saved."""
        return self._tensors or (self._some_tensors and self.selection.wants_tensors(name))

    def _inputs(self, call: CallName, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        encoder = self.encoder
        prefix = call.forward if self.wants_tensors(call.forward) else None
        return {
            "input_args": encoder.encode_sequence(args, prefix and f"{prefix}.input"),
            "input_kwargs": encoder.encode_mapping(kwargs, prefix and f"{prefix}.kwargs") if kwargs else EMPTY,
        }

    def _outputs(self, opened: OpenCall, record: dict[str, Any], output: Any) -> None:
        encoder = self.encoder
        name = opened.call.forward
        prefix = name if self.wants_tensors(name) else None
        if opened.module is not None:
            own = opened.module._parameters
            record["parameters"] = encoder.encode_mapping(
                {key: value for key, value in own.items() if value is not None}, prefix and f"{prefix}.parameters"
            )
        record["output"] = encoder.encode_sequence(as_sequence(output), prefix and f"{prefix}.output")

    def _describe(self, opened: OpenCall, name: str) -> None:
        """Keep the stack of the call and its place in the hierarchy under ``name``."""
        node = opened.node
        if node is not None and opened.choice.forward:
            self.writer.add_stack(name, node)  # type: ignore[union-attr]
        if self._hierarchy:
            parent = opened.parent
            if parent is None and node is not None and node.in_clip_grad:
                parent = opened.parent = "clip_grad"
            if isinstance(parent, CallName):
                self.writer.add_parent(name, parent.forward)  # type: ignore[union-attr]
            else:
                if parent is not None:
                    self.writer.add_parent(parent, None)  # type: ignore[union-attr]
                self.writer.add_parent(name, parent)  # type: ignore[union-attr]

    def stack_node(self, frame: FrameType | None) -> StackNode | None:
        """The distinct stack from ``frame`` outwards."""
        modules = self.threads.modules
        while modules and frame is not None:
            inner = modules[-1]
            node = self.stacks.node(frame, inner.frame, inner.outer)
            if node is not None:
                return node
            modules.pop()  # its forward ended without telling: an exception that no hook sees
            self.encoder.trust_versions(on=False)
        return self.stacks.node(frame, None, None) if frame is not None else None

    def begin_phase(self, name: str, frame: FrameType) -> None:
        """Calls of this thread that belong to no module belong to ``name`` while ``frame`` runs."""
        self.threads.phase, self.threads.phase_frame = name, frame

    def end_phase(self) -> None:
        """The phase is over, and with it the trust in version counters that it may have brought."""
        self.threads.phase = self.threads.phase_frame = None
        self.recomputation.remembers = True
        self.encoder.trust_versions(on=False)

    def _phase(self, frame: FrameType | None) -> str | None:
        if self.threads.phase is None:
            return None
        while frame is not None and frame is not self.threads.phase_frame:
            frame = frame.f_back
        if frame is None:  # an optimiser step that raised tells no hook
            self.end_phase()
        return self.threads.phase

    def resolve(self) -> None:
        """Fill in what is still on an accelerator; waits if another thread is about it."""
        with self._resolving:
            self.encoder.resolve()
            if self.watcher is not None:
                self.watcher.resolve()

    def backward_record(self, opened_parent: CallName | str | None, name: str, record: dict[str, Any]) -> None:
        """Add a complete backward record; task structure has its place in the hierarchy only."""
        if self._values:
            self.writer.add(name, record)  # type: ignore[union-attr]
        if self._hierarchy:
            parent = opened_parent.backward() if isinstance(opened_parent, CallName) else opened_parent
            self.writer.add_parent(name, parent)  # type: ignore[union-attr]

    def parameters_record(self, name: str, record: dict[str, Any]) -> None:
        """Add a complete ``parameters_grad`` record."""
        if self._values and self.data_mode.backward and (self.selection.everything or self.selection.allows(name)):
            self.writer.add(name, record)  # type: ignore[union-attr]

    def _write_tensor(self, file_name: str, save: Any) -> str | None:
        return self.writer.write_tensor(file_name, save)  # type: ignore[union-attr]

    # -- threads

    def new_threads(self) -> None:
        """Forget what every thread was in the middle of: also those that were inside a module at ``stop()``."""
        self._modules_everywhere: list[list[OpenCall]] = []
        self.threads = self.thread_state(self._modules_everywhere)
        self.encoder.trust_versions(on=False)

    def count_open_modules(self) -> None:
        """The capture stops: the module calls that are running will not be recorded."""
        open_calls = [opened for modules in self._modules_everywhere for opened in modules]
        lost = sum(opened.choice.forward or opened.edges is not None for opened in open_calls)
        if lost:
            self.coverage.not_recorded["module call was open at stop()"] += lost

    # -- steps

    def close_step(self) -> dict[str, Any]:
        """End of a step: emit what waits for gradients, restart names and counts; return the coverage report."""
        self.gradients.flush()
        self.epoch += 1
        report = self.report()
        if self.watcher is not None:
            self.watcher.close_step()
        self.counters.reset()
        self.selection.reset()
        self.recomputation.reset()
        self.coverage.reset()
        self.encoder.null_reasons.clear()
        return report

    def report(self) -> dict[str, Any]:
        """Coverage of the open step."""
        if self.watcher is not None:
            self.coverage.notes.update(self.watcher.notes())
        return self.coverage.report(self.encoder.null_reasons, counts())


def as_sequence(output: Any) -> Sequence[Any]:
    """A call's result as a list of results: one value, or the elements of a plain list or tuple."""
    if type(output) in (tuple, list):
        return output
    if isinstance(output, tuple) and (hasattr(output, "_fields") or hasattr(output, "n_fields")):
        return tuple(output)  # a namedtuple, or one of torch.return_types
    return (output,)
