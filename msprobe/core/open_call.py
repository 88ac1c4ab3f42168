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

    __slots__ = (
        "call",
        "choice",
        "edges",
        "epoch",
        "expansion",
        "frame",
        "handled",
        "module",
        "node",
        "outer",
        "parent",
        "record",
        "since",
        "switched_mode",
        "trusted",
        "wants_gradients",
        "watched",
    )

    def __init__(self, call: CallName, parent: CallName | str | None) -> None:
        self.call = call
        self.parent = parent
        self.choice: Choice = NOTHING
        self.expansion: Choice = NOTHING
        self.record: dict[str, Any] | None = None
        self.edges: Any = None
        self.node: StackNode | None = None
        self.since = 0
        self.epoch = 0
        self.module: Any = None
        self.frame: FrameType | None = None
        self.outer: StackNode | None = None
        self.handled = 0
        self.switched_mode = False
        self.trusted = False
        self.wants_gradients = False
        self.watched: Any = None
