"""What a framework's autograd engine tells about the backward pass that is running."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol


class BackwardPasses(Protocol):
    """The running backward pass, as a framework shows it."""

    def backward_pass(self) -> int:
        """Number of the backward pass that is running, -1 when there is none."""

    def at_end(self, action: Callable[[], None]) -> None:
        """Call ``action`` when the running backward pass is over."""

    def hidden(self) -> AbstractContextManager[Any]:
        """Inside, calls of the framework are not recorded."""
