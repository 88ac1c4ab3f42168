"""The content of one ``.npy`` file: an array, written at once or from a copy later."""

from __future__ import annotations

import io
from collections.abc import Hashable
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from msprobe.measure.arrays import widened_bfloat16
from msprobe.measure.backends import native_module
from msprobe.measure.file_content import FileContent, Pieces, write_pieces

Array = NDArray[Any]


@lru_cache(maxsize=1024)
def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return what stands before the elements of a C-ordered array in a ``.npy`` file (format 1.0)."""
    header = io.BytesIO()
    description = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(header, description)
    return header.getvalue()


class ArrayFile(FileContent):
    """A saver for one array; what the store asks of a `TensorContent`.

    numpy has no bfloat16: such arrays are written as float32, which holds the same values.

    Parameters
    ----------
    array
        Read when the file is written or held, whichever comes first.
    """

    __slots__ = ("_array", "_held")

    def __init__(self, array: Array) -> None:
        super().__init__()
        self._array: Array | None = array
        self._held = False

    @property
    def host_bytes(self) -> int:
        """Host memory that `hold` takes, in bytes."""
        if self._array is None:
            return 0
        return self._array.nbytes * (2 if self._array.dtype.name == "bfloat16" else 1)

    @property
    def in_host_memory(self) -> bool:
        """Whether the file can be written without waiting for a device."""
        return True

    def fingerprint(self) -> Hashable | None:
        """Return what tells the content of this file from others; None without the native kernels."""
        native, array = native_module(), self._array
        if native is None or array is None or not array.flags.c_contiguous:
            return None
        address = array.ctypes.data
        return (
            array.dtype.name,
            array.shape,
            native.crc32(address, array.nbytes, 0),
            native.hash64(address, array.nbytes, array.shape, 1),
        )

    def hold(self) -> None:
        """Take a copy now, so that the file can be written after the values change."""
        if self._array is not None and not self._held:
            self._array = np.array(_storable(self._array), order="C", copy=True)
            self._held = True

    def pieces(self) -> Pieces | None:
        """Return the parts of the file."""
        if self._array is None:
            return None
        plain = np.ascontiguousarray(_storable(self._array)).reshape(self._array.shape)
        return npy_header(plain.dtype, plain.shape), plain.reshape(-1).view(np.uint8).data

    def release(self) -> None:
        """Give the array back; the content cannot be written any more."""
        self._array = None

    def __call__(self, destination: BinaryIO | Path | str) -> None:
        """Write the file; `numpy.load` reads it.

        Raises
        ------
        ValueError
            If the content was released.
        """
        pieces = self.pieces()
        if pieces is None:
            raise ValueError("the content of this tensor file was released already")
        write_pieces(destination, pieces)


def _storable(array: Array) -> Array:
    return widened_bfloat16(array) if array.dtype.name == "bfloat16" else array
