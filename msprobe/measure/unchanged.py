"""Tensors that were saved a moment ago and have not changed since: no need to read them again.

Only sound while nothing but torch's own Python code runs between two looks at a tensor, because a kernel of somebody
else may write without counting a version.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from msprobe.measure.tensor_files import Fingerprint


class Known(NamedTuple):
    """What is known of a tensor: the entry without its file name, and the fingerprint of its content."""

    reference: Callable[[], torch.Tensor | None]
    version: int
    address: int
    entry: dict[str, Any]
    fingerprint: Fingerprint | None


class UnchangedTensors:
    """Entries of saved tensors for as long as their version counters stay the same."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, Known] = {}

    def find(self, tensor: torch.Tensor) -> Known | None:
        """Return what is known of a tensor, if that is still true."""
        known = self._known.get(id(tensor))
        if known is None:
            return None
        alive = known.reference() is tensor  # or it is gone, and its id given to another one
        same = alive and known.version == tensor._version and known.address == tensor.data_ptr()
        return known if same else None

    def keep(self, tensor: torch.Tensor, entry: dict[str, Any], fingerprint: Fingerprint | None) -> None:
        """Remember the entry of a strided tensor. Inference tensors have no version and are not remembered."""
        if tensor.is_inference():
            return
        own = dict(entry)
        own.pop("data_name", None)
        self._known[id(tensor)] = Known(weakref.ref(tensor), tensor._version, tensor.data_ptr(), own, fingerprint)
