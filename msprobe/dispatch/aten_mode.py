"""See every operator that reaches a kernel (level L2), below autograd, in forward and backward.

A ``TorchDispatchMode`` is called for each operator of its thread. torch takes it off the stack meanwhile, so what the
tool computes is never seen by it, and what a custom operator calls inside belongs to that operator.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from msprobe.core.kernel_risk import kernel_risk
from msprobe.core.risk import Risk
from msprobe.dispatch.api_mode import ApiMode
from msprobe.dispatch.api_table import ApiTable
from msprobe.dispatch.compiled_regions import CompiledRegions
from msprobe.dispatch.kernel_capture import Kernel, KernelCapture
from msprobe.dispatch.look_away import UNWATCHED, LookAway

_NO_KWARGS: Mapping[str, Any] = {}
_DisableTorchFunction = torch._C.DisableTorchFunction
_set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame
_mode_of_key = torch._C._get_dispatch_mode
_stack_length = torch._C._len_torch_dispatch_stack
_TRACERS = (
    torch._C._TorchDispatchModeKey.FAKE,
    torch._C._TorchDispatchModeKey.PROXY,
    torch._C._TorchDispatchModeKey.FUNCTIONAL,
)
_exclude = torch._C._dispatch_tls_set_dispatch_key_excluded
_IN_PLACE = "ADInplaceOrView"
_IN_PLACE_KEY = torch._C.DispatchKey.ADInplaceOrView
_NOT_KERNELS = frozenset({"prim", "profiler"})  # questions about a tensor, marks of the profiler


class AtenMode(TorchDispatchMode):
    """Record each operator of the threads it is on.

    It is pushed below the modes that are there, and without ``__enter__``: the flags that this would set make
    Dynamo refuse a compiled function with ``fullgraph=True``, that is, raise into the user's program.

    Parameters
    ----------
    capture : KernelCapture
    compiled : CompiledRegions
        Told when Dynamo meets this mode.
    """

    supports_higher_order_operators = True  # otherwise torch raises for each of them

    def __init__(self, capture: KernelCapture, compiled: CompiledRegions) -> None:
        super().__init__()
        self._capture = capture
        self._compiled = compiled
        self._kernels: dict[Any, Kernel | None] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: torch's own way to hide the handler from Dynamo would import the compiler and hide the user's too."""
        return False

    def ignore_compile_internals(self) -> bool:  # type: ignore[override]
        """Let compiled functions stay compiled. Dynamo asks when it is about to compile under this mode."""
        self._compiled.seen()
        return True

    def enter_thread(self) -> None:
        """Put the mode on this thread's stack, below the user's modes: leaving those takes away what is on top."""
        if self in _get_current_dispatch_mode_stack():
            return
        above = _lift(len(_user_modes()))
        for mode in (self, *reversed(above)):
            _push_mode(mode)

    def watches(self) -> bool:
        """Whether kernels are being recorded."""
        return self._capture.running

    def leave_thread(self) -> None:
        """Take the mode off this thread's stack, also from under modes that were entered later."""
        while self in (modes := _user_modes()):
            *above, _ = _lift(len(modes) - modes.index(self))
            for mode in reversed(above):
                _push_mode(mode)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func`` and record it if it is wanted."""
        named = kwargs or _NO_KWARGS
        capture = self._capture
        if not capture.running or (_stack_length() and _traced()):
            return func(*args, **named)
        try:
            kernel = self._kernels[func]
        except KeyError:
            kernel = self._kernels[func] = describe_kernel(func)
        if kernel is None:
            if isinstance(func, torch._ops.HigherOrderOperator):
                capture.coverage.not_recorded[f"kernels inside the higher-order operator {func.__name__}"] += 1
            return func(*args, **named)
        opened = self._begin(kernel, args, named)
        try:
            output = _run(func, args, named) if kernel.writes_inside else func(*args, **named)
        except BaseException as error:
            if opened is not None:
                self._record(f"failed {kernel.base}", capture.abort_kernel, opened, error)
            raise
        if opened is not None:
            self._record(f"outputs of {kernel.base}", capture.end_kernel, kernel, opened, args, named, output)
        return output

    def _begin(self, kernel: Kernel, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        caller = sys._getframe(1).f_back  # of __torch_dispatch__, which a thread of autograd calls from nowhere
        return self._record(f"inputs of {kernel.base}", self._capture.begin_kernel, kernel, args, kwargs, caller)

    def _record(self, what: str, step: Callable[..., Any], *arguments: Any) -> Any:
        """Run a part of the capture: unseen by Dynamo and by function modes, and without raising."""
        callback = _set_eval_frame(None)
        try:
            with _DisableTorchFunction():
                return step(*arguments)
        except Exception as error:  # noqa: BLE001 - hook boundary
            self._capture.failed(what, error)
            return None
        finally:
            _set_eval_frame(callback)


def describe_kernel(func: Any) -> Kernel | None:
    """What is recorded of an operator; None if it computes nothing itself.

    Parameters
    ----------
    func : OpOverload or HigherOrderOperator
        ``torch.ops.aten.mm.default``

    Returns
    -------
    Kernel or None
        Operators of other libraries keep their namespace: ``Aten.c10d.allreduce_.default``.
    """
    if not isinstance(func, torch._ops.OpOverload):
        return None
    schema = func._schema
    namespace, _, name = schema.name.partition("::")
    if namespace in _NOT_KERNELS:
        return None
    written = tuple(
        argument.name if argument.kwarg_only else position
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    risk: Risk = kernel_risk(namespace, name, view=_is_view(schema))
    path = name if namespace == "aten" else f"{namespace}.{name}"
    return Kernel(
        base=f"Aten.{path}.{schema.overload_name or 'default'}",
        risk=risk,
        written=written,
        returns=bool(schema.returns),
        writes_inside=bool(written) and not torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _IN_PLACE),
        unwatched=UNWATCHED.get(name, ()) if namespace == "aten" else (),
    )


def _run(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run an operator that writes by calling in-place operators, so that those count the write.

    For a dispatch mode torch switches the counting of versions off until the mode returns; without one, only an
    operator that counts for itself does so.
    """
    _exclude(_IN_PLACE_KEY, False)
    try:
        return func(*args, **kwargs)
    finally:
        _exclude(_IN_PLACE_KEY, True)


def _is_view(schema: Any) -> bool:
    """Whether a result aliases an argument that is not written to."""
    aliases = [argument.alias_info for argument in schema.arguments if argument.alias_info is not None]
    return any(not alias.is_write for alias in aliases) and any(result.alias_info for result in schema.returns)


def _traced() -> bool:
    """Whether a tracer is below: the operators are a program being written, not one that runs."""
    return any(_mode_of_key(key) is not None for key in _TRACERS)


def _user_modes() -> list[TorchDispatchMode]:
    """Modes of this thread, outermost first, without those that torch keeps in places of their own."""
    return [mode for mode in _get_current_dispatch_mode_stack() if getattr(mode, "_mode_key", None) is None]


def _lift(count: int) -> list[TorchDispatchMode]:
    """Take the ``count`` innermost modes off; returns them, innermost first."""
    return [_pop_mode() for _ in range(count)]


class EnclosingMode(ApiMode):
    """Function mode of level L2: names the API calls that run, and has the kernels inside recorded.

    Parameters
    ----------
    capture : KernelCapture
    table : ApiTable

    Attributes
    ----------
    compiled : CompiledRegions
    """

    def __init__(self, capture: KernelCapture, table: ApiTable) -> None:
        super().__init__(capture, table, Risk.LOW)
        self.compiled = CompiledRegions(capture)
        self._aten = AtenMode(capture, self.compiled)
        capture.look_away = LookAway(self._aten.watches, self._aten.leave_thread, self._aten.enter_thread, self._unseen)

    def _unseen(self, node: str) -> None:
        self._capture.coverage.not_recorded[f"kernels of {node}, which computes differently while watched"] += 1

    def enter_thread(self) -> None:
        """Put both modes on this thread's stacks."""
        super().enter_thread()
        self._aten.enter_thread()
        if not self.compiled.probed:
            self.compiled.attach()

    def leave_thread(self) -> None:
        """Take both modes off this thread's stacks."""
        if not self._capture.running:
            self.compiled.detach()  # that one is not the thread's
        self._aten.leave_thread()
        super().leave_thread()

    @contextmanager
    def kernels_unseen(self) -> Iterator[None]:
        """Keep the dispatch mode off this thread: compiled kernels have probes."""
        watched = self._aten in _get_current_dispatch_mode_stack()
        if watched:
            self._aten.leave_thread()
        try:
            yield
        finally:
            if watched and self._capture.running:
                self._aten.enter_thread()
