"""CRC-32, XOR and position-sensitive hash of the content of tensors.

The content is the contiguous bytes in row-major order in the tensor's own dtype, whatever its strides; it is read in
pieces, never copied as a whole. Sparse and nested tensors have several parts (indices, values). Call everything here
inside `quiet.Quiet`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

import torch

from msprobe.measure.backends import native_module
from msprobe.measure.chunks import CHUNK, logical_chunks

#: Names of the checksums in the configuration; ``md5`` is CRC-32 for historical reasons.
ChecksumMode: TypeAlias = Literal["md5", "xor", "hash"]
Parts: TypeAlias = Sequence[torch.Tensor]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xFF51AFD7ED558CCD
_MIX_2 = 0xC4CEB9FE1A85EC53


def checksum_cpu(mode: ChecksumMode, parts: Parts) -> str:
    """Return the text of a checksum of CPU tensors."""
    if mode == "md5":
        return crc32(parts)
    return xor64(parts) if mode == "xor" else hash64(parts)


def content_bytes(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the content as flat uint8 tensors of bounded size; all but the last hold a multiple of 8 bytes."""
    carry: torch.Tensor | None = None
    for chunk in logical_chunks(tensor, CHUNK):
        plain = chunk.resolve_conj().resolve_neg().contiguous()
        piece = plain.reshape(-1).view(torch.uint8)
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
    native = native_module()
    value = 0
    for part in parts:
        for piece in content_bytes(part):
            host = piece.cpu()
            if native is None:
                value = zlib.crc32(host.numpy(), value)
            else:
                value = native.crc32(host.data_ptr(), host.numel(), value)
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


def xor_tensor(parts: Parts) -> torch.Tensor:
    """Return the XOR of the content's 64-bit words (each part zero padded) as a 0-dim int64 tensor on its device."""
    total = torch.zeros((), dtype=torch.int64, device=parts[-1].device)
    for part in parts:
        for piece in content_bytes(part):
            total = total ^ xor_words(words_of(piece)).to(total.device)
    return total


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


def hash_body(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``sum_i fmix(w_i + (i + 1) * golden)`` modulo 2**64 as a 0-dim int64 tensor on the tensor's device."""
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    first = 1
    for piece in content_bytes(tensor):
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


def xor64(parts: Parts) -> str:
    """Return the XOR checksum ``0x%016x`` of CPU tensors."""
    native = native_module()
    if native is None:
        return hex64(int(xor_tensor(parts).item()))
    value = 0
    for part in parts:
        for piece in content_bytes(part):
            value ^= native.xor64(piece.data_ptr(), piece.numel(), 1)
    return hex64(value)


def hash64(parts: Parts) -> str:
    """Return the 64-bit hash ``0x%016x`` of CPU tensors: unlike XOR it sees order, sign, repetition and shape."""
    return hex64(combine_hashes([_hash_part(part) for part in parts]))


def _hash_part(part: torch.Tensor) -> int:
    native = native_module()
    nbytes = part.numel() * part.itemsize
    if native is not None and part.is_contiguous() and not part.is_conj() and not part.is_neg():
        return int(native.hash64(part.data_ptr(), nbytes, tuple(part.shape), 1))
    return finish_hash(int(hash_body(part).item()), nbytes, part.shape)
