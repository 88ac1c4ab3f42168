"""CRC-32, XOR and position-sensitive hash of the content of tensors.

The content is the contiguous bytes in row-major order in the tensor's own dtype, whatever its strides; it is read in
pieces, never copied as a whole. Sparse and nested tensors have several parts (indices, values). Call everything here
inside `quiet.Quiet`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import TypeAlias

import torch

from msprobe.measure.backends import native_module
from msprobe.measure.chunks import CHUNK, logical_chunks
from msprobe.measure.cpu import threads_for
from msprobe.measure.entry_parts import ChecksumMode

Parts: TypeAlias = Sequence[torch.Tensor]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xFF51AFD7ED558CCD
_MIX_2 = 0xC4CEB9FE1A85EC53


def checksum_cpu(mode: ChecksumMode, parts: Parts) -> str:
    """Return the text of a checksum of strided CPU tensors."""
    native = native_module()
    if native is not None and not any(part.is_conj() or part.is_neg() for part in parts):
        return checksum_native(native, mode, parts)
    if mode == "md5":
        return crc32(parts)
    if mode == "xor":
        return hex64(int(xor_tensor(parts).item()))
    words = (int(hash_body(part).item()) for part in parts)
    hashes = [
        finish_hash(word, part.numel() * part.itemsize, part.shape) for word, part in zip(words, parts, strict=True)
    ]
    return hex64(combine_hashes(hashes))


def checksum_native(native: ModuleType, mode: ChecksumMode, parts: Parts) -> str:
    """Return the same text by the native kernels, which walk strides themselves.

    No torch operation runs, so it needs no `quiet.Quiet`. No part may have a conjugate or negative bit pending.
    """
    layouts = [(part.data_ptr(), part.shape, part.stride(), part.itemsize) for part in parts]
    if mode == "md5":
        value = 0
        for layout in layouts:
            value = native.crc32_strided(*layout, value)
        return f"{value:08x}"
    threads = threads_for(max(part.numel() for part in parts))
    if mode == "xor":
        value = 0
        for layout in layouts:
            value ^= native.xor64_strided(*layout, threads)
        return hex64(value)
    return hex64(combine_hashes([native.hash64_strided(*layout, threads) for layout in layouts]))


def content_bytes(tensor: torch.Tensor, limit: int = CHUNK) -> Iterator[torch.Tensor]:
    """Yield the content as flat uint8 tensors of at most about `limit` elements.

    All but the last hold a multiple of 8 bytes.
    """
    carry: torch.Tensor | None = None
    for chunk in logical_chunks(tensor, limit):
        plain = chunk.resolve_conj().resolve_neg().contiguous()
        # A single element counts as contiguous whatever its stride, but only stride 1 can be viewed as bytes.
        piece = plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)
        if carry is not None:
            piece = torch.cat((carry, piece))
        whole = piece.numel() // 8 * 8
        carry = piece[whole:] if whole < piece.numel() else None
        if whole:
            yield piece[:whole]
    if carry is not None:
        yield carry


def crc32(parts: Parts) -> str:
    """Return the CRC-32 (zlib's polynomial) of the content, 8 lower-case hex digits; ``00000000`` when empty.

    Tensors of an accelerator are copied to the host piece by piece, which waits for the device.
    """
    value = 0
    for part in parts:
        for piece in content_bytes(part):
            value = zlib.crc32(piece.cpu().numpy(), value)
    return f"{value:08x}"


def hex64(value: int) -> str:
    """Return the text form of a 64-bit checksum."""
    return f"0x{value & _MASK:016x}"


def words_of(piece: torch.Tensor) -> torch.Tensor:
    """Return bytes as little-endian int64 words, zero padded."""
    missing = -piece.numel() % 8
    if missing:
        piece = torch.nn.functional.pad(piece, (0, missing))
    elif piece.storage_offset() % 8:
        piece = piece.clone()
    return piece.view(torch.int64)


def xor_words(words: torch.Tensor) -> torch.Tensor:
    """Return the XOR of all words as a 0-dim int64 tensor, by halving."""
    while words.numel() > 1:
        half = words.numel() // 2
        rest = words[2 * half :]
        words = words[:half] ^ words[half : 2 * half]
        if rest.numel():
            words[0] ^= rest[0]
    return words[0]


def xor_tensor(parts: Parts, limit: int = CHUNK) -> torch.Tensor:
    """Return the XOR of the content's 64-bit words (each part zero padded) as a 0-dim int64 tensor on its device."""
    total = torch.zeros((), dtype=torch.int64, device=parts[-1].device)
    for part in parts:
        for value in _npu_xor(part, limit) if part.device.type == "npu" else _xor_pieces(part, limit, xor_words):
            total = total ^ value.to(total.device)
    return total


def _xor_pieces(
    part: torch.Tensor, limit: int, reduce: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[torch.Tensor]:
    for piece in content_bytes(part, limit):
        yield reduce(words_of(piece))


def _npu_xor(part: torch.Tensor, limit: int) -> Iterator[torch.Tensor]:
    """Yield values to XOR for a tensor on an NPU; its kernel reads a contiguous one as a whole."""
    from msprobe.kernels.npu import xor64  # noqa: PLC0415 - for this device only

    if part.numel() and part.is_contiguous() and not (part.is_conj() or part.is_neg()):
        yield xor64.xor64(part)
    else:
        yield from _xor_pieces(part, limit, xor64.xor_words)


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _shifted(words: torch.Tensor) -> torch.Tensor:
    """Return the logical shift right by 33 of int64 words (torch shifts arithmetically)."""
    return (words >> 33) & ((1 << 31) - 1)


def mix_words(words: torch.Tensor) -> torch.Tensor:
    """Return MurmurHash3's 64-bit finaliser (fmix64, A. Appleby, public domain) of each int64 word."""
    words = (words ^ _shifted(words)) * _signed(_MIX_1)
    words = (words ^ _shifted(words)) * _signed(_MIX_2)
    return words ^ _shifted(words)


def mix(value: int) -> int:
    """Return fmix64 of one unsigned 64-bit integer."""
    value ^= value >> 33
    value = value * _MIX_1 & _MASK
    value ^= value >> 33
    value = value * _MIX_2 & _MASK
    return value ^ value >> 33


def hash_body(tensor: torch.Tensor, limit: int = CHUNK) -> torch.Tensor:
    """Return ``sum_i fmix(w_i + (i + 1) * golden)`` modulo 2**64 as a 0-dim int64 tensor on the tensor's device."""
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    first = 1
    for piece in content_bytes(tensor, limit):
        words = words_of(piece)
        index = torch.arange(first, first + words.numel(), dtype=torch.int64, device=tensor.device)
        total = total + mix_words(words + index * _signed(_GOLDEN)).sum()
        first += words.numel()
    return total


def finish_hash(body: int, nbytes: int, shape: Iterable[int]) -> int:
    """Return the 64-bit hash from its body (any integer congruent modulo 2**64), the size in bytes and the shape.

    The shape goes in as ``s = fmix(nbytes + 1)``, then ``s = fmix(s ^ (size + golden))`` for each dimension.
    """
    salt = mix(nbytes + 1)
    for size in shape:
        salt = mix(salt ^ (size + _GOLDEN & _MASK))
    return mix((body & _MASK) ^ salt)


def combine_hashes(hashes: Sequence[int]) -> int:
    """Return one hash for the parts of a sparse or nested tensor; that of a single part is its own."""
    result = hashes[0]
    for value in hashes[1:]:
        result = mix(result + _GOLDEN & _MASK) ^ value
    return result
