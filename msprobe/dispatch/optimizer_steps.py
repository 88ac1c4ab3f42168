"""Told when an optimiser step begins and ends, also if that is asked for, or ended, inside such a step.

torch goes through its tables of hooks while it calls them, and raises in the user's program if one has changed
meanwhile. So a hook is added or removed only while no step is at that table, and does nothing until then.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from torch.optim import Optimizer
from torch.optim import optimizer as torch_steps
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

_STEP = Optimizer.profile_hook_step(lambda: None).__code__  # what torch makes of every `step`, whatever its class
_TELLS_ITS_HOOK = {"pre_hook", "post_hook", "out"} <= {*_STEP.co_varnames}


class OptimizerSteps:
    """Hooks on the steps of all optimisers.

    Parameters
    ----------
    begins : callable
        Called with the optimiser, the arguments of ``step`` and the frame that runs it.
    ends : callable
        Called when the step is over.
    """

    def __init__(self, begins: Callable[[Any, Any, Any, FrameType], None], ends: Callable[[], None]) -> None:
        self._begins, self._ends = begins, ends
        self._watching = False
        self._handles: list[Any] = []

    def watch(self) -> FrameType | None:
        """Tell from now on.

        Returns
        -------
        FrameType or None
            The frame of an optimiser step that is running in this thread.
        """
        self._watching = True
        tables = (torch_steps._global_optimizer_pre_hooks, torch_steps._global_optimizer_post_hooks)
        if not self._handles and all(map(may_change, tables)):
            self._handles = [
                register_optimizer_step_pre_hook(self._before),
                register_optimizer_step_post_hook(self._after),
            ]
        return _step_in(sys._getframe(1))

    def ignore(self) -> None:
        """Tell no more, and remove the hooks as soon as that is possible: now, or at a later call of this method."""
        self._watching = False
        self._handles = remove_hooks(self._handles)

    def sweep(self) -> None:
        """Remove hooks that :meth:`ignore` had to leave."""
        if not self._watching:
            self.ignore()

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._watching:
            self._begins(optimizer, args, kwargs, sys._getframe(1))

    def _after(self, *_: Any) -> None:
        if self._watching:
            self._ends()


def remove_hooks(handles: list[Any]) -> list[Any]:
    """Remove hooks of optimisers by their handles; returns the handles of those that cannot be removed now."""
    left = []
    for handle in handles:
        table = handle.hooks_dict_ref()
        if table is None or may_change(table):
            handle.remove()
        else:
            left.append(handle)
    return left


def may_change(table: Mapping[int, Any]) -> bool:
    """Whether a table of hooks may get or lose an entry: no step, in any thread, has hooks of it still to call."""
    last = next(reversed(table.values()), None)  # type: ignore[call-overload] # an OrderedDict
    for step in _running_steps():
        hook = _current_hook(step)
        if not _TELLS_ITS_HOOK or (hook is not last and any(hook is other for other in table.values())):
            return False
    return True


def _running_steps() -> list[FrameType]:
    """Frames of the optimiser steps of all threads. None of them is our own: that would be a cycle."""
    frames = sys._current_frames()
    frames[threading.get_ident()] = sys._getframe(1)
    found = []
    for frame in frames.values():
        step = _step_in(frame)
        while step is not None:
            found.append(step)
            step = _step_in(step.f_back)
    return found


def _current_hook(step: FrameType) -> Any:
    """The hook that a step is calling, or in its body the last one that it has called."""
    state = step.f_locals
    return state.get("post_hook") if "out" in state else state.get("pre_hook")


def _step_in(frame: FrameType | None) -> FrameType | None:
    while frame is not None and frame.f_code is not _STEP:
        frame = frame.f_back
    return frame
