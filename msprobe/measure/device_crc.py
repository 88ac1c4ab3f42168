"""CRC-32 of device tensors by torch operations, without a copy of the content to the host.

A CRC without its start value is linear: a message counts as a polynomial modulo the CRC's, so words at the front can be
multiplied by ``x**(32 * distance)`` and added (XOR) to words further back. `crc_message` does this on the device until
4 KiB are left, with the same CRC as the whole; zlib reads those on the host. The start value goes into the first word.

Polynomials are in reflected order, as in zlib: bit 31 of a little-endian word is the coefficient of x**0.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from msprobe.measure.device_streams import current_stream

#: Words of a message that is not shortened further.
WIDTH = 1 << 10
_POLYNOMIAL = 0xEDB88320
_ONES = 0xFFFFFFFF
_BASIS = tuple(1 << bit for bit in range(31, -1, -1))  # x**0, x**1, ...


class CrcFolder:
    """Shortens messages on devices. Keeps its tables, 512 KiB each, of which a stream needs about twelve."""

    __slots__ = ("_tables",)

    def __init__(self) -> None:
        self._tables: dict[tuple[torch.device, Any, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def message(self, pieces: Iterable[torch.Tensor]) -> torch.Tensor:
        """Return bytes from which `finish_crc` makes the CRC-32 of the content.

        Parameters
        ----------
        pieces
            uint8 [n] tensors on one device: the content, one after the other. They are not written to.

        Returns
        -------
        torch.Tensor
            uint8, memory of its own, at most 4 KiB + 3 bytes; the content itself when that is not longer.
        """
        message: torch.Tensor | None = None
        started = False
        for piece in pieces:
            message = piece.clone() if message is None else torch.cat((message, piece))
            if message.numel() >= 4 * (WIDTH + 1):
                message = self._fold(message, started=started)
                started = True
        return torch.empty(0, dtype=torch.uint8) if message is None else message

    def _fold(self, message: torch.Tensor, *, started: bool) -> torch.Tensor:
        """Shorten bytes, which may be overwritten, to `WIDTH` words and what does not fill a word."""
        whole = message.numel() // 4 * 4
        words, tail = message[:whole].view(torch.int32), message[whole:]
        if not started:
            words[:1].bitwise_not_()
        while words.numel() > WIDTH:
            distance = 1 << (words.numel() - 1).bit_length() - 1
            front, words = words[:-distance], words[-distance:]
            words[-front.numel() :].bitwise_xor_(self._moved(front, distance))
        return torch.cat((words.view(torch.uint8), tail))

    def _moved(self, words: torch.Tensor, distance: int) -> torch.Tensor:
        """Return words times ``x**(32 * distance)``, by a table for each half of a word."""
        low, high = self._table(words.device, distance)
        upper = (words >> 16).bitwise_and_(0xFFFF)
        return low.index_select(0, words & 0xFFFF).bitwise_xor_(high.index_select(0, upper))

    def _table(self, device: torch.device, distance: int) -> tuple[torch.Tensor, torch.Tensor]:
        key = device, current_stream(device), distance  # a copy is complete for those who come later on its stream
        found = self._tables.get(key)
        if found is None:
            tables = torch.from_numpy(multiples(power_of_x(32 * distance)).view(np.int32))
            with torch.inference_mode(mode=False):
                if device.type == "cuda":  # from pageable memory the copy would wait for the device
                    tables = tables.pin_memory()
                tables = tables.to(device, non_blocking=True)
            found = self._tables[key] = (tables[0], tables[1])
        return found


def finish_crc(message: bytes, nbytes: int) -> int:
    """Return the CRC-32 of a content of `nbytes` bytes from what `CrcFolder.message` made of it."""
    return zlib.crc32(message, _ONES if nbytes >= 4 * (WIDTH + 1) else 0)


def times_x(value: int) -> int:
    """Return a polynomial times x."""
    return value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)


def product(left: int, right: int) -> int:
    """Return the product of two polynomials modulo the CRC's."""
    result = 0
    for bit in _BASIS:
        if left & bit:
            result ^= right
        right = times_x(right)
    return result


def power_of_x(exponent: int) -> int:
    """Return x to a power >= 0 modulo the CRC's polynomial, by squaring."""
    result, square = _BASIS[0], _BASIS[1]
    while exponent:
        if exponent & 1:
            result = product(result, square)
        square = product(square, square)
        exponent >>= 1
    return result


def multiples(factor: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    """Return the products of a polynomial with every low and every high half of a word.

    Returns
    -------
    numpy.ndarray
        uint32 [2, 65536]: ``factor * k`` and ``factor * (k << 16)``.
    """
    products: dict[int, int] = {}
    for bit in _BASIS:
        products[bit] = factor
        factor = times_x(factor)
    found = np.zeros((2, 1 << 16), dtype=np.uint32)
    for half in range(2):
        for place in range(16):
            size = 1 << place
            found[half, size : 2 * size] = found[half, :size] ^ np.uint32(products[size << 16 * half])
    return found
