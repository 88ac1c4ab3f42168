"""The file format of `torch.save` for one plain tensor, without running `torch.save`.

`torch.save` runs a pickler and a zip writer for every file: a quarter of a millisecond for a small tensor, and a CRC-32
at 1 GB/s for a large one. Here everything but the elements comes from a template per dtype and shape, and the CRC-32 of
the elements from the native kernel. The file is a stored (uncompressed) zip archive with the members that `torch.load`
asks for, the elements aligned to 64 bytes so that ``mmap=True`` works. Format: PKWARE APPNOTE 6.3.3, sections 4.3.7,
4.3.12 and 4.3.16.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

#: Larger tensors need the 64-bit fields of the zip format; `torch.save` writes those.
LARGEST = 1 << 31
_ALIGNMENT = 64
_TEMPLATES_KEPT = 1024
_FOLDER = "archive"
_DATA = f"{_FOLDER}/data/0"
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_LOCAL_CRC = 14  # offset of the CRC-32 in a local header
_CENTRAL_CRC = 16  # and in an entry of the central directory
_UTF8 = 0x800
_PADDING = b"FB"  # id of the extra field that torch pads with, too


@dataclass(frozen=True, slots=True)
class ZipTemplate:
    """What stands before and after the elements of a tensor of one dtype and shape.

    Attributes
    ----------
    before, after
        Bytes of the file, with zeros where the CRC-32 of the elements belongs.
    crc_before, crc_after
        Offsets of those four bytes.
    """

    before: bytes
    after: bytes
    crc_before: int
    crc_after: int

    def around(self, crc: int) -> tuple[bytearray, bytearray]:
        """Return the two parts of the file for elements with this CRC-32."""
        before, after = bytearray(self.before), bytearray(self.after)
        struct.pack_into("<I", before, self.crc_before, crc)
        struct.pack_into("<I", after, self.crc_after, crc)
        return before, after


class ZipTemplates:
    """Templates by dtype and shape; the memory they take is bounded."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[torch.dtype, tuple[int, ...]], ZipTemplate] = {}

    def known(self, dtype: torch.dtype, shape: tuple[int, ...]) -> ZipTemplate | None:
        """Return the template if it was made before."""
        return self._known.get((dtype, shape))

    def get(self, dtype: torch.dtype, shape: tuple[int, ...]) -> ZipTemplate:
        """Return the template for contiguous tensors of less than `LARGEST` bytes.

        Raises
        ------
        Exception
            Whatever pickling a tensor of this dtype raises.
        """
        found = self._known.get((dtype, shape))
        if found is None:
            if len(self._known) >= _TEMPLATES_KEPT:
                self._known.clear()
            found = self._known[dtype, shape] = _template(dtype, shape)
        return found


class _Storage:
    """Stands for the storage in a pickle: `torch.load` finds the elements by this name."""

    def __init__(self, kind: type, size: int) -> None:
        self.persistent = ("storage", kind, "0", "cpu", size)


class _Tensor:
    """Pickles as a tensor."""

    def __init__(self, function: Any, arguments: tuple[Any, ...]) -> None:
        self._reduced = (function, arguments)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self._reduced


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return value.persistent if type(value) is _Storage else None


def pickled(dtype: torch.dtype, shape: tuple[int, ...]) -> bytes:
    """Return the pickle of a contiguous tensor as `torch.save` writes it, made without such a tensor.

    torch itself reduces an empty tensor of that dtype; only storage, shape and strides are replaced.
    """
    tensor = torch.empty((), dtype=dtype, device="cpu")
    function, arguments = tensor.__reduce_ex__(2)
    storage, offset, _, _, *rest = arguments
    numel = math.prod(shape)
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    if isinstance(storage, torch.storage.TypedStorage):
        stand_in = _Storage(getattr(torch, storage._pickle_storage_type()), numel)
    else:
        stand_in = _Storage(torch.UntypedStorage, numel * tensor.itemsize)
    stream = io.BytesIO()
    _Pickler(stream, protocol=2).dump(_Tensor(function, (stand_in, offset, shape, tuple(strides), *rest)))
    return stream.getvalue()


def _template(dtype: torch.dtype, shape: tuple[int, ...]) -> ZipTemplate:
    nbytes = math.prod(shape) * dtype.itemsize
    front = [(f"{_FOLDER}/data.pkl", pickled(dtype, shape)), (f"{_FOLDER}/byteorder", sys.byteorder.encode())]
    before, central = bytearray(), bytearray()
    for name, content in front:
        central += _central(name, zlib.crc32(content), len(content), len(before))
        before += _local(name, zlib.crc32(content), len(content)) + content
    start = len(before)
    crc_after = len(central) + _CENTRAL_CRC
    central += _central(_DATA, 0, nbytes, start)
    before += _local(_DATA, 0, nbytes, _padding(start + _LOCAL.size + len(_DATA)))
    end = len(before) + nbytes
    version = b"3\n"
    after = _local(f"{_FOLDER}/version", zlib.crc32(version), len(version)) + version
    central += _central(f"{_FOLDER}/version", zlib.crc32(version), len(version), end)
    count = len(front) + 2
    directory = end + len(after)
    closing = _END.pack(b"PK\5\6", 0, 0, count, count, len(central), directory, 0)
    return ZipTemplate(bytes(before), after + bytes(central) + closing, start + _LOCAL_CRC, len(after) + crc_after)


def _padding(offset: int) -> bytes:
    """Return the extra field after which what follows is aligned."""
    length = -(offset + 4) % _ALIGNMENT
    return _PADDING + struct.pack("<H", length) + b"Z" * length


def _local(name: str, crc: int, size: int, extra: bytes = b"") -> bytes:
    text = name.encode()
    return _LOCAL.pack(b"PK\3\4", 0, _UTF8, 0, 0, 0, crc, size, size, len(text), len(extra)) + text + extra


def _central(name: str, crc: int, size: int, offset: int) -> bytes:
    text = name.encode()
    sizes: Sequence[int] = (crc, size, size)
    return _CENTRAL.pack(b"PK\1\2", 0, 0, _UTF8, 0, 0, 0, *sizes, len(text), 0, 0, 0, 0, 0, offset) + text
