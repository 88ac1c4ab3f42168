"""Types of the compiled CPU kernels (sources in ``cpu/``).

Addresses are those of host memory; the caller keeps it alive during the call. Dtypes are numbers of c10::ScalarType:
0 uint8, 1 int8, 2 int16, 3 int32, 4 int64, 5 float16, 6 float32, 7 float64, 8 complex32, 9 complex64, 10 complex128,
11 bool, 15 bfloat16, 23 float8_e5m2, 24 float8_e4m3fn, 25 float8_e5m2fnuz, 26 float8_e4m3fnuz, 27 uint16, 28 uint32,
29 uint64, 44 float8_e8m0fnu. Strides are in elements and may be zero or negative. From 64 KiB on, the interpreter lock
is released. Wrong arguments raise TypeError, ValueError or OverflowError naming function, argument and value.

Statistics are ``(max, min, sum, sumsq, nan, inf, zero)``:

- integers: max and min exact; sum exact, then rounded to a float; sumsq likewise up to 32 bits, in float64 beyond;
- bool: max and min are bools; sum and sumsq count the true elements;
- floats: max and min are elements. float64 is summed in float64, narrower formats in float32 over 256 elements at
  most and in float64 beyond: ``|error of sum| <= 2.4e-7 sum|x|``, relative error of sumsq below 3e-7, whatever the
  magnitude of the elements. If a NaN is present max, min, sum and sumsq are NaN;
- complex: of the modulus, which is infinite when a part is (C99 hypot);
- sumsq of float64 and complex128 overflows to inf, or underflows, when elements leave about [1e-145, 1e150]: the
  caller then scales by max(|max|, |min|) first;
- nan and inf count elements, zero counts zeros of either sign.

The result is the same for every number of threads, instruction set and layout of the same elements in the same order.
(Except the modulus of complex128, whose last bit is that of the C library's hypot.)
"""

from collections.abc import Iterable
from types import FrameType
from typing import Any, TypeAlias

_Reduction: TypeAlias = tuple[float, float, float, float, int, int, int]

def stats(ptr: int, numel: int, dtype_code: int, threads: int, /) -> _Reduction:
    """Return the statistics of `numel` > 0 contiguous elements; threads help from about 2**20 elements on."""

def stats_strided(
    ptr: int, sizes: tuple[int, ...], strides: tuple[int, ...], dtype_code: int, threads: int, /
) -> _Reduction:
    """Return the statistics of a strided tensor, read in row-major order without a copy.

    Dimensions in order of descending stride read memory in its order, which is much faster for a transposed tensor.
    """

def stats_batch(tensors: list[tuple[int, int, int]], threads: int, /) -> list[_Reduction]:
    """Return the statistics of several contiguous tensors ``(ptr, numel, dtype_code)``."""

def crc32(ptr: int, nbytes: int, init: int = 0, /) -> int:
    """Return the CRC-32 of the bytes, as `zlib.crc32` does."""

def xor64(ptr: int, nbytes: int, threads: int, /) -> int:
    """Return the XOR of the little-endian 64-bit words of the bytes, zero padded."""

def hash64(ptr: int, nbytes: int, shape: tuple[int, ...], threads: int, /) -> int:
    """Return the 64-bit hash of the bytes and the shape; see `msprobe.kernels.cpu.reference.hash64`."""

def crc32_strided(ptr: int, sizes: tuple[int, ...], strides: tuple[int, ...], itemsize: int, init: int = 0, /) -> int:
    """Return `crc32` of the elements' bytes in row-major order; `itemsize` is 1, 2, 4, 8 or 16."""

def xor64_strided(ptr: int, sizes: tuple[int, ...], strides: tuple[int, ...], itemsize: int, threads: int, /) -> int:
    """Return `xor64` of the elements' bytes in row-major order."""

def hash64_strided(ptr: int, sizes: tuple[int, ...], strides: tuple[int, ...], itemsize: int, threads: int, /) -> int:
    """Return `hash64` of the elements' bytes in row-major order, with `sizes` as the shape."""

def find_nonfinite(ptr: int, numel: int, dtype_code: int, /) -> bool:
    """Return whether one of `numel` contiguous elements is NaN or infinite; stops at the first piece that has one."""

def encode_values(values: Iterable[Any], spec: tuple[Any, ...], /) -> list[Any]:
    """Return the dump entries of a sequence of values; see ``msprobe/measure/fast_entries.py``."""

def stack_key(frame: FrameType | None, anchor: FrameType | None, outer: object, inclusive: bool, /) -> bytes | None:
    """Return what tells the stack from `frame` to `anchor` from others; see ``msprobe.core.call_stack.stack_key``."""

def isa() -> str:
    """Return the kernels in use: ``avx512``, ``avx2``, ``baseline`` (x86-64) or ``portable`` (other processors).

    The environment variable MSPROBE_ISA, read at the first call, lowers the choice.
    """
