"""A call as its gradients see it: where they pass, and what has come so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from msprobe.core.names import CallName
from msprobe.core.open_call import OpenCall
from msprobe.core.selection import Choice


class Part(Protocol):
    """Where a tensor lies in a larger one, whose gradient passes."""

    def cut(self, gradient: Any) -> Any:
        """The tensor's part of the larger one's gradient."""


class Slot(NamedTuple):
    """One gradient that passes a node: at ``number`` of its tuple, for argument or result ``position``."""

    number: int
    position: int
    geometry: Part | None = None


class Span:
    """The gradients of one call, over all backward passes through it.

    Parameters
    ----------
    opened : OpenCall
    epoch : int
        Step in which the call ran.
    results, arguments : int
        How many tensors it returned, and was given.

    Attributes
    ----------
    has_parameters : bool
        Whether the call is that of a module with parameters of its own that need gradients.
    passes : int
        Backward passes so far.
    late_pass : int
        Backward pass that was counted as too late.
    gathering : Gathering or None
        The running backward pass.
    total : int
        Hooks that fire in one pass.
    contributions : dict
        Argument position -> number of gradients that add up to it.
    watch : object or None
        What the task's watcher knows about the pass before it has a name.
    """

    __slots__ = (
        "arguments",
        "call",
        "choice",
        "contributions",
        "epoch",
        "gathering",
        "has_parameters",
        "late_pass",
        "parent",
        "passes",
        "results",
        "total",
        "watch",
    )

    def __init__(self, opened: OpenCall, epoch: int, results: int, arguments: int) -> None:
        self.call: CallName = opened.call
        self.parent = opened.parent
        self.choice: Choice = opened.choice
        self.epoch = epoch
        self.has_parameters = False
        self.late_pass = -2  # of no backward pass
        self.results = results
        self.arguments = arguments
        self.passes = 0
        self.gathering: Gathering | None = None
        self.total = 0
        self.contributions: dict[int, int] = {}
        self.watch: Any = None

    def expect(self, slots: Sequence[Slot]) -> None:
        """A node sends gradients to these arguments in each backward pass."""
        for slot in slots:
            self.contributions[slot.position] = self.contributions.get(slot.position, 0) + 1


class Gathering:
    """One backward pass over a span of several nodes.

    Attributes
    ----------
    number : int
        Of the backward pass.
    prefix : str or None
        Beginning of the names of tensor files, None when there are none.
    inputs, outputs : list
        Entries of the gradients of results, and of arguments.
    waiting : int
        Hooks that have not fired yet.
    missing : dict
        Argument position -> gradients that have not come yet.
    sums : dict
        Argument position -> sum of those that have come.
    watched : object or None
        What the task's watcher knows about it.
    """

    __slots__ = ("inputs", "missing", "name", "number", "outputs", "prefix", "sums", "waiting", "watched")

    def __init__(self, span: Span, name: str, prefix: str | None, number: int) -> None:
        self.name = name
        self.prefix = prefix
        self.number = number
        self.inputs: list[Any] = [None] * span.results
        self.outputs: list[Any] = [None] * span.arguments
        self.waiting = span.total
        self.missing = dict(span.contributions)
        self.sums: dict[int, Any] = {}
        self.watched: Any = None
