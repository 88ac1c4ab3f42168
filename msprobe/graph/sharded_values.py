"""Distributed tensors in compiled graphs: a probe is given this rank's part, and what the tensor is stays outside.

A compiled program knows local tensors only: AOTAutograd takes a ``DTensor`` apart. The record is that of an eager run,
where the encoder is given the ``DTensor``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

Layouts: TypeAlias = tuple[tuple[int, Any], ...]
"""For some tensors of a sequence: position, and mesh, placements and shape (a ``DTensorSpec``)."""


def take_apart(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Layouts]:
    """Local parts of the distributed tensors among ``tensors``, the others as they are, and what makes them whole."""
    kind = _distributed_type()
    if kind is None or not any(isinstance(tensor, kind) for tensor in tensors):
        return list(tensors), ()
    parts: list[torch.Tensor] = []
    layouts: list[tuple[int, Any]] = []
    for position, tensor in enumerate(tensors):
        if isinstance(tensor, kind):
            layouts.append((position, tensor._spec))  # type: ignore[attr-defined]
            parts.append(tensor._local_tensor)  # type: ignore[attr-defined]  # to_local() would make an autograd node
        else:
            parts.append(tensor)
    return parts, tuple(layouts)


def put_together(parts: Sequence[torch.Tensor], layouts: Layouts) -> list[torch.Tensor]:
    """The opposite of :func:`take_apart`, for tensors of one run."""
    tensors = list(parts)
    for position, spec in layouts:
        kind: Any = _distributed_type()
        tensors[position] = kind(tensors[position], spec, requires_grad=False)
    return tensors


def _distributed_type() -> type | None:
    """``DTensor``; None if nothing has loaded it."""
    module = sys.modules.get("torch.distributed.tensor")
    return getattr(module, "DTensor", None)
