"""What MindSpore's autograd engine tells about itself."""

from __future__ import annotations

from collections.abc import Callable

from mindspore._c_expression import PyNativeExecutor_


def records_gradients() -> bool:
    """Whether calls of this thread become part of a graph now."""
    return bool(PyNativeExecutor_.get_instance().requires_grad())


def backward_pass() -> int:
    """Number of the backward pass that is running in this thread, -1 when there is none."""
    return int(PyNativeExecutor_.get_instance().get_current_autodiff_engine_id())


def when_pass_ends(action: Callable[[], None]) -> None:
    """Call ``action`` when the running backward pass is over."""
    PyNativeExecutor_.get_instance().queue_backward_final_callback(action)
