"""Gradients of single tensors, and the backward pass that is running."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from msprobe.dispatch.inert import VanishingHook


class TorchHooks:
    """What PyTorch tells about gradients; see :class:`msprobe.core.saving.TensorHooks`."""

    backward_pass = staticmethod(torch._C._current_graph_task_id)  # asked at each node: no function of ours between
    hidden = staticmethod(torch._C.DisableTorchFunction)

    def needs_gradient(self, value: Any) -> bool | None:
        """Whether a tensor needs a gradient; None if ``value`` is no tensor."""
        return value.requires_grad if isinstance(value, torch.Tensor) else None

    def watch(self, tensor: torch.Tensor, arrived: Callable[[Any], None]) -> Callable[[], None]:
        """Call ``arrived`` with each gradient of ``tensor``; returns what ends that."""
        remove: Callable[[], None] = tensor.register_hook(_Arrived(arrived)).remove
        return remove

    def at_end(self, action: Callable[[], None]) -> None:
        """Call ``action`` when the running backward pass is over."""
        torch.autograd.Variable._execution_engine.queue_callback(action)


class _Arrived(VanishingHook):
    """Hook of one saved tensor. It returns nothing, so the gradient stays as it is."""

    __slots__ = ("_tell",)
    __torch_unserializable__ = True  # torch need not warn when the tensor is pickled

    def __init__(self, tell: Callable[[Any], None]) -> None:
        self._tell = tell

    def __call__(self, gradient: torch.Tensor) -> None:
        if not torch.compiler.is_compiling():
            self._tell(gradient)
