"""What each thread is in the middle of: the modules that are running, and whether the function mode is on its stack."""

from __future__ import annotations

import threading
from types import FrameType
from typing import Any

from msprobe.core.call_stack import StackNode
from msprobe.core.open_call import OpenCall


class ThreadState(threading.local):
    """Per-thread state of a capture.

    Parameters
    ----------
    everywhere : list
        Gets the ``modules`` of every thread.

    Attributes
    ----------
    modules : list of OpenCall
        Module calls that are running, innermost last.
    phase : str or None
        ``"optimizer"`` while an optimiser step runs: parent of calls that belong to no module.
    phase_frame : FrameType or None
        Frame of what the phase is: when it is no longer running, the phase is over.
    phase_outer : StackNode or None
        Stack outside that frame, if stacks are kept.
    flat : object or None
        Begins the calls of that phase, if they are all alike.
    has_mode : bool
        Whether the capture's function mode is on this thread's stack.
    """

    def __init__(self, everywhere: list[list[OpenCall]]) -> None:  # runs in each thread that comes here
        self.modules: list[OpenCall] = []
        everywhere.append(self.modules)
        self.phase: str | None = None
        self.phase_frame: FrameType | None = None
        self.phase_outer: StackNode | None = None
        self.flat: Any = None
        self.has_mode = False
