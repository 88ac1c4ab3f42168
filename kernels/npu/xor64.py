"""XOR of the 64-bit words of a tensor, computed on its device.

Definition: the bytes of a contiguous tensor in its own dtype, zero padded to a multiple of 8, read as little-endian
64-bit words ``w``; the result is ``w[0] ^ w[1] ^ ...``. No operator of the device reduces by XOR, so the words are
folded onto a buffer whose width is a power of two, and the buffer onto its own half until one word is left: about
log2(n) launches, at most half the words and at most 32 MiB of extra memory. Nothing waits for the device.
"""

from __future__ import annotations

import torch
from msprobe.kernels.npu import extension

#: Widest buffer, in words.
WIDEST = 1 << 22


def xor64(tensor: torch.Tensor) -> torch.Tensor:
    """Return the XOR of a contiguous tensor's 64-bit words.

    Parameters
    ----------
    tensor
        Contiguous, at least one element, any dtype whose elements are whole bytes, no conjugate bit pending.

    Returns
    -------
    torch.Tensor
        0-dim int64 on the tensor's device; the checksum is its value modulo 2**64.

    Raises
    ------
    ValueError
        If the tensor is empty or not contiguous: what would be read is not its content in row-major order.
    """
    if not tensor.numel() or not tensor.is_contiguous():
        raise ValueError(
            f"xor64 of shape {tuple(tensor.shape)}, strides {tensor.stride()}: give a contiguous tensor with elements"
        )
    content = tensor.detach().reshape(-1).view(torch.uint8)
    whole = content.numel() // 8 * 8
    body, tail = content[:whole], content[whole:]
    if body.storage_offset() % 8:  # such a view cannot be read as words
        body = body.clone()
    if not tail.numel():
        return xor_words(body.view(torch.int64))
    last = torch.nn.functional.pad(tail, (0, 8 - tail.numel())).view(torch.int64)[0]
    return xor_words(body.view(torch.int64)) ^ last if whole else last


def xor_words(words: torch.Tensor) -> torch.Tensor:
    """Return the XOR of int64 words as a 0-dim tensor, by the compiled operator where it is built.

    Parameters
    ----------
    words
        int64 [n], n > 0.
    """
    compiled = extension.operators() if words.device.type == "npu" else None
    return xor_words_composed(words) if compiled is None else compiled.xor_words(words)


def xor_words_composed(words: torch.Tensor) -> torch.Tensor:
    """Return the same by operations of torch, one call from Python for each launch."""
    count = words.numel()
    if count == 1:
        return words[0].clone()
    width = _buffer_width(count)
    folded = words[:width] ^ words[width : 2 * width]
    for start in range(2 * width, count, width):
        piece = words[start : start + width]
        folded[: piece.numel()].bitwise_xor_(piece)
    while width > 1:
        width //= 2
        folded[:width].bitwise_xor_(folded[width : 2 * width])
    return folded[0].clone()


def _buffer_width(count: int) -> int:
    """Return the largest power of two that is at most half of ``count`` (> 1) and at most `WIDEST`."""
    return int(min(1 << ((count // 2).bit_length() - 1), WIDEST))
