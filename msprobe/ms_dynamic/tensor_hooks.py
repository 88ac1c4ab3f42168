"""Gradients of single tensors, and the backward pass that is running."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from mindspore import Tensor

from msprobe.ms_dynamic.engine import backward_pass, when_pass_ends

if TYPE_CHECKING:
    from msprobe.ms_dynamic.capture import MindsporeCapture


class MindsporeHooks:
    """What MindSpore tells about gradients; see :class:`msprobe.core.saving.TensorHooks`."""

    def __init__(self, capture: MindsporeCapture) -> None:
        self._capture = capture

    def needs_gradient(self, value: Any) -> bool | None:
        """Whether a tensor is part of a graph that gradients flow through; None if ``value`` is no tensor."""
        return value._grad_node is not None if isinstance(value, Tensor) else None

    def watch(self, tensor: Tensor, arrived: Callable[[Any], None]) -> Callable[[], None]:
        """Call ``arrived`` with each gradient of ``tensor``; returns what ends that."""
        remove: Callable[[], None] = tensor.register_hook(_hook(arrived)).remove
        return remove

    def backward_pass(self) -> int:
        """Number of the backward pass that is running, -1 when there is none."""
        return backward_pass()

    def at_end(self, action: Callable[[], None]) -> None:
        """Call ``action`` when the running backward pass is over."""
        when_pass_ends(action)

    def hidden(self) -> AbstractContextManager[Any]:
        """Inside, calls of MindSpore are not recorded."""
        return self._capture.hidden()


def _hook(arrived: Callable[[Any], None]) -> Callable[[Any], None]:
    """A function: MindSpore takes no other callable as a hook."""

    def hook(gradient: Any) -> None:
        arrived(gradient)

    return hook
