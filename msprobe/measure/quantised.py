"""Statistics of quantised tensors: of the dequantised values, one bounded piece at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from msprobe.measure.chunks import CHUNK, logical_chunks, memory_order
from msprobe.measure.views import stored_integers


def dequantised(tensor: torch.Tensor, limit: int = CHUNK) -> Iterator[torch.Tensor]:
    """Yield ``(q - zero_point) * scale`` in float32, as torch's dequantize computes it, at most `limit` at a time."""
    integers = stored_integers(tensor)
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        zero_point, scale = tensor.q_zero_point(), tensor.q_scale()
        for chunk in logical_chunks(memory_order(integers)[0], limit):
            yield (chunk.to(torch.float32) - zero_point) * scale
        return
    axis = tensor.q_per_channel_axis()
    scales = tensor.q_per_channel_scales().to(torch.float32)
    zero_points = tensor.q_per_channel_zero_points().to(torch.float32)
    for index in range(tensor.shape[axis]):
        for chunk in logical_chunks(integers.select(axis, index), limit):
            yield (chunk.to(torch.float32) - zero_points[index]) * scales[index]
