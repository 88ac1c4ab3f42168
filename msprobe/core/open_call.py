"""A call of an API or a module between its begin and its end."""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING, Any

from msprobe.core.names import CallName
from msprobe.core.selection import NOTHING, Choice

if TYPE_CHECKING:
    from msprobe.core.call_stack import StackNode


class OpenCall:
    """State of one call while it runs. It dies with the call, so it may hold frames and graph nodes.

    Attributes
    ----------
    call : CallName
    parent : CallName or str or None
        Enclosing module call, or the phase (``"optimizer"``, ``"clip_grad"``) that the call belongs to.
    choice, expansion : Choice
        What is recorded of it, and what calls inside inherit.
    record : dict
        The forward record so far.
    edges : object or None
        What the framework keeps of the inputs to find their gradients; None when they are not watched.
    node : StackNode or None
        Its call stack.
    since : int
        Autograd sequence number when it began.
    frame, outer : FrameType, StackNode
        Of a module call: the frame that runs it, and the stack outside.
    epoch : int
        Step in which it began.
    handled : int
        id of the exception that was being handled when it began.
    switched_mode : bool
        Whether this module call put the function mode on its thread's stack, or took it off.
    trusted : bool
        Whether version counters are trusted while this module runs.
    wants_gradients : bool
        Whether it has a backward record.
    watched : object or None
        What the task's watcher knows about it.
    """

    # Defaults belong to the class: most calls never set most of them, and a call is begun thousands of times a step.
    expansion: Choice = NOTHING
    record: dict[str, Any] | None = None
    edges: Any = None
    since = 0
    frame: FrameType | None = None
    outer: StackNode | None = None
    handled = 0
    switched_mode = False
    trusted = False
    watched: Any = None
    wants_gradients = False
    choice: Choice = NOTHING

    def __init__(
        self,
        call: CallName,
        parent: CallName | str | None,
        epoch: int = 0,
        module: Any = None,
        node: StackNode | None = None,
    ) -> None:
        self.call = call
        self.parent = parent
        self.epoch = epoch
        self.module = module
        self.node = node
