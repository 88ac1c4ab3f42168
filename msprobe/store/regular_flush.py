"""Flush open writers every so often, on one thread per process.

A thread per step would cost every step its start and its end, several milliseconds on a busy machine. This one starts
with the first writer, lives on between steps, and ends by itself when it wakes up and no writer is open.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

THREAD_NAME = "msprobe-flush"


class Flushable(Protocol):
    """Something with pending content."""

    def flush(self) -> None:
        """Write what is pending; never raises."""


class RegularFlush:
    """The open writers of this process and the thread that flushes them."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._writers: dict[int, tuple[weakref.ref[Flushable], float]] = {}
        self._thread: threading.Thread | None = None
        self._seconds = 0.0  # that the thread waits

    def add(self, writer: Flushable, seconds: float) -> bool:
        """Flush ``writer`` at least every ``seconds`` from now on, until it is discarded or collected.

        Returns
        -------
        bool
            False if the system has no thread for it now (a limit of processes or memory): the caller has to flush.
        """
        if self._pid != os.getpid():  # a forked child has neither the thread nor, perhaps, a lock that is free
            self.__init__()  # type: ignore[misc]
        with self._changed:
            self._writers[id(writer)] = (weakref.ref(writer), seconds)
            if self._thread is None:
                self._seconds = seconds
                thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
                try:
                    thread.start()
                except (RuntimeError, MemoryError):
                    self._writers.pop(id(writer), None)
                    return False
                self._thread = thread
            elif seconds < self._seconds:
                self._changed.notify()
        return True

    def discard(self, writer: Flushable) -> None:
        """Forget ``writer``. The thread may be flushing it at this moment."""
        if self._pid == os.getpid():
            self._writers.pop(id(writer), None)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._writers:
                    self._thread = None
                    return
                self._seconds = min(seconds for _, seconds in self._writers.values())
                if self._changed.wait(self._seconds):
                    continue  # a writer that wants it sooner
                open_now = [reference for reference, _ in self._writers.values()]
            for reference in open_now:
                _flush(reference)
            for key, (reference, _) in list(self._writers.items()):
                if reference() is None:
                    self._writers.pop(key, None)


def _flush(reference: weakref.ref[Flushable]) -> None:
    writer = reference()
    if writer is not None:
        writer.flush()


def on_flush_thread() -> bool:
    """Whether the caller runs on the thread that flushes."""
    return threading.current_thread().name == THREAD_NAME


FLUSHING = RegularFlush()
"""Of this process."""
