"""Notice each forward call of a generating model, whether or not it is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from msprobe.dispatch.inert import ModuleHook


class BeforeForward(ModuleHook):
    """Forward pre-hook that runs an action; a compiler that traces the call sees nothing."""

    __slots__ = ("_action",)

    def __init__(self, model: torch.nn.Module, action: Callable[[], None]) -> None:
        super().__init__(model)
        self._action = action

    def __call__(self, _module: torch.nn.Module, _args: Any) -> None:
        """The call begins."""
        if not torch.compiler.is_compiling():
            self._action()
