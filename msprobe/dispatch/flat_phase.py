"""Calls of an optimiser step, the most of many steps: what is decided about each of them is decided once.

They are made by torch's own code, in no module, under ``torch.no_grad`` and in no backward pass: there are no gradients
to watch, no checkpoint repeats them, and their stacks end at the frame of the step. A call for which that is not so is
begun by `Capture.begin`, as every other one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from msprobe.core.call_stack import StackNode
from msprobe.core.names import CallName
from msprobe.core.open_call import OpenCall
from msprobe.core.recorder import as_sequence
from msprobe.core.selection import ALL
from msprobe.measure.plain_scalars import EMPTY

if TYPE_CHECKING:
    from msprobe.dispatch.capture import Capture

_top_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_task_id = torch._C._current_graph_task_id
_is_grad_enabled = torch.is_grad_enabled


FlatCall: TypeAlias = tuple[str, int, StackNode, dict[str, Any]]
"""Base and index of its name, its call stack, its record so far."""


class FlatPhase:
    """Records the calls of one phase in one thread.

    Parameters
    ----------
    capture : Capture
        Records everything, with stacks, and has nothing else to do with a call; the phase has begun.
    name : str
        Of the phase.
    frame : FrameType
        Frame that runs it; held as long as this object.
    """

    __slots__ = ("_capture", "_counters", "_epoch", "_frame", "_modules", "_name", "_outer", "_stacks")

    def __init__(self, capture: Capture, name: str, frame: FrameType) -> None:
        self._capture = capture
        self._name = name
        self._frame = frame
        self._epoch = capture.epoch
        self._modules = capture.threads.modules
        self._stacks = capture.stacks
        self._counters = capture.counters
        self._outer = capture.threads.phase_outer

    def begin(self, base: str, args: Sequence[Any], kwargs: Mapping[str, Any], frame: FrameType) -> FlatCall | None:
        """Do for an API call what `Capture.begin` does; None if it is none of these calls."""
        capture = self._capture
        if (
            self._modules
            or capture.epoch != self._epoch
            or _is_grad_enabled()
            or _top_hooks(True) is not None
            or _task_id() != -1
        ):
            return None
        node = self._stacks.node(frame, self._frame, self._outer, True)
        if node is None:  # the step has raised, and is over
            return None
        index = self._counters.take(base)
        record = {}
        if capture.records_values:
            encoder = capture.encoder
            record["input_args"] = encoder.encode_sequence(args)
            record["input_kwargs"] = encoder.encode_mapping(kwargs) if kwargs else EMPTY
        return base, index, node, record

    def end(self, call: FlatCall, output: Any, _written: Any = None) -> None:
        """Do what `Capture.end` does."""
        capture = self._capture
        base, index, node, record = call
        if capture.epoch != self._epoch or capture.writer is None:
            capture.end(self._opened(call), output)
            return
        name = f"{base}.{index}.forward"
        if capture.records_values:
            results = (output,) if type(output) is torch.Tensor else as_sequence(output)
            record["output"] = capture.encoder.encode_sequence(results)
            capture.writer.add(name, record)
        capture.describe_in_phase(name, node, self._name)

    def abort(self, call: FlatCall, error: BaseException | None) -> None:
        """Do what `Capture.abort` does."""
        self._capture.abort(self._opened(call), error)

    def _opened(self, call: FlatCall) -> OpenCall:
        base, index, node, record = call
        name = CallName(base, index, parent=self._name)
        opened = OpenCall(name, self._name, self._epoch, None, node)
        opened.choice, opened.record = ALL, record
        return opened
