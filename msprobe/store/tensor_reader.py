"""Reading tensor files without the framework that wrote them: ``.pt`` of one tensor, and ``.npy``.

A ``.pt`` file is a zip archive with a pickle that says dtype, shape and strides, and the elements beside it. Only
the few names that a plain tensor needs are known to the unpickler here; nothing of a file can run code.
"""

from __future__ import annotations

import math
import pickle
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from msprobe.store.small_floats import FLOAT8_VALUES, widen_bfloat16

Array = NDArray[Any]

#: Files with more elements' bytes than this are mapped instead of read.
MAPPED_FROM = 1 << 26
_LARGEST_PICKLE = 1 << 24
#: What numpy, zipfile and pickle raise for content that is damaged, or of a kind that torch never writes.
DAMAGE = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    EOFError,
    RuntimeError,  # of zipfile: an archive that is encrypted, or of a version that it does not know
    pickle.UnpicklingError,
    struct.error,
    zlib.error,
)
_LOCAL_HEADER = 30
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # not what a Python may be built without
_MEMO = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))

_STORAGES = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "QInt8Storage": "int8",
    "QUInt8Storage": "uint8",
    "QInt32Storage": "int32",
    "UntypedStorage": "uint8",
}
_PLAIN = frozenset(
    "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool complex64 complex128".split()
)


class TensorReadError(ValueError):
    """A tensor file cannot be read; the message names the file, what is wrong with it and what to do."""


@dataclass(frozen=True, slots=True)
class ReadTensor:
    """A tensor from a file.

    Attributes
    ----------
    array
        Its elements. bfloat16 and float8 come as float32, complex32 as complex64: no element changes its value.
    dtype
        The dtype in the file, as ``bfloat16``.
    """

    array: Array
    dtype: str


def read_tensor(path: str | Path) -> ReadTensor:
    """Read one tensor.

    Parameters
    ----------
    path
        A ``.npy`` file, or a ``.pt`` file that `torch.save` (or msprobe) made of one strided tensor.

    Raises
    ------
    TensorReadError
        There is no such file, it is damaged, or it holds something else than one strided tensor.
    """
    file = Path(path)
    try:
        if file.suffix == ".npy":
            return _read_npy(file)
        return _read_torch(file)
    except TensorReadError:
        raise
    except FileNotFoundError as error:
        raise TensorReadError(f"{file}: no such file") from error
    except MemoryError as error:
        raise TensorReadError(f"{file}: describes a tensor that does not fit into memory; is it damaged?") from error
    except DAMAGE as error:
        raise TensorReadError(f"{file}: not a readable tensor file ({error}); was the copy complete?") from error
    except zipfile.BadZipFile as error:
        raise TensorReadError(
            f"{file}: not a zip archive ({error}); files of torch older than 1.6 have to be saved again"
        ) from error


def _read_npy(file: Path) -> ReadTensor:
    large = file.stat().st_size > MAPPED_FROM
    array: Array = np.load(file, mmap_mode="r" if large else None, allow_pickle=False)
    if array.dtype.kind not in "biufc":
        raise TensorReadError(f"{file}: array of {array.dtype}, which has no numbers")
    return ReadTensor(array, array.dtype.name)


@dataclass(frozen=True, slots=True)
class _Storage:
    """The storage that a pickle refers to by its key."""

    dtype: str
    key: str


@dataclass(frozen=True, slots=True)
class _Strided:
    """A tensor as its pickle describes it."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    scale: float = 1.0
    zero_point: int = 0


@dataclass(frozen=True, slots=True)
class _DType:
    name: str


@dataclass(frozen=True, slots=True)
class _StorageClass:
    dtype: str


def _tensor_v2(storage: _Storage, offset: int, shape: Any, strides: Any, *_: Any) -> _Strided:
    return _Strided(storage, offset, tuple(shape), tuple(strides), storage.dtype)


def _tensor_v3(  # noqa: PLR0913, PLR0917 - torch's own parameters
    storage: _Storage, offset: int, shape: Any, strides: Any, grad: Any, hooks: Any, dtype: _DType, *_: Any
) -> _Strided:
    return _Strided(storage, offset, tuple(shape), tuple(strides), dtype.name)


def _quantised(storage: _Storage, offset: int, shape: Any, strides: Any, scheme: Any, *_: Any) -> _Strided:
    if scheme[0] != _DType("per_tensor_affine"):
        raise ValueError("a tensor that is quantised per channel")
    return _Strided(
        storage, offset, tuple(shape), tuple(strides), storage.dtype, scale=float(scheme[1]), zero_point=int(scheme[2])
    )


def _parameter(data: _Strided, *_: Any) -> _Strided:
    return data


_FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch._utils", "_rebuild_tensor"): _tensor_v2,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor_v2,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor_v3,
    ("torch._utils", "_rebuild_qtensor"): _quantised,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("collections", "OrderedDict"): dict,
    ("torch", "Size"): tuple,
}


class _TensorUnpickler(pickle.Unpickler):
    """Knows what a plain tensor is made of, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        function = _FUNCTIONS.get((module, name))
        if function is not None:
            return function
        if module in {"torch", "torch.storage"} and name in _STORAGES:
            return _StorageClass(_STORAGES[name])
        if module == "torch" and name.isidentifier():
            return _DType(name)
        raise pickle.UnpicklingError(f"holds {module}.{name}, not one strided tensor")

    def persistent_load(self, pid: Any) -> _Storage:
        kind, storage_class, key, *_ = pid
        if kind != "storage" or not isinstance(storage_class, _StorageClass):
            raise pickle.UnpicklingError("a persistent id that is no storage")
        return _Storage(storage_class.dtype, str(key))


def _read_torch(file: Path) -> ReadTensor:
    with zipfile.ZipFile(file) as archive:
        if any(info.compress_type not in _PACKINGS for info in archive.infolist()):
            raise TensorReadError(f"{file}: compressed in a way that torch never uses; save the tensor again")
        pickles = [info for info in archive.infolist() if info.filename.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise TensorReadError(f"{file}: no data.pkl in it; give a file that torch.save made of one tensor")
        if pickles[0].file_size > _LARGEST_PICKLE:
            raise TensorReadError(f"{file}: holds much more than one tensor")
        folder = pickles[0].filename.removesuffix("data.pkl")
        _check_byte_order(file, archive, folder)
        found = _unpickle(archive.read(pickles[0]))
        if not isinstance(found, _Strided):
            raise TensorReadError(f"{file}: holds {type(found).__name__}, not one strided tensor")
        info = archive.getinfo(f"{folder}data/{found.storage.key}")
        raw = _elements(file, archive, info)
    return ReadTensor(_values(raw, found), found.dtype)


def _unpickle(text: bytes) -> Any:
    """Read a pickle, unless it is made to take memory.

    The unpickler reserves a place for each number of its memo up to the largest, and room for a string before it has
    seen it. `pickletools.genops` refuses lengths beyond the end of the text.
    """
    for opcode, argument, _ in pickletools.genops(text):
        if opcode.name in _MEMO and int(argument or 0) > len(text):
            raise pickle.UnpicklingError(f"memo entry {argument} in a pickle of {len(text)} bytes")
    return _TensorUnpickler(BytesIO(text)).load()


def _check_byte_order(file: Path, archive: zipfile.ZipFile, folder: str) -> None:
    try:
        order = archive.read(f"{folder}byteorder")
    except KeyError:
        return  # older files do not say; they are little-endian in practice
    if order.strip() != b"little":
        raise TensorReadError(f"{file}: written on a big-endian machine, which is not supported")


def _elements(file: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[np.uint8]:
    if info.compress_type == zipfile.ZIP_STORED and info.file_size > MAPPED_FROM:
        with file.open("rb") as stream:
            start = _start_of_data(stream, info)
        return np.memmap(file, np.uint8, "r", start, (info.file_size,))
    return np.frombuffer(archive.read(info), np.uint8)


def _start_of_data(stream: IO[bytes], info: zipfile.ZipInfo) -> int:
    stream.seek(info.header_offset)
    header = stream.read(_LOCAL_HEADER)
    name, extra = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
    return info.header_offset + _LOCAL_HEADER + name + extra


def _values(raw: NDArray[np.uint8], found: _Strided) -> Array:
    """Give the bytes of a storage the dtype, shape and strides of the tensor."""
    code = _storage_code(found.dtype)
    itemsize = np.dtype(code).itemsize
    typed: Array = raw[: raw.size // itemsize * itemsize].view(code)
    if math.prod(found.shape) == 0:
        array: Array = np.empty(found.shape, code)
    else:
        last = found.offset + sum((size - 1) * stride for size, stride in zip(found.shape, found.strides, strict=True))
        if min(found.offset, *found.strides, 0) < 0 or last >= typed.size:
            raise ValueError(f"{typed.size} elements in the storage, {last + 1} needed")
        strides = tuple(stride * itemsize for stride in found.strides)
        array = np.lib.stride_tricks.as_strided(typed[found.offset :], found.shape, strides, writeable=False)
    if found.dtype == "bfloat16":
        return widen_bfloat16(array)
    if found.dtype in FLOAT8_VALUES:
        return FLOAT8_VALUES[found.dtype][array]
    if found.dtype == "complex32":
        pairs = np.ascontiguousarray(array).view(np.float16).astype(np.float32)
        return pairs.view(np.complex64).reshape(found.shape)
    if (found.scale, found.zero_point) != (1.0, 0):
        return np.asarray((array.astype(np.float32) - np.float32(found.zero_point)) * np.float32(found.scale))
    return array


def _storage_code(dtype: str) -> str:
    if dtype in _PLAIN:
        return dtype
    if dtype == "bfloat16":
        return "uint16"
    if dtype == "complex32":
        return "uint32"
    return "uint8"  # float8, and types below one byte that torch itself stores as bytes
