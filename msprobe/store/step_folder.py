"""One rank folder on disk, reached through a directory handle.

Every file is opened relative to the handle and without following links. So a folder that is renamed while it is open
(`proc1234` becoming `rank3`, or a later run moving it aside) keeps receiving its own data, and a link that somebody
put in the place of a folder or file leads nowhere.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path

FOLDER_MODE = 0o750
FILE_MODE = 0o640
_PATIENCE = 0.5  # seconds to get a folder that others remove at the same time
_PAUSE = 1e-4  # seconds, more with each attempt
_OPEN_FILE = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class StepFolder:
    """Directory handle with the few file operations that the store needs.

    Parameters
    ----------
    path
        Folder to create (mode 0750, with missing parents) and hold. Neither it nor its parent may be a symbolic link.

    Raises
    ------
    OSError
        It cannot be created or opened, or is a link (``ELOOP`` / ``ENOTDIR``).
    """

    __slots__ = ("_fd", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        begun = time.monotonic()
        for attempt in itertools.count():
            try:
                self._fd = _make_with_parent(path)
            except (FileNotFoundError, FileExistsError):
                # Another rank has just removed the empty step folder (a discarded step): before something was made in
                # it, or between mkdir's answer that it is there and a second look. Waiting gets out of step with it.
                if time.monotonic() - begun > _PATIENCE:
                    raise
                time.sleep(attempt * _PAUSE)
                continue
            return

    def subfolder(self, name: str) -> StepFolder:
        """Create and hold a folder inside this one."""
        inner = object.__new__(StepFolder)
        inner.path = self.path / name
        inner._fd = _make_and_open(name, self._fd)
        return inner

    def create(self, name: str) -> int:
        """Create a file that must not exist yet; return its descriptor, open for reading and writing."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, FILE_MODE, dir_fd=self._fd)

    def open(self, name: str, extra_flags: int = 0) -> int:
        """Open a regular file of this folder for reading and writing; return its descriptor."""
        return self.open_known(name, extra_flags)[0]

    def open_known(self, name: str, extra_flags: int = 0) -> tuple[int, os.stat_result]:
        """Open a regular file as `open` does; return its descriptor and what it was when it was opened."""
        descriptor = os.open(name, _OPEN_FILE | extra_flags, FILE_MODE, dir_fd=self._fd)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", str(self.path / name))
        return descriptor, status

    def rename(self, source: str, target: str) -> None:
        """Rename a file inside the folder, replacing the target in one step."""
        os.rename(source, target, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def link(self, source: str, target: str) -> None:
        """Give a file of the folder a second name, which must not exist yet."""
        os.link(source, target, src_dir_fd=self._fd, dst_dir_fd=self._fd, follow_symlinks=False)

    def link_from(self, source: Path, target: str) -> None:
        """Give a file of any folder a name in this one, which must not exist yet."""
        os.link(source, target, dst_dir_fd=self._fd, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    def is_empty(self) -> bool:
        """Tell whether nothing is in the folder."""
        return not os.listdir(self._fd)  # noqa: PTH208 - a handle, not a path

    @property
    def is_open(self) -> bool:
        """Whether the folder is held; files can be opened only then."""
        return self._fd >= 0

    def close(self) -> None:
        """Give the handle back; the folder stays."""
        if self._fd >= 0:
            handle, self._fd = self._fd, -1  # first, so that an interruption cannot have it closed twice
            os.close(handle)


class ShortWriteError(OSError):
    """The system refused a write after taking part of it.

    Attributes
    ----------
    written : int
        Bytes that were taken, possibly 0.
    """

    def __init__(self, cause: OSError, written: int) -> None:
        super().__init__(cause.errno, cause.strerror)
        self.written = written


def write_fully(descriptor: int, content: bytes, offset: int) -> None:
    """Write all of the content at an offset.

    Raises
    ------
    ShortWriteError
        The system refused; the caller decides what to keep of the part that was written.
    """
    view = memoryview(content)
    written = 0
    try:
        while written < len(content):
            written += os.pwrite(descriptor, view[written:], offset + written)
    except OSError as error:
        raise ShortWriteError(error, written) from error


def read_fully(descriptor: int, length: int, offset: int) -> bytes:
    """Read so many bytes from an offset; fewer only if the file ends before.

    Raises
    ------
    OSError
        The system refused.
    """
    pieces = []
    while length > 0 and (piece := os.pread(descriptor, length, offset)):
        pieces.append(piece)
        length, offset = length - len(piece), offset + len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def write_pieces(descriptor: int, pieces: Sequence[bytes | bytearray | memoryview]) -> int:
    """Write byte strings one after the other from where the file stands; return how many bytes that were.

    Raises
    ------
    OSError
        The system refused.
    """
    views = [memoryview(piece) for piece in pieces]
    total = 0
    while views:
        taken = os.writev(descriptor, views)
        total += taken
        while views and taken >= len(views[0]):
            taken -= len(views.pop(0))
        if views:
            views[0] = views[0][taken:]
    return total


def _make_with_parent(path: Path) -> int:
    path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    parent = os.open(path.parent, _OPEN_FOLDER)
    try:
        return _make_and_open(path.name, parent)
    finally:
        os.close(parent)


def _make_and_open(name: str, parent: int) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, FOLDER_MODE, dir_fd=parent)
    return os.open(name, _OPEN_FOLDER, dir_fd=parent)
