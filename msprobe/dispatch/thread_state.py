"""What each thread is in the middle of: the modules that are running, and whether the function mode is on its stack."""

from __future__ import annotations

import threading

from msprobe.dispatch.open_call import OpenCall


class ThreadState(threading.local):
    """Per-thread state of a capture.

    Attributes
    ----------
    modules : list of OpenCall
        Module calls that are running, innermost last.
    phase : str or None
        ``"optimizer"`` while an optimiser step runs: parent of calls that belong to no module.
    has_mode : bool
        Whether the capture's function mode is on this thread's stack.
    """

    def __init__(self) -> None:
        self.modules: list[OpenCall] = []
        self.phase: str | None = None
        self.has_mode = False
