"""Calls of an optimiser step, the most of many steps: what is decided about each of them is decided once.

They are made by torch's own code, in no module, under ``torch.no_grad`` and in no backward pass: there are no gradients
to watch, no checkpoint repeats them, and their stacks end at the frame of the step. A call for which that is not so is
begun by `Capture.begin`, as every other one.

What is written here in Python is what ``run_flat_call`` of the native kernels does, at a fraction of the cost. It takes
over from the second call of a phase on; the first has put the phase into the hierarchy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from msprobe.core.call_stack import StackNode
from msprobe.core.names import CallName
from msprobe.core.open_call import OpenCall
from msprobe.core.recorder import as_sequence
from msprobe.core.selection import ALL
from msprobe.measure.encode import NAMED, ValueEncoder
from msprobe.measure.plain_scalars import EMPTY

if TYPE_CHECKING:
    from msprobe.dispatch.api_mode import ApiMode
    from msprobe.dispatch.capture import Capture

_top_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_task_id = torch._C._current_graph_task_id
_is_grad_enabled = torch.is_grad_enabled
_STATE = (_is_grad_enabled, _top_hooks, _task_id, torch._C._len_torch_function_stack)


FlatCall: TypeAlias = tuple[str, int, StackNode, dict[str, Any]]
"""Base and index of its name, its call stack, its record so far."""

Decide: TypeAlias = Callable[[Any, tuple[Any, ...], FrameType], "str | None"]
"""From function, arguments and calling frame to the base of the name; None if the call is not one of these."""


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

    Attributes
    ----------
    native : tuple or None
        What ``run_flat_call`` needs to know of the phase; None while calls are to be recorded from here.
    """

    __slots__ = (
        "_capture",
        "_counters",
        "_epoch",
        "_frame",
        "_modules",
        "_name",
        "_name_call",
        "_outer",
        "_prepared",
        "_stacks",
        "native",
    )

    def __init__(self, capture: Capture, name: str, frame: FrameType) -> None:
        self._capture = capture
        self._name = name
        self._frame = frame
        self._epoch = capture.epoch
        self._modules = capture.threads.modules
        self._stacks = capture.stacks
        self._counters = capture.counters
        self._outer = capture.threads.phase_outer
        self._prepared: tuple[Any, ...] | None = None
        self.native: tuple[Any, ...] | None = None

    def prepare(self, mode: ApiMode, wanted: Mapping[Any, Any], name_call: Decide) -> None:
        """Have the calls that ``mode`` sees recorded natively, if their values can be encoded natively.

        Parameters
        ----------
        mode : ApiMode
        wanted : dict
            Functions that the mode has met; None for those that are never recorded.
        name_call : callable
            Names a call of one of the others.
        """
        capture, writer = self._capture, self._capture.writer
        encoder: Any = capture.encoder if capture.records_values else None
        if encoder is not None:
            if not isinstance(encoder, ValueEncoder) or encoder.native is None:
                return
            encoder = encoder.native
        if writer is None:
            return
        self._name_call = name_call
        records, stacks, parents = writer.lists
        self._prepared = (
            *(mode, capture, self._epoch, writer, self._modules, wanted, capture.decisions, self._decide),
            *(self._frame, self._outer, _STATE, torch.Tensor, self._counters.following),
            *(encoder, NAMED, self._encode_kwargs, as_sequence, self._name),
            *(records, stacks, parents if capture.keeps_hierarchy else None, writer.batch, writer.flush_batch),
            *(self._too_late, self._aborted, capture.failed),
        )

    def close(self) -> None:
        """The phase is over: let go of what leads back here, and of the frame, without the garbage collector's help."""
        self.native = self._prepared = None

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
        self.native = self._prepared

    def abort(self, call: FlatCall, error: BaseException | None) -> None:
        """Do what `Capture.abort` does."""
        self._capture.abort(self._opened(call), error)

    def _opened(self, call: FlatCall) -> OpenCall:
        base, index, node, record = call
        name = CallName(base, index, parent=self._name)
        opened = OpenCall(name, self._name, self._epoch, None, node)
        opened.choice, opened.record = ALL, record
        return opened

    # -- called by run_flat_call

    def _decide(self, function: Any, args: tuple[Any, ...], frame: FrameType) -> tuple[str, StackNode] | None:
        """Base of the name, and stack, of all calls from here; None if one is not to be recorded natively."""
        base = self._name_call(function, args, frame)
        node = self._stacks.node(frame, self._frame, self._outer, True) if base is not None else None
        return (base, node) if base is not None and node is not None else None

    def _encode_kwargs(self, kwargs: dict[str, Any]) -> Any:
        with torch._C.DisableTorchFunction():
            return self._capture.encoder.encode_mapping(kwargs)

    def _too_late(self, base: str, index: int, node: StackNode, record: dict[str, Any], output: Any) -> None:
        with torch._C.DisableTorchFunction():
            self.end((base, index, node, record), output)

    def _aborted(self, base: str, index: int, node: StackNode, record: dict[str, Any], error: BaseException) -> None:
        with torch._C.DisableTorchFunction():
            try:
                self.abort((base, index, node, record), error)
            except Exception as failure:  # noqa: BLE001 - hook boundary
                self._capture.failed(f"failed call of {base}", failure)
