"""Files under ``dump_tensor_data/``: names that are safe on any file system, content that is complete or absent."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, TypeAlias

from msprobe.store.step_folder import StepFolder, write_pieces

TENSOR_FOLDER = "dump_tensor_data"
_LONGEST = 240  # bytes; most file systems allow 255, and the temporary name needs a few
_ESCAPED = frozenset('/\\%~:*?"<>|')
_USUAL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.#-]{0,238}\Z")  # most names; the rest of the rules is slow

Pieces: TypeAlias = Sequence[bytes | bytearray | memoryview]


def safe_file_name(name: str) -> str:
    """Turn a record path into a file name: one path component, at most 240 bytes, different for different input.

    Path separators, control characters, characters that some file systems refuse, ``%``, ``~``, lone surrogates and a
    leading dot become ``%XX`` escapes. A name that is still too long keeps its beginning and its extension; the
    middle is replaced by ``~`` and 128 bits of its BLAKE2 hash.

    >>> safe_file_name("Torch.f.0.forward.kwargs.a/b.pt")
    'Torch.f.0.forward.kwargs.a%2Fb.pt'
    """
    if _USUAL.match(name):
        return name
    text = "".join(_escape(char) if char in _ESCAPED or not char.isprintable() else char for char in name)
    if text.startswith("."):
        text = "%2E" + text[1:]
    encoded = text.encode()
    if 0 < len(encoded) <= _LONGEST:
        return text
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    stem, dot, extension = text.rpartition(".")
    ending = f"~{digest}.{extension}" if dot and stem and len(extension.encode()) <= 16 else f"~{digest}"
    return encoded[: _LONGEST - len(ending.encode())].decode("utf-8", "ignore") + ending


def _escape(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))


class TensorFiles:
    """Writer of tensor files in one rank folder: in ``dump_tensor_data/``, unless another place inside it is named."""

    __slots__ = ("_counter", "_folder", "_lock", "bytes_written")

    def __init__(self, folder: StepFolder, place: str = TENSOR_FOLDER) -> None:
        self._folder = folder.subfolder(place)
        self._counter = itertools.count()
        self._lock = threading.Lock()
        self.bytes_written = 0

    def write(self, name: str, save: Callable[[BinaryIO], object]) -> str:
        """Write one file through a temporary name, so that a reader or a crash never meets half a tensor.

        Parameters
        ----------
        name
            Record path with extension; made safe by :func:`safe_file_name`.
        save
            Writes the content to the given binary file, e.g. ``lambda file: torch.save(tensor, file)``.

        Returns
        -------
        str
            The file name used.

        Raises
        ------
        Exception
            Whatever ``save`` or the file system raises; no file is left behind then.
        """
        target = safe_file_name(name)

        def fill(descriptor: int) -> int:
            with os.fdopen(descriptor, "wb") as file:
                save(file)
                return file.seek(0, os.SEEK_END)

        self._fill(target, fill)
        return target

    def write_pieces(self, target: str, pieces: Pieces) -> None:
        """Write one file from its parts under its name at once; `target` is a safe name.

        A temporary name would double the cost of a small file. Who writes this way lets nobody know the name before
        the file is complete; a kill can leave one unfinished file that no record names.

        Raises
        ------
        OSError
            The file system refuses; no file is left behind then.
        """

        def fill(descriptor: int) -> int:
            try:
                return write_pieces(descriptor, pieces)
            finally:
                os.close(descriptor)

        try:
            descriptor = self._folder.create(target)
        except FileExistsError:
            self._fill(target, fill)
            return
        try:
            self._count(fill(descriptor))
        except BaseException:
            self._folder.remove(target)
            raise

    def link(self, source: str, target: str) -> bool:
        """Make `target` another name of the file `source`, or where the file system has no hard links a copy.

        Returns
        -------
        bool
            Whether it is a link.

        Raises
        ------
        OSError
            The source is gone, or the file system refuses a copy as well.
        """
        try:
            self._folder.link(source, target)
        except FileExistsError:
            temporary = self._temporary()
            self._folder.link(source, temporary)
            self._folder.rename(temporary, target)
        except FileNotFoundError:
            raise
        except OSError:
            self._copy(source, target)
            return False
        return True

    def adopt(self, name: str, source: Path) -> str:
        """Make a file outside the folder a tensor file, by a hard link or, on another file system, as a copy.

        Raises
        ------
        OSError
            The source is gone, or the file system refuses.
        """
        target = safe_file_name(name)
        try:
            self._folder.link_from(source, target)
        except FileNotFoundError:
            raise
        except OSError:
            with source.open("rb") as original:
                self.write(name, lambda file: shutil.copyfileobj(original, file, 1 << 20))
        return target

    def _copy(self, source: str, target: str) -> None:
        with os.fdopen(self._folder.open(source), "rb") as original:
            self.write(target, lambda file: shutil.copyfileobj(original, file, 1 << 20))

    def _temporary(self) -> str:
        return f".{os.getpid()}.{next(self._counter)}.tmp"

    def _fill(self, target: str, fill: Callable[[int], int]) -> None:
        """Let `fill` write a temporary file, close it and return its size; then give it its name."""
        temporary = self._temporary()
        try:
            size = fill(self._folder.create(temporary))
            self._folder.rename(temporary, target)
        except BaseException:
            self._folder.remove(temporary)
            raise
        self._count(size)

    def _count(self, size: int) -> None:
        with self._lock:
            self.bytes_written += size

    def close(self) -> None:
        """Give the folder handle back."""
        self._folder.close()
