"""The calls of a compiled graph that is about to run: their names, modules and stacks, in the frame that runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

import torch

from msprobe.core.call_stack import StackNode
from msprobe.graph.call_sites import frame_scope
from msprobe.graph.graph_plan import REGISTRY, GraphPlan, Site, TracedCall

if TYPE_CHECKING:
    from msprobe.dispatch.capture import Capture
    from msprobe.dispatch.modules import ModuleHooks


class RunCall(NamedTuple):
    """Beginning or end of a call in one run of a graph.

    Attributes
    ----------
    call : TracedCall
    module : nn.Module or None
        The module, if it is a module call and the frame still has it.
    base : str or None
        Name of a call that begins, None where one ends.
    stack_of : callable
        Returns the call stack, whatever frame it is given.
    """

    call: TracedCall
    module: torch.nn.Module | None
    base: str | None
    stack_of: Callable[[FrameType | None], StackNode]


class RunCalls:
    """Finds them.

    Parameters
    ----------
    capture : Capture
    modules : ModuleHooks
        Knows which modules are recorded, and their names.
    """

    def __init__(self, capture: Capture, modules: ModuleHooks) -> None:
        self._capture = capture
        self._modules = modules
        self._stacks: dict[tuple[int, int], StackNode] = {}

    def forget_step(self) -> None:
        """The step is over."""
        self._stacks.clear()

    def of(self, plan: GraphPlan, frame: FrameType | None) -> Iterator[RunCall]:
        """Beginnings and ends of the calls of a graph that ``frame`` runs, in order; not those without a name.

        Each is looked up when it is asked for: a module's name depends on the modules that have begun before.
        """
        outer = frame.f_back if frame is not None else None
        around = self._capture.stack_node(outer) if self._capture.keeps_stacks else None
        scope = frame_scope(frame)
        for number, begins in plan.events:
            call = REGISTRY.calls[number]
            module = call.module.resolve(scope) if call.module is not None else None
            base = None
            if begins:
                base = call.base if call.module is None else self._modules.name_of(module)
            if base is not None or not begins:
                yield RunCall(call, module, base, partial(self._stack, call.site, around))

    def _stack(self, site: Site, around: StackNode | None, _frame: FrameType | None) -> StackNode:
        key = id(site), id(around)
        found = self._stacks.get(key)
        if found is None:
            found = self._stacks[key] = self._capture.stacks.traced(site.codes, site.offsets, around)
        return found
