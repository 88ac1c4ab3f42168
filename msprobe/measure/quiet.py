"""Run torch operations that nobody sees: no autograd graph, no user mode, no transform, no trace."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

import torch
from torch._C import _len_torch_dispatch_stack
from torch._C._functorch import peek_interpreter_stack
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes


class Quiet:
    """Context manager: operations inside leave no mark on the user's program.

    Off inside: gradient recording, ``__torch_function__`` (subclasses and modes), every TorchDispatchMode
    (activation checkpointing caches what it sees through one), functorch levels, and a running `torch.jit.trace`.
    The usual case, where none of the rare ones is active, costs about a microsecond.
    """

    __slots__ = ("_function_guard", "_grad", "_rare", "_trace")

    def __enter__(self) -> None:
        self._rare: ExitStack | None = None
        self._trace = None
        self._grad = torch.is_grad_enabled()
        self._function_guard = torch._C.DisableTorchFunction()
        self._function_guard.__enter__()
        try:
            self._switch_off()
        except BaseException:  # of a signal handler: nothing may stay off
            self.__exit__(None, None, None)
            raise

    def _switch_off(self) -> None:
        torch._C._set_grad_enabled(False)
        self._trace = torch._C._get_tracing_state()
        if self._trace is not None:
            torch._C._set_tracing_state(None)
        if _len_torch_dispatch_stack() or peek_interpreter_stack() is not None:
            self._rare = ExitStack()
            self._rare.enter_context(temporarily_clear_interpreter_stack())
            self._rare.enter_context(_disable_current_modes())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._rare is not None:
            self._rare.__exit__(kind, error, traceback)
        if self._trace is not None:
            torch._C._set_tracing_state(self._trace)
        torch._C._set_grad_enabled(self._grad)
        self._function_guard.__exit__(kind, error, traceback)
