r"""A JSON object on disk that grows by appending and is complete JSON after every append.

Layout: a head line ending in ``{``, then one member per line separated by ``,\n``, then a short tail (``\n}\n`` or
``\n}}\n``). An append is a single write over the old tail: new members followed by a new tail. Nothing is renamed,
copied or read back, so the cost does not depend on the size of the file, and stopping or resuming a capture costs
nothing. A process killed in the middle of that write leaves an unfinished last line; :func:`cut_back` removes it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from msprobe.store.json_bytes import loads_json
from msprobe.store.step_folder import ShortWriteError, StepFolder, write_fully

SEPARATOR = b",\n"
TAIL_OBJECT = b"\n}\n"
TAIL_DUMP = b"\n}}\n"


class PartWrittenError(OSError):
    """The system took only part of an append; the file was cut back to its last complete member."""

    def __init__(self, cause: OSError, kept: int) -> None:
        super().__init__(cause.errno, cause.strerror)
        self.kept = kept


class GrowingObject:
    """Append-only JSON object file.

    Parameters
    ----------
    folder
        Where the file lives; it is created there and must not exist.
    name
        File name.
    head
        First line, without its line break; ends in ``{``.
    tail
        :data:`TAIL_OBJECT` or :data:`TAIL_DUMP`.

    Raises
    ------
    OSError
        The file cannot be created or written; ``FileExistsError`` when it is already there.
    """

    __slots__ = ("_folder", "_identity", "_name", "_state", "_tail")

    def __init__(self, folder: StepFolder, name: str, head: bytes, tail: bytes) -> None:
        self._folder = folder
        self._name = name
        self._tail = tail
        self._state = (len(head) + 1, 0)  # offset of the tail and members before it, always changed together
        descriptor = folder.create(name)
        try:
            status = os.fstat(descriptor)
            self._identity = (status.st_dev, status.st_ino)
            write_fully(descriptor, head + b"\n" + tail, 0)
        finally:
            os.close(descriptor)

    @property
    def size(self) -> int:
        """Length of the file in bytes."""
        return self._end + len(self._tail)

    @property
    def members(self) -> int:
        """Number of members in the file."""
        return self._state[1]

    @property
    def _end(self) -> int:
        return self._state[0]

    def append(self, members: Sequence[bytes]) -> None:
        """Add members (``"name":value``, no line breaks) in one write.

        Raises
        ------
        PartWrittenError
            Only the first ``kept`` members fitted (possibly none); the file is complete JSON with those.
        OSError
            The file is gone, was replaced or shortened, or cannot be opened; nothing was written.
        """
        if not members:
            return
        lead = (b"",) if self.members else ()
        text = SEPARATOR.join([*lead, *members[:-1], members[-1] + self._tail])  # copied once: it may be megabytes
        descriptor, size = self._open()
        try:
            self._write(descriptor, text, members, size)
        finally:
            os.close(descriptor)

    def replace_head(self, head: bytes) -> None:
        """Overwrite the first line with another one of the same length."""
        descriptor, _ = self._open()
        try:
            write_fully(descriptor, head, 0)
        finally:
            os.close(descriptor)

    def _open(self) -> tuple[int, int]:
        """Open the file; return its descriptor and its length."""
        descriptor, status = self._folder.open_known(self._name)
        if (status.st_dev, status.st_ino) != self._identity or status.st_size < self.size:
            os.close(descriptor)
            raise OSError(errno.ESTALE, "the file was replaced or shortened by another program")
        return descriptor, status.st_size

    def _write(self, descriptor: int, text: bytes, members: Sequence[bytes], size: int) -> None:
        try:
            write_fully(descriptor, text, self._end)
        except ShortWriteError as error:
            raise PartWrittenError(error, self._keep_what_fits(descriptor, members, error.written)) from error
        self._state = (self._end + len(text) - len(self._tail), self.members + len(members))
        if size > self.size:  # an earlier write was interrupted before it was counted
            os.ftruncate(descriptor, self.size)

    def _keep_what_fits(self, descriptor: int, members: Sequence[bytes], written: int) -> int:
        """Close the object after the last member that fits, tail included, into the space already taken."""
        room = written - len(self._tail)
        used = 0
        kept = 0
        for member in members:
            step = len(member) + (len(SEPARATOR) if self.members + kept else 0)
            if used + step > room:
                break
            used += step
            kept += 1
        self._state = (self._end + used, self.members + kept)
        write_fully(descriptor, self._tail, self._end)
        os.ftruncate(descriptor, self.size)
        return kept


def is_growing(text: bytes, tail: bytes) -> bool:
    """Tell whether a text is that of a growing object, and not of a file that another tool wrote in its own way."""
    head, newline, rest = text.partition(b"\n")
    head = head.rstrip()
    start = head.startswith(b'{"') and head.endswith(b"{") if tail == TAIL_DUMP else head == b"{"
    return bool(newline) and start and rest[:1] in {b"", b'"', b"\n", b"\0"}


def cut_back(text: bytes, tail: bytes) -> bytes | None:
    """Make complete JSON of a growing object whose last append was interrupted.

    Parameters
    ----------
    text
        Content of the file.
    tail
        The tail that belongs to it.

    Returns
    -------
    bytes or None
        The text up to its last complete member, closed with the tail; unchanged if it was complete; None if it is not a
        growing object or not even its head line is there.
    """
    text = text.rstrip(b"\0")
    if text.endswith(tail):
        return text
    if not is_growing(text, tail):
        return None
    return text[: _complete_end(text, tail)] + tail


def _complete_end(text: bytes, tail: bytes) -> int:
    """Return the offset after the last complete member of an unfinished growing object."""
    head_end = text.index(b"\n") + 1
    line = max(text.rfind(b"\n") + 1, head_end)
    last = text[line:].strip()
    if last and not tail.strip().startswith(last) and _is_member(last):
        return line + len(text[line:].rstrip())
    body = text[head_end:line].rstrip()
    if body.endswith(b","):
        body = body[:-1]
    return head_end + len(body)


def _is_member(line: bytes) -> bool:
    try:
        loads_json(b"{" + line + b"}")
    except ValueError:
        return False
    return True


def salvage(text: bytes, tail: bytes) -> bytes | None:
    """Keep every line that is a complete member, wherever the damage is.

    For files that a crash of the whole machine left with holes; :func:`cut_back` is enough when only a process died.

    Returns
    -------
    bytes or None
        Complete JSON, or None if the head line is damaged.
    """
    if not is_growing(text, tail):
        return None
    head, _, rest = text.partition(b"\n")
    # Zeros before a line may have swallowed the beginning of its name, and the rest of a name can look like one.
    lines = (line.rstrip(b"\0 \r").removesuffix(b",") for line in rest.split(b"\n"))
    members = [line for line in lines if line and _is_member(line)]
    return head + b"\n" + SEPARATOR.join(members) + tail
