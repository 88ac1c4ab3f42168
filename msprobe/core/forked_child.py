"""A forked child (DataLoader worker) inherits the capture; it must not continue it."""

from __future__ import annotations

import os
import weakref

from msprobe.core.recorder import Recorder


class ForkedChild:
    """Keeps forked children of one debugger from recording, whichever capture is the current one."""

    def __init__(self) -> None:
        self._capture: weakref.ref[Recorder] | None = None
        alive = weakref.ref(self)  # what is registered for forks stays for the life of the process

        def silence() -> None:
            child = alive()
            capture = child._capture() if child is not None and child._capture is not None else None
            if capture is not None:
                capture.running = False

        os.register_at_fork(after_in_child=silence)

    def silences(self, capture: Recorder) -> None:
        """From now on it is this capture that a child must not continue."""
        self._capture = weakref.ref(capture)
