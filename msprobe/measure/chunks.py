"""Walk a strided tensor in pieces of bounded size, so that no reader ever needs a copy of the whole."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch

#: Elements per piece: 512 KiB as float64, which stays in the second-level cache.
CHUNK = 1 << 16


def logical_chunks(tensor: torch.Tensor, limit: int = CHUNK) -> Iterator[torch.Tensor]:
    """Yield views of at most `limit` elements that cover `tensor` in row-major (logical) order.

    Parameters
    ----------
    tensor
        Any strided tensor, of any shape and strides. Nothing is copied.
    limit
        Largest number of elements of one view.
    """
    if tensor.numel() <= limit:
        yield tensor
        return
    if tensor.is_contiguous():
        yield from tensor.view(-1).split(limit)
        return
    inner = prod(tensor.shape[1:])
    if inner <= limit:
        yield from tensor.split(limit // inner)
        return
    for index in range(tensor.shape[0]):
        yield from logical_chunks(tensor.select(0, index), limit)


def memory_layout(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return sizes and strides of the same elements in the order of memory, and how often each of them counts.

    The plain numbers of `memory_order`, which costs no torch operation. Dimensions that lie behind one another without
    a gap are one dimension, so that a dense tensor comes out as ``((numel,), (1,), repeats)``.

    Parameters
    ----------
    shape, strides
        Of a strided tensor with at least one element, strides in elements.
    """
    repeats = 1
    dims: list[tuple[int, int]] = []
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if stride == 0:
            repeats *= size
        elif dims and dims[-1][0] * dims[-1][1] == stride:
            dims[-1] = dims[-1][0], dims[-1][1] * size
        elif size > 1:
            dims.append((stride, size))
    if not dims:
        return (1,), (1,), repeats
    dims.reverse()
    return tuple(size for _, size in dims), tuple(stride for stride, _ in dims), repeats


def memory_order(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return a view with the same elements in the order of memory, and how often each of them counts.

    Statistics do not depend on the order of elements, so the largest stride goes first and a transposed tensor
    becomes contiguous. A dimension of stride 0 (``expand``) repeats elements: it is dropped and multiplies the count.
    """
    repeats = 1
    for dim in range(tensor.dim() - 1, -1, -1):
        if tensor.stride(dim) == 0 and tensor.shape[dim] > 1:
            repeats *= tensor.shape[dim]
            tensor = tensor.select(dim, 0)
    if not tensor.is_contiguous():
        strides = tensor.stride()
        tensor = tensor.permute(sorted(range(tensor.dim()), key=lambda dim: -strides[dim]))
    return tensor, repeats
