"""Typed entry to the CPU kernels for numpy arrays, and whether (or why not) they are there.

Everything works without the compiled module: the numpy reference then does the same more slowly. Frameworks whose
tensors are no numpy arrays call ``msprobe.kernels._native`` with addresses instead.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import numpy as np
from msprobe.kernels.cpu import reference
from msprobe.kernels.cpu.reference import DTYPE_CODES, Array, Reduction

_MODULE = "msprobe.kernels._native"


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether the compiled kernels can be used.

    Attributes
    ----------
    module
        The module, or None.
    isa
        Instruction set of its kernels: ``avx512``, ``avx2``, ``baseline`` or ``portable``.
    reason
        Why there is no module and what to do, in one sentence.
    """

    module: ModuleType | None = None
    isa: str | None = None
    reason: str | None = None


@cache
def availability() -> Availability:
    """Load the compiled kernels once and say what came of it."""
    if os.environ.get("MSPROBE_NO_NATIVE") == "1":
        return Availability(reason="native CPU kernels are switched off by MSPROBE_NO_NATIVE=1: unset it to use them")
    if find_spec(_MODULE) is None:
        return Availability(
            reason="native CPU kernels were not built (no C++17 compiler at installation, or MSPROBE_NO_NATIVE=1): "
            "install g++ or clang++, then reinstall with MSPROBE_REQUIRE_NATIVE=1 to see the compiler's message"
        )
    try:
        module = import_module(_MODULE)
    except ImportError as error:
        return Availability(reason=f"native CPU kernels do not load ({error}): reinstall msprobe on this machine")
    return Availability(module, module.isa())


def dtype_code(array: Array) -> int:
    """Return the number by which the kernels know the dtype of an array.

    Raises
    ------
    TypeError
        If there is no kernel for it (object, string, float128, structured types).
    """
    code = DTYPE_CODES.get(array.dtype.name)
    if code is None:
        raise TypeError(f"no statistics kernel for arrays of {array.dtype}; convert to one of {', '.join(DTYPE_CODES)}")
    return code


def stats_array(array: Array, threads: int = 1) -> Reduction:
    """Return max, min, sum, sum of squares, NaN, Inf and zero count of an array.

    Parameters
    ----------
    array
        Any shape and strides, at least one element; also bfloat16 and float8 arrays of the ml_dtypes package.
    threads
        Number of threads for arrays of about 2**20 elements and more.

    Raises
    ------
    TypeError
        If no kernel knows the dtype.
    ValueError
        If the array is empty.
    """
    code = dtype_code(array)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    module = availability().module
    if module is None or not _whole_strides(array):
        return reference.stats(array, code)
    if array.flags.c_contiguous or array.flags.f_contiguous:
        found: Reduction = module.stats(array.ctypes.data, array.size, code, threads)
    else:
        found = module.stats_strided(array.ctypes.data, array.shape, _strides(array), code, threads)
    return found


def crc32_array(array: Array) -> int:
    """Return the CRC-32 of the array's bytes in row-major order, as `zlib.crc32` of ``array.tobytes()``."""
    module = availability().module
    if module is None or not _whole_strides(array):
        return reference.crc32(array)
    value: int = module.crc32_strided(array.ctypes.data, array.shape, _strides(array), array.itemsize)
    return value


def xor64_array(array: Array, threads: int = 1) -> int:
    """Return the XOR of the 64-bit words of the array's bytes; see `reference.xor64`."""
    module = availability().module
    if module is None or not _whole_strides(array):
        return reference.xor64(array)
    value: int = module.xor64_strided(array.ctypes.data, array.shape, _strides(array), array.itemsize, threads)
    return value


def hash64_array(array: Array, threads: int = 1) -> int:
    """Return the position- and shape-sensitive 64-bit hash of an array; see `reference.hash64`."""
    module = availability().module
    if module is None or not _whole_strides(array):
        return reference.hash64(array)
    value: int = module.hash64_strided(array.ctypes.data, array.shape, _strides(array), array.itemsize, threads)
    return value


def _strides(array: Array) -> tuple[int, ...]:
    return tuple(stride // array.itemsize for stride in array.strides)


def _whole_strides(array: Array) -> bool:
    """Tell whether the kernels can walk the array: strides are whole elements of a width they know."""
    if array.itemsize not in (1, 2, 4, 8, 16) or array.dtype == np.object_:
        return False
    return not any(stride % array.itemsize for stride in array.strides)
