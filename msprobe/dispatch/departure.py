"""Take the function mode off the stack of a thread that ``stop()`` was not called in.

A thread's mode stack can be changed by that thread only. The mode that another thread stopped finds out when it is
called; but torch has lifted it for the time of the call and puts it back afterwards. A profile function is what
Python runs next in this thread: it waits for the mode to be on the stack again, takes it off and goes away itself.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.overrides import TorchFunctionMode

    from msprobe.dispatch.capture import Capture


class _Departure:
    """Profile function of one thread."""

    __slots__ = ("_capture", "_mode")

    def __init__(self, mode: TorchFunctionMode, capture: Capture) -> None:
        self._mode = mode
        self._capture = capture

    def __call__(self, _frame: FrameType, _event: str, _argument: Any) -> None:
        if self._capture.running:  # started again: the mode is wanted where it is
            sys.setprofile(None)
        elif self._mode in torch.overrides._get_current_function_mode_stack():
            sys.setprofile(None)
            self._mode.leave_thread()  # type: ignore[attr-defined]


def leave_after_call(mode: TorchFunctionMode, capture: Capture) -> None:
    """Have ``mode`` leave this thread's stack when the call that it is handling has returned.

    Nothing happens while a profiler is active in this thread: the mode stays without effect, and the next call tries
    again.
    """
    if sys.getprofile() is None:
        sys.setprofile(_Departure(mode, capture))
