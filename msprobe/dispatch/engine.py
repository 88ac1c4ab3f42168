"""See what runs inside a backward pass: recomputation, ``autograd.Function.backward``, user hooks.

``loss.backward()`` is itself a torch function, so the mode is off its stack while the engine runs. The engine's private
entry point is wrapped while a capture runs, and puts the mode back for the time of the pass. No public attribute
changes.
"""

from __future__ import annotations

import sys
from typing import Any

import torch.autograd

from msprobe.dispatch.api_mode import ApiMode, hidden, lift_mode
from msprobe.dispatch.capture import Capture

_ENTRY = "_engine_run_backward"


class EngineEntry:
    """Wraps the engine's entry while attached."""

    def __init__(self, mode: ApiMode, capture: Capture) -> None:
        self._mode = mode
        self._capture = capture
        self._original: Any = None

    def attach(self) -> bool:
        """Start; False if this torch has no such entry, so that calls inside a backward pass are not seen."""
        self._original = getattr(torch.autograd, _ENTRY, None)
        if self._original is not None:
            setattr(torch.autograd, _ENTRY, self._run)
        return self._original is not None

    def detach(self) -> None:
        """Put the original entry back, unless somebody else has replaced it since."""
        if self._original is not None and getattr(torch.autograd, _ENTRY) == self._run:
            setattr(torch.autograd, _ENTRY, self._original)
        self._original = None

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        original = self._original or torch.autograd.graph._engine_run_backward
        if _backward_is_compiled():
            with hidden(self._mode):  # what the compiler calls while it looks at the pass is no call of the user
                return original(*args, **kwargs)
        if not self._capture.threads.has_mode or self._mode in torch.overrides._get_current_function_mode_stack():
            return original(*args, **kwargs)
        torch.overrides._push_mode(self._mode)
        try:
            return original(*args, **kwargs)
        finally:
            lift_mode(self._mode)  # not a plain pop: a hook may have stopped the capture


def _backward_is_compiled() -> bool:
    """Whether compiled autograd takes over the next backward pass."""
    compiler = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(compiler, "compiled_autograd_enabled", False))
