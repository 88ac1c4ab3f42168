"""Turn calls into records: what every framework's capture has in common.

A call is placed (named, hung into the hierarchy, decided about), its values are encoded, and its record goes to the
writer. How gradients are found and when hooks run is the business of the framework's subclass. Everything here runs
inside the user's step: strings are built once, stacks are kept as offsets, and what can wait waits for the flush.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, Protocol

from msprobe.core.api_lists import ApiLists
from msprobe.core.call_stack import StackBook, StackNode
from msprobe.core.config_record import Config
from msprobe.core.coverage import Coverage
from msprobe.core.interruptions import pass_on_interruption
from msprobe.core.names import CallName, Counters
from msprobe.core.open_call import OpenCall
from msprobe.core.selection import ALL, NOTHING, Selection
from msprobe.core.thread_state import ThreadState
from msprobe.measure.plain_scalars import EMPTY
from msprobe.store import StepWriter

_LOG = logging.getLogger("msprobe")
_MODULE_LEVELS = ("L0", "mix")


class Encoder(Protocol):
    """What turns values into entries; see :mod:`msprobe.measure`."""

    null_reasons: Counter[str]

    def encode(self, value: Any, path: str | None = None) -> Any:
        """Entry of one value."""

    def encode_sequence(self, values: Sequence[Any], prefix: str | None = None) -> Any:
        """Entries of several values."""

    def encode_mapping(self, mapping: Mapping[Any, Any], prefix: str | None = None) -> Any:
        """Entries of named values."""

    def trust_versions(self, *, on: bool) -> None:
        """Whether a tensor that has not counted a write needs no second reading."""

    def resolve(self) -> None:
        """Fill in what waits for a device."""


class Recorder:
    """Records of one debugger, step after step. A subclass sets :attr:`encoder`, then calls :meth:`new_threads`.

    Parameters
    ----------
    config : Config
    stacks : StackBook

    Attributes
    ----------
    running : bool
        Between start and stop of a step that is wanted.
    writer : StepWriter or None
        Of the open step.
    epoch : int
        Number of steps closed so far. Hooks of an earlier epoch do nothing.
    records_values : bool
        Whether there are forward records at all.
    keeps_stacks, keeps_hierarchy : bool
        Whether ``stack.json`` and ``construct.json`` are written.
    """

    thread_state: type[ThreadState] = ThreadState
    encoder: Encoder

    def __init__(self, config: Config, stacks: StackBook) -> None:
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
        self.stacks = stacks
        self.counters = Counters()
        self.data_mode = config.data_mode
        self._values = config.task != "structure"
        self.records_values = self._values and config.data_mode.forward
        self._resolving = threading.RLock()
        self._tensors = config.task == "tensor"
        self._some_tensors = bool(config.tensor_list)
        self.saves_tensors = self._tensors or self._some_tensors
        self.keeps_stacks = config.extra_info
        self.keeps_hierarchy = config.extra_info and config.level in _MODULE_LEVELS
        self._phases_placed: set[str] = set()

    # -- calls

    def name_call(self, base: str, *, module: bool) -> CallName:
        """Name of a call that begins now."""
        return CallName(base, self.counters.take(base), module=module)

    def place(
        self,
        base: str,
        stack_of: Callable[[FrameType | None], StackNode | None],
        frame: FrameType | None,
        module: Any = None,
    ) -> OpenCall | None:
        """Name a call that begins, find its place among the modules, and decide about it; nothing is measured.

        Parameters
        ----------
        base : str
            ``Prefix.name`` or ``Module.path.Class``.
        stack_of : callable
            Returns the call stack of ``frame``; asked only if stacks are kept.
        frame : FrameType or None
            The calling frame.
        module : optional
            The module, if this is a module call.

        Returns
        -------
        OpenCall or None
            None when an API call is not recorded. A module call is always returned: calls inside need it as parent.
        """
        call = self.name_call(base, module=module is not None)
        if call.tag:
            self.coverage.recomputed += 1
        keeps_stacks = self.keeps_stacks
        node = stack_of(frame) if keeps_stacks else None  # first: it drops modules that ended untold
        threads = self.threads
        inner: OpenCall | None = None
        if threads.modules:
            inner = threads.modules[-1]
            parent: CallName | str | None = inner.call
        else:  # asking for the stack has shown that the phase lasts
            parent = call.parent or (threads.phase if keeps_stacks else self._phase(frame))
        call.parent = parent
        opened = OpenCall(call, parent, self.epoch, module, node)
        if self.selection.everything:
            opened.choice = ALL
            opened.wants_gradients = self.data_mode.backward
        elif not self._select(opened, inner):
            return None
        if keeps_stacks:
            self._describe(opened, call.forward)
        return opened

    def _select(self, opened: OpenCall, inner: OpenCall | None) -> bool:
        """Decide about a call; False if nothing is to be known of it."""
        call, selection = opened.call, self.selection
        enclosing = inner.expansion if inner is not None else NOTHING
        opened.choice, opened.expansion = selection.enter(call, enclosing)
        opened.wants_gradients = self.data_mode.backward and selection.may_record_backward(opened.choice)
        if opened.wants_gradients or opened.choice.forward:
            return True
        self.coverage.filtered += 1
        if opened.module is None:
            selection.leave(call)
        return opened.module is not None

    def records_forward(self, opened: OpenCall) -> bool:
        """Whether the call has a forward record."""
        return self.records_values and opened.choice.forward

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
        pass_on_interruption(error)
        self.coverage.not_recorded[f"failed in the tool: {type(error).__name__} ({where})"] += 1
        if self.writer is not None:
            self.writer.note_failure(f"{where}: " + "".join(traceback.format_exception(error)))
        else:
            _LOG.warning("msprobe could not record %s: %s", where, error)

    # -- parts of a record

    def wants_tensors(self, name: str) -> bool:
        """Whether the full tensors of the record ``name`` are saved."""
        return self._tensors or (self._some_tensors and self.selection.wants_tensors(name))

    def own_parameters(self, module: Any) -> Mapping[str, Any]:
        """Parameters that belong to the module itself."""
        return {key: value for key, value in module._parameters.items() if value is not None}

    def encode_inputs(self, call: CallName, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The part of a forward record that tells of its arguments."""
        encoder = self.encoder
        prefix = call.forward if self.saves_tensors and self.wants_tensors(call.forward) else None
        return {
            "input_args": encoder.encode_sequence(args, prefix and f"{prefix}.input"),
            "input_kwargs": encoder.encode_mapping(kwargs, prefix and f"{prefix}.kwargs") if kwargs else EMPTY,
        }

    def encode_outputs(self, opened: OpenCall, record: dict[str, Any], results: Sequence[Any]) -> None:
        """Add what a call returned (:func:`as_sequence`), and a module's own parameters, to its forward record."""
        encoder = self.encoder
        prefix = None
        if self.saves_tensors and self.wants_tensors(opened.call.forward):
            prefix = opened.call.forward
        if opened.module is not None:
            own = self.own_parameters(opened.module)
            record["parameters"] = encoder.encode_mapping(own, prefix and f"{prefix}.parameters")
        record["output"] = encoder.encode_sequence(results, prefix and f"{prefix}.output")

    def _describe(self, opened: OpenCall, name: str) -> None:
        """Keep the stack of the call and its place in the hierarchy under ``name``.

        A module that is left out still has its place: what is recorded inside hangs on it.
        """
        node, choice = opened.node, opened.choice
        if node is not None and choice.forward:
            self.writer.add_stack(name, node)  # type: ignore[union-attr]
        if self.keeps_hierarchy and (choice.forward or choice.backward or opened.module is not None):
            parent = opened.parent
            if parent is None and node is not None and node.in_clip_grad:
                parent = opened.parent = "clip_grad"
            if isinstance(parent, CallName):
                self.writer.add_parent(name, parent.forward)  # type: ignore[union-attr]
            else:
                self._place_in_phase(name, parent)

    def _place_in_phase(self, name: str, phase: str | None) -> None:
        if phase is not None and phase not in self._phases_placed:
            self._phases_placed.add(phase)
            self.writer.add_parent(phase, None)  # type: ignore[union-attr]
        self.writer.add_parent(name, phase)  # type: ignore[union-attr]

    def describe_in_phase(self, name: str, node: StackNode, phase: str) -> None:
        """Keep the stack of a recorded call that a phase makes, and its place there."""
        self.writer.add_stack(name, node)  # type: ignore[union-attr]
        if self.keeps_hierarchy:
            self._place_in_phase(name, phase)

    def stack_node(self, frame: FrameType | None) -> StackNode | None:
        """The distinct stack from ``frame`` outwards."""
        threads, stacks = self.threads, self.stacks
        modules = threads.modules
        while modules and frame is not None:
            inner = modules[-1]
            node = stacks.node(frame, inner.frame, inner.outer)
            if node is not None:
                return node
            modules.pop()  # its forward ended without telling: an exception that no hook sees
            self.encoder.trust_versions(on=False)
        if frame is None:
            return None
        if threads.phase_frame is not None:
            node = self._node_in_phase(frame, threads, threads.phase_frame)
            if node is not None:
                return node
        return stacks.node(frame, None, None)

    def _node_in_phase(self, frame: FrameType, threads: ThreadState, phase: FrameType) -> StackNode | None:
        """The distinct stack of a call that a phase makes; None if the phase is over, which is noted."""
        node = self.stacks.node(frame, phase, threads.phase_outer, True)
        if node is None:  # an optimiser step that raised tells no hook
            self.end_phase()
        return node

    def begin_phase(self, name: str, frame: FrameType) -> None:
        """Calls of this thread that belong to no module belong to ``name`` while ``frame`` runs."""
        threads = self.threads
        threads.phase, threads.phase_frame, threads.flat = name, frame, None
        outside = frame.f_back if self.keeps_stacks else None
        threads.phase_outer = self.stacks.node(outside, None, None) if outside is not None else None

    def end_phase(self) -> None:
        """The phase is over, and with it the trust in version counters that it may have brought."""
        threads = self.threads
        threads.phase = threads.phase_frame = threads.phase_outer = threads.flat = None
        self.encoder.trust_versions(on=False)

    def _phase(self, frame: FrameType | None) -> str | None:
        if self.threads.phase is None or frame is None:  # None: compiled code, which runs in no frame of its own
            return self.threads.phase
        while frame is not None and frame is not self.threads.phase_frame:
            frame = frame.f_back
        if frame is None:  # an optimiser step that raised tells no hook
            self.end_phase()
        return self.threads.phase

    def resolve(self) -> None:
        """Fill in what is still on an accelerator; waits if another thread is about it."""
        with self._resolving:
            self.encoder.resolve()

    def backward_record(self, opened_parent: CallName | str | None, name: str, record: dict[str, Any]) -> None:
        """Add a complete backward record; task structure has its place in the hierarchy only."""
        if self._values:
            self.writer.add(name, record)  # type: ignore[union-attr]
        if self.keeps_hierarchy:
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
        self.flush_gradients()
        self.epoch += 1
        report = self.report()
        self.counters.reset()
        self.selection.reset()
        self.coverage.reset()
        self._phases_placed.clear()
        self.encoder.null_reasons.clear()
        return report

    def flush_gradients(self) -> None:
        """Emit the backward records that are still waiting for gradients."""

    def report(self) -> dict[str, Any]:
        """Coverage of the open step."""
        return self.coverage.report(self.encoder.null_reasons, kernel_counts())


def kernel_counts() -> dict[str, Any]:
    """Which kernels measured in this process, and how often."""
    from msprobe.measure.backends import counts  # noqa: PLC0415 - not on the way of `import msprobe`

    return counts()


def as_sequence(output: Any) -> Sequence[Any]:
    """A call's result as a list of results: one value, or the elements of a plain list or tuple."""
    if type(output) in (tuple, list):
        return output  # type: ignore[no-any-return]
    if isinstance(output, tuple) and (hasattr(output, "_fields") or hasattr(output, "n_fields")):
        return tuple(output)  # a namedtuple, or one of torch.return_types
    return (output,)
