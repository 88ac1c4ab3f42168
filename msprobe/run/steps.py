"""Where the steps of a script begin and end that calls nothing of msprobe.

A step begins with the first module call, so that building the model, reading data and what an optimiser does on its
own are not in it. It ends after an optimiser step, or, with ``--step-on``, before the next call of a module class.
"""

from __future__ import annotations

import gc
import logging
import sys
import weakref
from types import FrameType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from msprobe.core.interruptions import pass_on_interruption
from msprobe.dispatch.inert import VanishingHook
from msprobe.dispatch.optimizer_steps import remove_hooks
from msprobe.pytorch import PrecisionDebugger
from msprobe.run.scaler import SkippedSteps
from msprobe.run.step_class import StepClass

_LOG = logging.getLogger("msprobe")
_in_backward = torch._C._current_graph_task_id


class ScriptSteps:
    """Calls start, stop and step in the place of the script.

    Parameters
    ----------
    debugger : PrecisionDebugger
    step_class : StepClass, optional
        ``--step-on``. None: optimiser steps.
    """

    def __init__(self, debugger: PrecisionDebugger, step_class: StepClass | None = None) -> None:
        self._session = debugger._session
        self._step_class = step_class
        self._recording = False  # the step has begun
        self._ending = False  # an optimiser has stepped, and others may follow
        self._uses_modules = False
        self._ended = False
        self._stepped: weakref.WeakSet[Any] = weakref.WeakSet()
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._hooked: weakref.WeakSet[Any] = weakref.WeakSet()
        self._skipped = SkippedSteps(self._optimizer_stepped)
        self._call_hook: Any = None
        self._optimizer_hooks: list[Any] = []
        self._session.adapter.finds_models = True

    def begin(self) -> None:
        """Watch the program from here on."""
        self._await_call()
        if self._step_class is None:
            self._optimizer_hooks.append(register_optimizer_step_pre_hook(self._optimizer_begins))
            self._skipped.watch()

    def end(self) -> None:
        """Watch no longer. Hooks of an optimiser stay, and do nothing, if torch is just calling them one by one."""
        self._ended = True
        self._ignore_calls()
        self._optimizer_hooks = remove_hooks(self._optimizer_hooks)
        self._skipped.ignore()

    # -- hooks: nothing that goes wrong here may reach the program

    def _module_called(self, module: torch.nn.Module, _args: Any) -> None:
        if torch.compiler.is_compiling() or _in_backward() != -1:  # traced, or recomputed
            return
        try:
            self._call_begins(module, sys._getframe(1))
        except Exception as error:  # noqa: BLE001 - hook boundary
            self._give_up(error)

    def _optimizer_begins(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._ended:
            return
        try:
            self._meet(optimizer)
        except Exception as error:  # noqa: BLE001 - hook boundary
            self._give_up(error)

    def _optimizer_stepped(self, optimizer: Any) -> None:
        if self._ended:
            return
        try:
            self._step_ends(optimizer)
        except Exception as error:  # noqa: BLE001 - hook boundary
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        pass_on_interruption(error)
        _LOG.warning("msprobe run: recording ends here: %s: %s", type(error).__name__, error)
        self.end()
        self._session.stop()

    # -- module calls

    def _await_call(self) -> None:
        if self._call_hook is None:
            self._call_hook = register_module_forward_pre_hook(self._module_called)

    def _ignore_calls(self) -> None:
        if self._call_hook is not None:
            self._call_hook.remove()
            self._call_hook = None

    def _call_begins(self, module: torch.nn.Module, frame: FrameType) -> None:
        self._uses_modules = True
        if self._ending or (self._step_class is not None and self._step_class.begins(module, frame)):
            self._next_step()
        if not self._recording:
            self._start()
            self._session.adapter.roots.offer(module, frame)
        if self._step_class is None:
            self._ignore_calls()

    def _start(self) -> None:
        self._recording = True
        self._session.start()

    def _next_step(self) -> None:
        self._recording = self._ending = False
        self._stepped.clear()
        self._session.stop()
        self._session.step()
        if self._session.finished and not self._session.follows_config_file:
            self.end()
        elif self._uses_modules:
            self._await_call()
        else:
            self._start()

    # -- optimiser steps

    def _meet(self, optimizer: Any) -> None:
        """Hook the optimiser itself: a step must not end inside torch's loop over the hooks of all optimisers."""
        if optimizer in self._hooked:
            return
        self._hooked.add(optimizer)
        self._optimizer_hooks.append(optimizer.register_step_post_hook(_AfterStep(self._optimizer_stepped)))
        if optimizer not in self._optimizers:  # looking through all objects takes a while
            self._optimizers.update(_living_optimizers())
            self._optimizers.add(optimizer)

    def _step_ends(self, optimizer: Any) -> None:
        """An optimiser has stepped: the step ends now, or with the other optimisers of the iteration.

        Another optimiser may step right after this one (also one that wraps it), or after further module calls
        (adversarial training). So with several of them alive, the step ends when all have stepped or when a module is
        called.
        """
        self._meet(optimizer)
        if not self._recording and self._uses_modules:
            return  # a new one that follows the optimiser that has just ended the step
        self._stepped.add(optimizer)
        if _in_backward() != -1 or (self._uses_modules and not self._stepped.issuperset(self._optimizers)):
            self._ending = True
            self._await_call()
            return
        if not self._uses_modules and not self._recording:
            _LOG.warning(
                "msprobe run: an optimiser stepped before any torch.nn.Module was called, so step 0 holds nothing; "
                "from here on everything is recorded"
            )
        self._next_step()


class _AfterStep(VanishingHook):
    """Post-hook of one optimiser."""

    __slots__ = ("_action",)

    def __init__(self, action: Any) -> None:
        super().__init__()
        self._action = action

    def __call__(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._action(optimizer)


def _living_optimizers() -> list[Any]:
    """Every optimiser of the process that has parameters of its own, wrappers that borrow them left out."""
    return [thing for thing in gc.get_objects() if issubclass(type(thing), Optimizer) and "param_groups" in vars(thing)]
