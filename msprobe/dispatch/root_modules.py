"""Find the models of a program that names none: modules with parts that are called from outside any module."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from msprobe.dispatch.hook_ids import HookIds
from msprobe.dispatch.operands import local_variable

_CALL = torch.nn.Module._call_impl.__code__


class RootModules:
    """The roots found so far, in the order in which they were first called: their index in record names.

    A loss function or another module without parts is no root: a root itself is never recorded, so there would be
    nothing to record of it.
    """

    def __init__(self) -> None:
        self._roots: list[weakref.ref[torch.nn.Module]] = []
        self._known: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._record: Callable[[int, torch.nn.Module], None] | None = None
        self._ids = HookIds()
        self._handles: list[Any] = []

    def watch(self, record: Callable[[int, torch.nn.Module], None]) -> None:
        """Call ``record`` with index and module: for every root known already, and for each one found from now on.

        A root is recorded before its parts are called.
        """
        self._record = record
        for number, known in enumerate(self._roots):
            root = known()
            if root is not None:
                record(number, root)
        self._handles = self._ids.register((lambda: register_module_forward_pre_hook(self._called),))

    def ignore(self) -> None:
        """End :meth:`watch`."""
        self._record = None
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def offer(self, module: torch.nn.Module, frame: FrameType) -> None:
        """Take ``module`` for a root if it is one; ``frame`` is that of its call, which has just begun."""
        if self._record is None or module in self._known or any(True for _ in callers_of(module, frame)):
            return
        parts = list(module.modules())
        self._known.update(parts)
        if len(parts) > 1:
            self._roots.append(weakref.ref(module))
            self._record(len(self._roots) - 1, module)

    def _called(self, module: torch.nn.Module, _args: Any) -> None:
        if not torch.compiler.is_compiling() and module not in self._known:
            self.offer(module, sys._getframe(1))


def callers_of(module: torch.nn.Module, frame: FrameType | None) -> Iterator[torch.nn.Module]:
    """The other modules whose calls are running around ``frame``, which belongs to a call of ``module``."""
    while frame is not None:
        if frame.f_code is _CALL:
            caller = local_variable(frame, "self")
            if isinstance(caller, torch.nn.Module) and caller is not module:
                yield caller
        frame = frame.f_back
