"""CRC-32, XOR and hash of numpy arrays: the same texts that `checksums` gives for torch tensors of the same content."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from msprobe.kernels.cpu import reference
from msprobe.measure.backends import native_module
from msprobe.measure.entry_parts import ChecksumMode

#: From this many elements on the native kernel may use several threads.
_THREADED = 1 << 20


def checksum_array(mode: ChecksumMode, array: NDArray[Any], threads: int = 1) -> str:
    """Return the checksum of an array's contiguous bytes in row-major order, in its own dtype.

    Parameters
    ----------
    mode
        ``md5`` (CRC-32, 8 lower-case hex digits), ``xor`` or ``hash`` (64 bits, ``0x`` and 16 hex digits).
    array
        Any shape and strides. Nothing is copied where the native kernels are built.
    threads
        How many threads the native kernels may use for a large array.
    """
    native = native_module()
    plain = all(step % array.itemsize == 0 for step in array.strides) and array.itemsize in (1, 2, 4, 8, 16)
    if native is None or not plain:
        return _by_reference(mode, array)
    strides = tuple(step // array.itemsize for step in array.strides)
    layout = (array.ctypes.data, array.shape, strides, array.itemsize)
    if mode == "md5":
        return f"{native.crc32_strided(*layout, 0):08x}"
    count = threads if array.size >= _THREADED else 1
    word = native.xor64_strided(*layout, count) if mode == "xor" else native.hash64_strided(*layout, count)
    return f"0x{word:016x}"


def _by_reference(mode: ChecksumMode, array: NDArray[Any]) -> str:
    if mode == "md5":
        return f"{reference.crc32(array):08x}"
    word = reference.xor64(array) if mode == "xor" else reference.hash64(array)
    return f"0x{int(word) & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def is_numeric(array: NDArray[Any]) -> bool:
    """Tell whether an array holds numbers whose bytes mean the same everywhere."""
    return array.dtype.kind in "biufc" or array.dtype.name in reference.DTYPE_CODES or array.dtype == np.bool_
