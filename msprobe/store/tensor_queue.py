"""Tensor files that wait to be written, with bounded memory.

The training thread hands over a copy of each tensor and goes on; a thread writes the files. When the bound is reached,
the training thread helps writing until there is room. In an asynchronous dump there is no thread: files wait until the
step is paused or over, and what does not fit under the bound is written at once. A content that this step has written
already becomes a second name (hard link) of the same file.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Hashable
from types import CodeType, FrameType
from typing import BinaryIO, NamedTuple, Protocol, TypeGuard

from msprobe.core.interruptions import pass_on_interruption
from msprobe.store.tensor_files import Pieces, TensorFiles, safe_file_name

_WAKE_BYTES = 4 << 20  # the thread is woken for this much; a wake-up for every small file would slow the training
_POLL_SECONDS = 0.05
_IDLE_POLLS = 40  # the thread ends after two seconds without a file
_CONTENTS_KEPT = 1 << 14
_LINKS_PER_FILE = 1000  # file systems allow a few thousands to some ten thousands


class TensorContent(Protocol):
    """The content of one tensor file, read from its tensor at once or from a copy later."""

    @property
    def host_bytes(self) -> int:
        """Host memory that a copy takes."""

    @property
    def in_host_memory(self) -> bool:
        """Whether it can be written without waiting for a device."""

    def fingerprint(self) -> Hashable | None:
        """Equal for equal content; None when not known."""

    def hold(self) -> None:
        """Take the copy."""

    def pieces(self) -> Pieces | None:
        """Parts of the file, from the copy or else from the tensor, if it can be written that way."""

    def release(self) -> None:
        """Give the copy back."""

    def lose(self) -> None:
        """The file will not be written."""

    def __call__(self, destination: BinaryIO) -> None:
        """Write the file."""


def can_wait(save: object) -> TypeGuard[TensorContent]:
    """Tell whether what writes a file can hold its content until later."""
    return hasattr(save, "hold")


class _File:
    """A file that was put: what others with the same content need to know about it."""

    __slots__ = ("done", "lost", "target", "uses")

    def __init__(self, target: str) -> None:
        self.target = target
        self.uses = 1
        self.done = self.lost = False


class _Job(NamedTuple):
    """A file to write. `source` is the one that has the same content; `size` is the memory that the copy takes."""

    number: int
    file: _File
    content: TensorContent
    source: _File | None
    size: int


class _Outlet(NamedTuple):
    """Where files go, and who is told what goes wrong."""

    files: TensorFiles
    on_error: Callable[[str, BaseException], object]
    on_full: Callable[[], object]


class TensorQueue:
    """Files of one step that wait, and the thread that writes them.

    Parameters
    ----------
    bound
        Bytes of host memory that may wait.
    background
        Whether a thread writes while the training goes on.
    spare_core
        Whether that thread would have a processor to itself. If not, what lies in host memory is written at once: a
        thread that takes turns with the training delays it by more than the writing.

    Attributes
    ----------
    linked, lost
        Files that became a second name of another one; files that were not written.
    """

    def __init__(self, *, bound: int, background: bool, spare_core: bool = True) -> None:
        self.bound = bound
        self._at_once = background and not spare_core
        self._background = background
        self._outlet: _Outlet | None = None
        self._jobs: deque[_Job] = deque()
        self._busy: dict[int, tuple[int, _Job]] = {}  # number of a job that is being written -> the thread, the job
        self._waiting = 0
        self._numbers = 0
        # Entered as a lock, not through the condition: that is Python code, in which an exception of a signal handler
        # would leave it locked.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._contents: dict[Hashable, _File] = {}
        self._keys: dict[str, Hashable] = {}
        self._pending: set[str] = set()
        self._links = True
        self._closed = self._full = self._replaced = False
        self._thread: threading.Thread | None = None
        self.linked = self.lost = 0

    def open(
        self,
        files: TensorFiles,
        on_error: Callable[[str, BaseException], object],
        on_full: Callable[[], object],
    ) -> None:
        """Say where files go. Until then none is written; what `drain` or `close` find then is lost.

        Parameters
        ----------
        files
            Writes a file.
        on_error
            Told the file name and why it was not written; must not raise.
        on_full
            Told when the first file of an asynchronous dump does not fit under the bound; must not raise.
        """
        self._outlet = _Outlet(files, on_error, on_full)

    @property
    def waits(self) -> bool:
        """Whether a file waits or is being written."""
        return bool(self._jobs or self._busy)

    def has_room(self, content: TensorContent) -> bool:
        """Tell whether a content fits under the bound now."""
        return self._waiting + content.host_bytes <= self.bound

    def put(self, name: str, content: TensorContent) -> str | None:
        """Take a file; return its name, or None if it was tried at once and could not be written.

        Raises
        ------
        Exception
            What taking the copy raises; nothing is queued then.
        """
        target = safe_file_name(name)
        if target in self._pending or target in self._keys:  # written again: links of the old file come first
            self._replace(target)
        key = content.fingerprint() if self._links else None
        source = self._source(key)
        if self._at_once and content.in_host_memory and (source is None or source.done):
            return self._write_now(target, key, content, source)
        size = 0
        if source is None:
            size = content.host_bytes
            if self._closed or not self._make_room(size):
                return self._write_now(target, key, content)
            content.hold()
        else:
            content.release()  # nothing is read from it any more; a tensor must not live longer for its file's sake
        with self._lock:
            self._numbers += 1
            job = _Job(self._numbers, _File(target), content, source, size)
            self._pending.add(target)
            self._waiting += size
            self._jobs.append(job)
            if source is None:  # after the job waits: an interrupted call must leave no source that nobody writes
                self._remember(key, job.file)
            if self._background and self._waiting >= _WAKE_BYTES:
                self._changed.notify_all()
            if self._background and self._thread is None:
                self._thread = _start(self._run)
                self._background = self._thread is not None
        return target

    def drain(self, *, write: bool = True) -> None:
        """Return when every file that was put before is written or lost.

        Does nothing inside a signal handler that has interrupted this thread while it was writing one.

        Parameters
        ----------
        write
            Help writing; otherwise leave it to the thread, if there is one.
        """
        if self._is_writing():
            return
        last = self._numbers
        with self._lock:
            self._changed.notify_all()
        helper = None
        if not self._background and self._waiting >= _WAKE_BYTES and not self._replaced:
            helper = _start(self._write_until, last)
        if write or self._thread is None:
            self._write_until(last)
        if helper is not None:
            helper.join()
        with self._lock:
            while (self._jobs and self._jobs[0].number <= last) or any(number <= last for number in self._busy):
                self._wait()

    def close(self) -> None:
        """Write everything and end the thread."""
        self.drain()
        with self._lock:
            self._closed = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join()
        self._contents.clear()
        self._keys.clear()

    def _replace(self, target: str) -> None:
        self._replaced = True
        if self._background:  # otherwise one thread writes all files, in the order in which they came
            self.drain()
        self._contents.pop(self._keys.pop(target, None), None)

    def _source(self, key: Hashable | None) -> _File | None:
        """Return the file with this content, if it can take another name."""
        file = self._contents.get(key) if key is not None else None
        if file is None or file.lost or file.uses >= _LINKS_PER_FILE:
            return None
        file.uses += 1
        return file

    def _remember(self, key: Hashable | None, file: _File) -> None:
        if key is None:
            return
        if len(self._contents) >= _CONTENTS_KEPT:
            self._contents.clear()
            self._keys.clear()
        old = self._contents.get(key)
        if old is not None:
            self._keys.pop(old.target, None)
        self._contents[key] = file
        self._keys[file.target] = key

    def _make_room(self, size: int) -> bool:
        """Wait until `size` more bytes fit; False if they never will."""
        if self._waiting + size <= self.bound:
            return True
        if not self._background:
            if not self._full and self._outlet is not None:
                self._full = True
                self._outlet.on_full()
            return False
        while size <= self.bound < self._waiting + size and not self._is_writing():
            if not self._write_next(self._numbers):
                with self._lock:
                    if self._busy:
                        self._wait()
        return size <= self.bound

    def _write_now(
        self, target: str, key: Hashable | None, content: TensorContent, source: _File | None = None
    ) -> str | None:
        if target in self._pending:
            self.drain()
        written = False
        try:
            written = self._write(target, content, source)
        except Exception as error:  # noqa: BLE001 - the disk, or a tensor that cannot be read: not the training's trouble
            pass_on_interruption(error)
            self._tell(target, error)
        finally:
            content.release()
        if not written:
            with self._lock:
                self.lost += 1
            return None
        if source is None:
            file = _File(target)
            file.done = True
            self._remember(key, file)
        return target

    def _write_next(self, last: int) -> bool:
        """Write the oldest file that waits, if it was put not after number `last`."""
        own = threading.get_ident()
        job: _Job | None = None
        written = False
        try:
            with self._lock:
                if not self._jobs or self._jobs[0].number > last:
                    return False
                job = self._jobs[0]
                self._busy[job.number] = (own, job)
                self._jobs.popleft()
            written = self._write(job.file.target, job.content, job.source)
        except Exception as error:  # noqa: BLE001 - as in _write_now
            pass_on_interruption(error)
            if job is not None:
                self._tell(job.file.target, error)
        finally:
            if job is not None:
                self._conclude(job, written=written)
        return True

    def _conclude(self, job: _Job, *, written: bool) -> None:
        try:
            if not written:
                job.content.lose()  # before anybody is told: the record must not name the file
            job.content.release()
        finally:
            with self._lock:
                job.file.done, job.file.lost = True, not written
                self._busy.pop(job.number, None)
                if self._jobs and self._jobs[0] is job:  # interrupted before it was taken off
                    self._jobs.popleft()
                self.lost += not written
                self._pending.discard(job.file.target)
                self._waiting -= job.size
                self._changed.notify_all()

    def _wait(self) -> None:
        """Wait for a change, with the lock held; nobody waits for a write that an exception has cut off.

        An exception of a signal handler can come at any instruction, also where the end of a write is being noted.
        """
        if self._changed.wait(_POLL_SECONDS):
            return
        frames = sys._current_frames()
        for ident, job in list(self._busy.values()):
            if not _runs(self._write_next.__code__, frames.get(ident)):
                self._conclude(job, written=False)

    def _write(self, target: str, content: TensorContent, source: _File | None) -> bool:
        """Write one file; False if it cannot be, and the reason was told before."""
        outlet = self._outlet
        if outlet is None:  # no folder could be made
            return False
        if source is None:
            pieces = content.pieces()
            if pieces is None:
                outlet.files.write(target, content)
            else:
                outlet.files.write_pieces(target, pieces)
            return True
        with self._lock:
            while not source.done:
                self._wait()
        if source.lost:
            return False
        linked = outlet.files.link(source.target, target)
        with self._lock:
            self.linked += linked
            self._links = self._links and linked
        return True

    def _tell(self, target: str, error: BaseException) -> None:
        if self._outlet is not None:
            self._outlet.on_error(target, error)

    def _is_writing(self) -> bool:
        own = threading.get_ident()
        return any(ident == own for ident, _ in list(self._busy.values()))

    def _write_until(self, last: int) -> None:
        while self._write_next(last):
            pass

    def _run(self) -> None:
        idle = 0
        while True:
            with self._lock:
                if not self._jobs:
                    if self._closed or idle > _IDLE_POLLS:
                        self._thread = None  # the next file starts another one
                        return
                    idle += 1
                    self._changed.wait(_POLL_SECONDS)
                last = self._numbers
            while self._write_next(last):
                idle = 0


def _runs(code: CodeType, frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False


def _start(target: Callable[..., None], *arguments: int) -> threading.Thread | None:
    """Start a thread; None if the system has no more of them, then the caller writes everything itself."""
    thread = threading.Thread(target=target, args=arguments, name="msprobe-tensors", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread
