"""The content of one tensor file: a contiguous tensor that holds its own elements and nothing else.

The file can be written at once, straight from the tensor, or later from a copy. Whether two tensors would make the same
file is known from their fingerprint, without any copy.
"""

from __future__ import annotations

import ctypes
import zlib
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import torch

from msprobe.measure.backends import native_module
from msprobe.measure.cpu import threads_for
from msprobe.measure.file_content import FileContent, Pieces, write_pieces
from msprobe.measure.host_copies import HostCopies, HostCopy, rounded
from msprobe.measure.quiet import Quiet
from msprobe.measure.tensor_zip import LARGEST, ZipTemplate, ZipTemplates

#: dtype, shape, CRC-32 and 64-bit hash of the bytes in row-major order.
Fingerprint: TypeAlias = tuple[torch.dtype, tuple[int, ...], int, int]

# Unlike an array type of ctypes, this makes no new type for every size.
_bytes_at = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)
_READ_ONLY = 0x100  # PyBUF_READ


def own_elements(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor with the values of `tensor` and a storage of exactly that size.

    Conjugation and negation are carried out; sparse and quantised tensors keep their layout. The result shares no
    memory with `tensor`.
    """
    plain = tensor.detach()
    if plain.layout is not torch.strided or plain.is_quantized:
        return plain.clone()
    own = plain.resolve_conj().resolve_neg().contiguous()
    # Always a copy: once a tensor was asked for its storage, as torch.save does, autograd no longer adds to it in
    # place.
    return own.clone() if own.data_ptr() == plain.data_ptr() else own


class FileMaker:
    """Makes the contents of tensor files; what they share is kept here: memory for copies and file templates."""

    __slots__ = ("copies", "templates")

    def __init__(self) -> None:
        self.copies = HostCopies()
        self.templates = ZipTemplates()

    def content(self, tensor: torch.Tensor, fingerprint: Fingerprint | None = None) -> OwnElements:
        """Return the content of the file of a tensor, with its fingerprint if that is known already."""
        return OwnElements(tensor, self, fingerprint)


class OwnElements(FileContent):
    """A saver for one tensor: call it with an open binary file or a path.

    Parameters
    ----------
    tensor
        Any tensor that `own_elements` takes.
    maker
        Shared with other contents; None: nothing is shared.
    fingerprint
        Of the tensor, if it is known that the tensor has not changed since.

    Examples
    --------
    >>> OwnElements(torch.ones(4)[:2])("/tmp/ones.pt")  # doctest: +SKIP
    """

    __slots__ = (
        "_copy",
        "_dtype",
        "_event",
        "_fingerprint",
        "_maker",
        "_nbytes",
        "_shape",
        "_template",
        "_tensor",
    )

    def __init__(
        self, tensor: torch.Tensor, maker: FileMaker | None = None, fingerprint: Fingerprint | None = None
    ) -> None:
        super().__init__()
        self._maker = maker or FileMaker()
        self._tensor: torch.Tensor | None = tensor
        self._fingerprint = fingerprint
        self._copy: HostCopy | None = None
        self._template: ZipTemplate | None = None
        self._event: Any = None
        plain = tensor.layout is torch.strided and not tensor.is_quantized
        self._dtype, self._shape = tensor.dtype, tuple(tensor.shape)
        self._nbytes = tensor.numel() * tensor.itemsize if plain else -1

    @property
    def host_bytes(self) -> int:
        """Host memory that `hold` takes, in bytes; for unusual layouts an estimate."""
        return rounded(self._nbytes) if self._nbytes >= 0 else _size_of_parts(self._tensor)

    def fingerprint(self) -> Fingerprint | None:
        """Return what tells the content of this file from others, None if that is not known.

        Two different contents of the same dtype and shape have the same 96 bits with a probability of about 1e-29.
        Only for tensors in host memory, with the native kernels. Call it before the values change.
        """
        if self._fingerprint is None:
            tensor, native = self._tensor, native_module()
            if native is None or tensor is None or self._nbytes < 0 or not tensor.is_cpu or _is_lazy(tensor):
                return None
            layout = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.itemsize)
            crc = native.crc32_strided(*layout, 0)
            word = native.hash64_strided(*layout, threads_for(tensor.numel()))
            self._fingerprint = (self._dtype, self._shape, crc, word)
        return self._fingerprint

    @property
    def known_fingerprint(self) -> Fingerprint | None:
        """The fingerprint, if anybody has asked for it."""
        return self._fingerprint

    def hold(self) -> None:
        """Take a copy now, so that the file can be written after the values change.

        A tensor on an accelerator is copied into pinned host memory by its current stream, or where memory cannot be
        pinned within the device; nothing waits for it here.
        """
        tensor = self._tensor
        if tensor is None or self._copy is not None:
            return
        self._template = self._maker.templates.known(self._dtype, self._shape)
        if self._template is not None and self._in_order(tensor):
            self._copy = self._maker.copies.take(self._nbytes)
            self._copy.fill(tensor.data_ptr(), self._nbytes)
            self._tensor = None
            return
        with Quiet():
            if 0 <= self._nbytes < LARGEST and self._fits_template() and self._copy_elements(tensor):
                self._tensor = None
            else:
                self._tensor = own_elements(tensor)

    @property
    def in_host_memory(self) -> bool:
        """Whether the file can be written without waiting for a device."""
        return self._tensor is not None and self._tensor.is_cpu

    def pieces(self) -> Pieces | None:
        """Return the parts of the file, from the copy if one is held; None if only a call can write it.

        Waits until the device has delivered the copy. Parts that are read from the tensor itself are valid until its
        values change.
        """
        if self._copy is None:
            return self._pieces_of_tensor()
        if self._event is not None:
            self._event.synchronize()
        return self._around(self._copy.address, self._copy.view(self._nbytes))

    def _pieces_of_tensor(self) -> Pieces | None:
        tensor = self._tensor
        if tensor is None or not self._in_order(tensor):
            return None
        self._template = self._template or self._maker.templates.known(self._dtype, self._shape)
        if self._template is None:
            with Quiet():
                if not self._fits_template():
                    return None
        address = tensor.data_ptr()
        return self._around(address, _bytes_at(address, self._nbytes, _READ_ONLY))

    def _around(self, address: int, elements: memoryview) -> Pieces | None:
        if self._template is None:
            return None
        crc = self._fingerprint[2] if self._fingerprint is not None else _crc32(address, elements)
        before, after = self._template.around(crc)
        return before, elements, after

    def release(self) -> None:
        """Give the copy back; the content cannot be written any more."""
        copy, self._copy, self._tensor = self._copy, None, None
        if copy is not None:
            self._maker.copies.give_back(copy)

    def __call__(self, destination: BinaryIO | Path | str) -> None:
        """Write the file; `torch.load(..., weights_only=True)` reads it."""
        with Quiet():
            pieces = self.pieces()
            if pieces is not None:
                write_pieces(destination, pieces)
            elif self._tensor is None:
                raise ValueError("the content of this tensor file was released already")
            else:
                torch.save(own_elements(self._tensor), destination)

    def _in_order(self, tensor: torch.Tensor) -> bool:
        """Tell whether the bytes of the file lie in host memory as they are."""
        return 0 <= self._nbytes < LARGEST and tensor.is_cpu and tensor.is_contiguous() and not _is_lazy(tensor)

    def _fits_template(self) -> bool:
        """Tell whether torch can pickle a tensor of this dtype; what cannot be is left to `torch.save`."""
        try:
            self._template = self._maker.templates.get(self._dtype, self._shape)
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            return False
        return True

    def _copy_elements(self, tensor: torch.Tensor) -> bool:
        """Copy into host memory; False if a device cannot do that while the program goes on."""
        pinned = not tensor.is_cpu
        try:
            copy = self._maker.copies.take(self._nbytes, pinned=pinned)
        except RuntimeError:
            if pinned:
                return False
            raise
        try:
            if self._in_order(tensor):
                copy.fill(tensor.data_ptr(), self._nbytes)
            else:
                target = copy.tensor(self._dtype, self._shape, self._nbytes)
                target.copy_(tensor.detach(), non_blocking=pinned)
            if pinned:
                device = torch.get_device_module(tensor.device)
                self._event = device.Event()
                self._event.record(device.current_stream(tensor.device))
        except BaseException:
            self._maker.copies.give_back(copy)
            raise
        self._copy = copy
        return True


def _is_lazy(tensor: torch.Tensor) -> bool:
    """Tell whether the values are not those in memory."""
    return bool(tensor.is_conj() or tensor.is_neg())


def _crc32(address: int, elements: memoryview) -> int:
    native = native_module()
    return zlib.crc32(elements) if native is None else int(native.crc32(address, len(elements), 0))


def _size_of_parts(tensor: torch.Tensor | None) -> int:
    """Return about how many bytes a clone of a tensor takes that is not strided, or is quantised."""
    if tensor is None:
        return 0
    with Quiet():
        if tensor.layout is torch.sparse_coo:
            parts = [tensor._indices(), tensor._values()]
        elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
        elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
            parts = [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
        else:
            return int(tensor.numel() * tensor.itemsize)
        return sum(part.numel() * part.itemsize for part in parts)
