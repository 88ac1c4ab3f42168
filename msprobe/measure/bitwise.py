"""Whether two tensors hold the same bits."""

from __future__ import annotations

import torch

from msprobe.measure.chunks import CHUNK, logical_chunks


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Compare dtype, shape, device and content; NaN equals NaN of the same bits, and 0.0 is not -0.0.

    Parameters
    ----------
    left, right : Tensor
        Of any dtype, shape and strides. Sparse, nested and quantised tensors are never equal: they have several parts.

    Returns
    -------
    bool
        On an accelerator this waits for the device.
    """
    if left.dtype != right.dtype or left.shape != right.shape or left.device != right.device:
        return False
    if any(one.layout is not torch.strided or one.is_nested or one.is_quantized for one in (left, right)):
        return False
    with torch.no_grad():
        pairs = zip(logical_chunks(left.detach(), CHUNK), logical_chunks(right.detach(), CHUNK), strict=True)
        return all(torch.equal(_bytes(one), _bytes(other)) for one, other in pairs)


def _bytes(piece: torch.Tensor) -> torch.Tensor:
    plain = piece.resolve_conj().resolve_neg().contiguous()
    # A single element counts as contiguous whatever its stride, but only stride 1 can be viewed as bytes.
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)
