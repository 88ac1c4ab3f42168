"""Find the torch tensors in the arguments and results of a call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from msprobe.core.tensor_leaves import leaves_of


def tensor_leaves(values: Iterable[Any]) -> list[torch.Tensor]:
    """Tensors in ``values`` and in the containers among them, in order; see :func:`leaves_of`."""
    return leaves_of(values, torch.Tensor)
