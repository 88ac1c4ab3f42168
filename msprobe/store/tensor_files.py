"""Files under ``dump_tensor_data/``: names that are safe on any file system, content that is complete or absent."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable
from typing import BinaryIO

from msprobe.store.step_folder import StepFolder

TENSOR_FOLDER = "dump_tensor_data"
_LONGEST = 240  # bytes; most file systems allow 255, and the temporary name needs a few
_ESCAPED = frozenset('/\\%~:*?"<>|')


def safe_file_name(name: str) -> str:
    """Turn a record path into a file name: one path component, at most 240 bytes, different for different input.

    Path separators, control characters, characters that some file systems refuse, ``%``, ``~``, lone surrogates and a
    leading dot become ``%XX`` escapes. A name that is still too long keeps its beginning and its extension; the
    middle is replaced by ``~`` and 128 bits of its BLAKE2 hash.

    >>> safe_file_name("Torch.f.0.forward.kwargs.a/b.pt")
    'Torch.f.0.forward.kwargs.a%2Fb.pt'
    """
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

    __slots__ = ("_counter", "_folder", "bytes_written")

    def __init__(self, folder: StepFolder, place: str = TENSOR_FOLDER) -> None:
        self._folder = folder.subfolder(place)
        self._counter = itertools.count()
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
        temporary = f".{os.getpid()}.{next(self._counter)}.tmp"
        try:
            with os.fdopen(self._folder.create(temporary), "wb") as file:
                save(file)
                size = file.seek(0, os.SEEK_END)
            self._folder.rename(temporary, target)
        except BaseException:
            self._folder.remove(temporary)
            raise
        self.bytes_written += size
        return target

    def close(self) -> None:
        """Give the folder handle back."""
        self._folder.close()
