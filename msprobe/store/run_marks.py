"""Which run a dump_path belongs to, and whether that run is still alive.

Two hidden files tell: one holds the moment at which the run took the folder, on a clock that nobody can set, and serves
as the lock for looking and moving; every process of the run holds a lock on the other one until it ends, however that
comes. Neither says anything about what was recorded, so both may be deleted when no run is alive.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import orjson

from msprobe.store.process_start import RunStart, moment_now
from msprobe.store.step_folder import FILE_MODE

LOCK_FILE = ".msprobe.lock"
LIVE_FILE = ".msprobe.live"
_FUTURE_SECONDS = 3600.0
_LONGEST_MARK = 4096
_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class RunMark:
    """Content of the lock file, while the lock is held.

    Attributes
    ----------
    taken
        When the run took the folder; None if no run has yet, or the content is not ours.
    pid
        Process that did.
    """

    __slots__ = ("_descriptor", "pid", "taken")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.taken: RunStart | None = None
        self.pid = 0
        try:
            content = orjson.loads(os.read(descriptor, _LONGEST_MARK))
            self.taken = RunStart.from_text(content["taken"])
            self.pid = int(content["pid"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            self.taken = None

    def is_earlier_run(self, started: RunStart) -> bool | None:
        """Tell whether another run took the folder before the run of this process began; None: it does not say."""
        if self.taken is None or not started.boot or self.taken.boot != started.boot:
            return None
        return started.after(self.taken)

    def take(self) -> None:
        """Note that the folder belongs to the run of this process from now on."""
        content = orjson.dumps({"taken": moment_now().text(), "pid": os.getpid()}) + b"\n"
        with contextlib.suppress(OSError):  # a full disk; the times of the folders then have to tell
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, content, 0)


def looks_earlier(folder: Path, started: RunStart) -> bool:
    """Tell from its time stamp whether an earlier run made a folder, where no mark tells.

    What was changed long after now was written before the clock was set back.
    """
    changed = folder.stat().st_mtime
    return changed < started.epoch or changed > moment_now().epoch + _FUTURE_SECONDS


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[RunMark]:
    """Hold the folder's lock file; where the file system has no locks, go on without."""
    descriptor = os.open(folder / LOCK_FILE, _OPEN, FILE_MODE)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield RunMark(descriptor)
    finally:
        os.close(descriptor)


class Claim:
    """The lock that says that this process may still write below a dump_path; gone with the process.

    A POSIX record lock: it belongs to the process, is not inherited by a fork, and is dropped by the system.

    Raises
    ------
    OSError
        The file cannot be opened.
    """

    __slots__ = ("__weakref__", "_descriptor")

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder / LIVE_FILE, _OPEN, FILE_MODE)
        weakref.finalize(self, os.close, self._descriptor)

    def hold(self) -> None:
        """Take the lock, beside others who hold it; where the file system has no locks, go on without."""
        with contextlib.suppress(OSError):
            fcntl.lockf(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def others(self) -> bool:
        """Whether another process holds it. Gives up an own one."""
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return True
        except OSError:  # no locks here
            return False
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
        return False


class Claims:
    """The claims of this process, one per folder: closing a second handle of the file would drop the lock."""

    def __init__(self) -> None:
        self._claims: weakref.WeakValueDictionary[str, Claim] = weakref.WeakValueDictionary()

    def of(self, folder: Path) -> Claim | None:
        """Return the claim for a folder, not held yet if it is new; None if its file cannot be opened."""
        claim = self._claims.get(str(folder))
        if claim is None:
            try:
                claim = Claim(folder)
            except OSError:
                return None
            self._claims[str(folder)] = claim
        return claim


CLAIMS = Claims()
"""Of this process."""
