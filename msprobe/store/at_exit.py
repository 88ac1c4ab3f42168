"""Finish what is open when the interpreter exits.

``atexit`` never gives the place of a removed handler back, and looks at all of them to remove one: a handler per step
would make a long run slower with every step. So there is one handler per process, for a set that things leave again.
"""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Protocol


class Open(Protocol):
    """Something that has to be finished."""

    def finish_at_exit(self) -> None:
        """Finish; called in the process that opened it, at most once."""


class OpenThings:
    """What this process has open, finished at exit in reverse order of opening."""

    def __init__(self) -> None:
        self._things: dict[int, weakref.ref[Open]] = {}
        self._pid = -1

    def add(self, thing: Open) -> None:
        """Finish ``thing`` at exit, unless it is discarded or collected before."""
        if self._pid != os.getpid():  # the first one, or the first after a fork
            self._pid = os.getpid()
            self._things.clear()
            atexit.register(self._finish_all)
        self._things[id(thing)] = weakref.ref(thing)

    def discard(self, thing: Open) -> None:
        """Forget ``thing``: it is finished."""
        self._things.pop(id(thing), None)

    def _finish_all(self) -> None:
        while self._things and os.getpid() == self._pid:
            _, reference = self._things.popitem()
            thing = reference()
            if thing is not None:
                thing.finish_at_exit()


OPEN = OpenThings()
"""Of this process."""
