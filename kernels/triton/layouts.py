"""Which strided tensors the kernels read in place.

Statistics do not depend on the order of elements, so dimensions are sorted by stride and joined where one continues
the other. What is left is one run of memory (any dense permutation), or rows of equal length at equal distance (a
slice, one part of ``chunk``), or something that the kernels leave to the caller.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

#: Longest row that is read with 32-bit arithmetic.
_ROW_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True)
class Rows:
    """The distinct elements of a tensor: `numel` of them in rows of `inner`, one every `pitch` elements.

    Attributes
    ----------
    numel
        Number of elements to read.
    inner, pitch
        Elements in a row, and from the start of a row to the next. Equal when there are no gaps.
    repeats
        How often each element counts (dimensions of stride 0).
    """

    numel: int
    inner: int
    pitch: int
    repeats: int = 1

    @property
    def dense(self) -> bool:
        """Whether the rows are one run of memory."""
        return self.inner == self.pitch


def memory_rows(tensor: torch.Tensor) -> Rows | None:
    """Return where the elements of a strided tensor lie, or None if they are no rows of equal distance.

    Parameters
    ----------
    tensor
        Any shape and strides, at least one element.
    """
    numel = tensor.numel()
    if tensor.is_contiguous():
        return Rows(numel, numel, numel)
    repeats = 1
    dims: list[tuple[int, int]] = []
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if stride == 0:
            repeats *= size
        elif dims and dims[-1][0] * dims[-1][1] == stride:
            dims[-1] = dims[-1][0], dims[-1][1] * size
        elif size > 1:
            dims.append((stride, size))
    return _rows(dims or [(1, 1)], numel // repeats, repeats)


def _rows(dims: list[tuple[int, int]], numel: int, repeats: int) -> Rows | None:
    stride, size = dims[0]
    if len(dims) == 1:
        return Rows(numel, numel, numel, repeats) if stride == 1 else Rows(numel, 1, stride, repeats)
    if len(dims) == 2 and stride == 1 and size < _ROW_LIMIT:
        return Rows(numel, size, dims[1][0], repeats)
    return None
