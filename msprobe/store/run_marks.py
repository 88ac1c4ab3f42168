"""Which run a dump_path belongs to.

A hidden file in it tells which run took the folder last, and when, on a clock that nobody can set; it also serves as
the lock for looking and moving. It says nothing about what was recorded: it may be deleted when no run is alive.

The run that started last has the folder. What another run has written there is moved aside, and if that run is still
alive it sees the new mark when it makes its next folder and goes on beside what was moved: nothing of either run is
lost, and they do not mix.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from msprobe.store.process_start import RunStart, moment_now, start_ticks
from msprobe.store.step_folder import FILE_MODE

LOCK_FILE = ".msprobe.lock"
_FUTURE_SECONDS = 3600.0
_LONGEST_MARK = 4096
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class RunMark:
    """Note of a run in the dump_path that it took.

    Attributes
    ----------
    taken
        When it took the folder.
    started
        When the run began.
    pid, ticks
        Process that took it, and when that process started, in clock ticks since boot.
    """

    taken: RunStart
    started: RunStart
    pid: int
    ticks: int

    def line(self) -> bytes:
        """Render for the file; see `from_line`."""
        content = {
            "taken": self.taken.text(),
            "started": self.started.text(),
            "pid": self.pid,
            "ticks": self.ticks,
        }
        return orjson.dumps(content) + b"\n"

    @classmethod
    def from_line(cls, text: bytes) -> RunMark | None:
        """Read what `line` made; None if it is something else."""
        try:
            content = orjson.loads(text.partition(b"\n")[0])
            taken, started = (RunStart.from_text(content[key]) for key in ("taken", "started"))
            return cls(taken, started, int(content["pid"]), int(content["ticks"]))
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    @property
    def alive(self) -> bool:
        """Whether the process that took the folder runs on this machine at this moment."""
        here = self.taken.boot and self.taken.boot == moment_now().boot
        return bool(here) and start_ticks(self.pid) == self.ticks


def read_mark(folder: Path) -> RunMark | None:
    """Return the mark of a dump_path as it is now; None if there is none that can be read."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDONLY | _OPEN)
    except OSError:
        return None
    try:
        return RunMark.from_line(os.read(descriptor, _LONGEST_MARK))
    except OSError:
        return None
    finally:
        os.close(descriptor)


class HeldMark:
    """The mark of a dump_path while its lock is held.

    Attributes
    ----------
    mark
        Of the run that took the folder last; None if none has, or the content is not ours.
    """

    __slots__ = ("_before", "_descriptor", "mark")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._before = b""
        with contextlib.suppress(OSError):  # such as a pipe in its place
            self._before = os.pread(descriptor, _LONGEST_MARK, 0)
        self.mark = RunMark.from_line(self._before)

    def take(self, started: RunStart) -> None:
        """Note that the folder belongs to the run of this process from now on."""
        pid = os.getpid()
        self.mark = RunMark(moment_now(), started, pid, start_ticks(pid) or 0)
        self._write(self.mark.line())

    def put_back(self) -> None:
        """Leave the mark as it was found."""
        self.mark = RunMark.from_line(self._before)
        self._write(self._before)

    def _write(self, content: bytes) -> None:
        # Whoever reads without the lock reads one line, so what is longer is cut off afterwards.
        with contextlib.suppress(OSError):  # a full disk; the times of the folders then have to tell
            os.pwrite(self._descriptor, content, 0)
            os.ftruncate(self._descriptor, len(content))


def looks_earlier(folder: Path, started: RunStart) -> bool:
    """Tell from its time stamp whether an earlier run made a folder, where no mark tells.

    What was changed long after now was written before the clock was set back.
    """
    changed = folder.stat().st_mtime
    return changed < started.epoch or changed > moment_now().epoch + _FUTURE_SECONDS


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[HeldMark]:
    """Hold the folder's lock file; where the file system has no locks, go on without."""
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | _OPEN, FILE_MODE)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield HeldMark(descriptor)
    finally:
        os.close(descriptor)
