"""Functions compiled by ``mindspore.jit``: recorded at their boundary as ``Jit.name.n``, nothing inside.

A compiler that reads the user's source or bytecode must not meet a replaced function, so the originals stand while a
compiled function runs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

from mindspore import nn
from mindspore.common.api import _JitExecutor  # the class that mindspore.graph.api uses, too

from msprobe.core.open_call import OpenCall
from msprobe.ms_dynamic import calls
from msprobe.ms_dynamic.capture import MindsporeCapture
from msprobe.ms_dynamic.replaced import ReplacedAttributes


class JitCalls:
    """Stands around every compiled call.

    Parameters
    ----------
    capture : MindsporeCapture
    replaced : ReplacedAttributes
        What must not be met inside.
    recorded : bool
        Whether the call has a record (levels L1 and mix).
    """

    def __init__(self, capture: MindsporeCapture, replaced: ReplacedAttributes, *, recorded: bool) -> None:
        self._capture = capture
        self._replaced = replaced
        self._records = recorded
        self._own = ReplacedAttributes()
        self._own.add(_JitExecutor, "__call__", self._around)
        context = _bytecode_context()
        if context is not None:
            self._own.add(context, "__enter__", self._entering)
            self._own.add(context, "__exit__", self._leaving)

    def install(self) -> None:
        """Stand around compiled calls from now on."""
        self._own.install()

    def remove(self) -> None:
        """No longer."""
        self._own.remove()

    def _begin(self, name: str, args: Any, kwargs: Mapping[str, Any], frame: FrameType | None) -> OpenCall | None:
        if not self._records or not self._capture.recording or self._capture.threads.hiding:
            return None
        return calls.begin(self._capture, f"Jit.{name}", tuple(args), dict(kwargs), frame)

    def _around(self, original: calls.Function) -> calls.Function:
        """Source that is compiled (``capture_mode="ast"``)."""

        @functools.wraps(original)
        def around(executor: Any, *args: Any, **kwargs: Any) -> Any:
            visible = args[1:] if executor.obj is not None else args
            opened = self._begin(_name_of(executor.fn, executor.obj), visible, kwargs, sys._getframe(1))
            try:
                with self._replaced.suspended():
                    output = original(executor, *args, **kwargs)
            except BaseException as error:
                calls.abort(self._capture, opened, error)
                raise
            calls.end(self._capture, opened, output)
            return output

        return around

    # Bytecode that is compiled (``capture_mode="bytecode"``): MindSpore enters a context around the call, with the
    # arguments in the frame that enters and the result in the context.

    def _entering(self, original: calls.Function) -> calls.Function:
        @functools.wraps(original)
        def enter(context: Any) -> Any:
            frame = sys._getframe(1)
            args, kwargs = frame.f_locals.get("args", ()), frame.f_locals.get("kwds", {})
            owner = args[0] if args and hasattr(args[0], context.fn.__name__) else None
            visible = args[1:] if owner is not None else args
            opened = self._begin(_name_of(context.fn, owner), visible, kwargs, frame.f_back)
            self._capture.threads.compiled.append((opened, self._replaced.installed))
            self._replaced.remove()
            return original(context)

        return enter

    def _leaving(self, original: calls.Function) -> calls.Function:
        @functools.wraps(original)
        def leave(context: Any, kind: Any, error: Any, trace: Any) -> Any:
            result = original(context, kind, error, trace)
            compiled = self._capture.threads.compiled
            if not compiled:  # entered before start()
                return result
            opened, installed = compiled.pop()
            if installed and self._capture.running:
                self._replaced.install()
            if error is None:
                calls.end(self._capture, opened, context.ret)
            else:
                calls.abort(self._capture, opened, error)
            return result

        return leave


def is_compiled(cell: Any) -> bool:
    """Whether the ``construct`` of a Cell is compiled by ``mindspore.jit``."""
    return hasattr(getattr(cell, "construct", None), "__wrapped_by_jit__")


def _bytecode_context() -> Any:
    """The context that runs functions compiled from bytecode; None where MindSpore has none."""
    try:
        from mindspore.graph._utils.pijit_context import PIJitCaptureContext  # noqa: PLC0415 - it moved in 2.9
    except ImportError:
        return None
    return PIJitCaptureContext


def _name_of(function: Any, owner: Any) -> str:
    """Name of the compiled function; of a Cell's ``construct`` the class of the Cell."""
    name = str(function.__name__)
    return type(owner).__name__ if name == "construct" and isinstance(owner, nn.Cell) else name
