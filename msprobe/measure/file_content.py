"""What every content of a tensor file has: a way to write its parts, and to tell that it was not written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

Pieces = Sequence[bytes | bytearray | memoryview]


class FileContent:
    """A file that somebody is to write, now or later.

    Attributes
    ----------
    lost
        Set by whoever was to write the file, if it will not be written after all.
    """

    __slots__ = ("_on_lost", "lost")

    def __init__(self) -> None:
        self._on_lost: Callable[[], object] | None = None
        self.lost = False

    def when_lost(self, tell: Callable[[], object]) -> None:
        """Call `tell` once the file turns out not to be written; at once if that is known already."""
        self._on_lost = tell
        if self.lost:
            tell()

    def lose(self) -> None:
        """The file was not written."""
        self.lost = True
        if self._on_lost is not None:
            self._on_lost()


def write_pieces(destination: BinaryIO | Path | str, pieces: Pieces) -> None:
    """Write the parts of a file to a path or an open file."""
    if isinstance(destination, str | Path):
        Path(destination).write_bytes(b"".join(pieces))
        return
    for piece in pieces:
        destination.write(piece)
