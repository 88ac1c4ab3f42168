"""Models of the life-cycle tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

MIX = {"task": "statistics", "level": "mix", "risk_level": "ALL"}
Factory = Callable[..., Any]


def small_model() -> nn.Sequential:
    """Two linear layers, with the same weights each time: some units are active for an input of ones."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))


class Fragile(nn.Module):
    """Raises when its input is negative."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, error: type[BaseException] = ValueError) -> torch.Tensor:
        if x.sum() < 0:
            raise error("negative")
        return self.inner(x)


class Retrying(nn.Module):
    """Catches what its part raises and tries again."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error
        self.part = Fragile()
        self.last = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            h = self.part(-x, self.error)
        except BaseException as error:
            if not isinstance(error, self.error):
                raise
            h = self.part(x)
        return self.last(h)
