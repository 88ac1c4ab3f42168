"""The content of one tensor file: a contiguous tensor that holds its own elements and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import torch

from msprobe.measure.quiet import Quiet


def own_elements(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor with the values of `tensor` and a storage of exactly that size.

    Conjugation and negation are carried out; sparse and quantised tensors keep their layout. The result shares no
    memory with `tensor`.
    """
    plain = tensor.detach()
    if plain.layout is not torch.strided or plain.is_quantized:
        return plain.clone()
    own = plain.resolve_conj().resolve_neg().contiguous()
    # Always a copy: once a tensor was asked for its storage, as torch.save does, autograd no longer adds to it in
    # place.
    return own.clone() if own.data_ptr() == plain.data_ptr() else own


class OwnElements:
    """A saver for one tensor: call it with an open binary file or a path.

    Examples
    --------
    >>> OwnElements(torch.ones(4)[:2])("/tmp/ones.pt")  # doctest: +SKIP
    """

    __slots__ = ("_held", "_tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._held = False

    def hold(self) -> None:
        """Take a copy now, on the tensor's own device, so that the file can be written after the values change."""
        if not self._held:
            with Quiet():
                self._tensor = own_elements(self._tensor)
            self._held = True

    def __call__(self, destination: BinaryIO | Path | str) -> None:
        """Write the file; `torch.load(..., weights_only=True)` reads it."""
        with Quiet():
            torch.save(self._tensor if self._held else own_elements(self._tensor), destination)
