"""What is known of a compiled graph before it runs: its calls, in order, and what each probe reads."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch

from msprobe.graph.call_template import Template
from msprobe.graph.sharded_values import Layouts

if TYPE_CHECKING:
    from msprobe.graph.recorder import GraphRecorder


@dataclass(frozen=True, slots=True)
class Site:
    """Where a call is written: code objects and instruction offsets inside the compiled frame, innermost first."""

    codes: tuple[CodeType, ...]
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModuleRef:
    """Which module a traced module call belongs to, found anew at each run: repeated blocks share one graph.

    Attributes
    ----------
    source : code object or None
        Expression over the locals ``L`` and globals ``G`` of the compiled frame, as Dynamo's guards have it.
    traced : weak reference
        The module at the time of tracing, for a module that no expression reaches.
    """

    source: CodeType | None
    traced: weakref.ref[torch.nn.Module]

    def resolve(self, scope: Mapping[str, Any]) -> torch.nn.Module | None:
        """The module in the run whose frame ``scope`` describes."""
        if self.source is not None:
            try:
                found = eval(self.source, {"__builtins__": {}}, dict(scope))  # noqa: S307 - Dynamo's own guard text
            except (NameError, KeyError, AttributeError, IndexError, TypeError):
                found = None
            if isinstance(found, torch.nn.Module):
                return found
        return self.traced()


@dataclass(frozen=True, slots=True)
class TracedCall:
    """One API or module call of a graph, seen when it began.

    Attributes
    ----------
    number : int
        Of all calls of this process.
    base : str
        ``Prefix.name`` of an API; empty for a module.
    module : ModuleRef or None
    args, kwargs : Template
    tensors, numbers : int
        How many tensors and symbolic numbers the arguments hold.
    site : Site
    """

    number: int
    base: str
    module: ModuleRef | None
    args: Template
    kwargs: Template
    tensors: int
    numbers: int
    site: Site


@dataclass(frozen=True, slots=True)
class TracedResult:
    """How a traced call ended.

    Attributes
    ----------
    output : Template
    node : str
        Name of the FX node that computes it; empty if there is none of its own.
    mutates : bool
        Whether the call may write to its arguments, so that they must be read before it.
    """

    output: Template
    node: str
    mutates: bool


class Reading(Enum):
    """Which values a probe is given."""

    INPUTS = "arguments"
    OUTPUTS = "results"
    CALL = "arguments, then results"
    GRADIENTS = "gradients of results, then of arguments"


@dataclass(frozen=True, slots=True)
class Event:
    """What one probe in a graph stands for; the graph holds only its number.

    Attributes
    ----------
    call : int
        Number of the call.
    reading : Reading
    inputs, outputs : tuple of bool
        Of a backward pass: which results and which arguments have a gradient.
    layouts : tuple
        What the distributed tensors among the values are; see :mod:`msprobe.graph.sharded_values`.
    """

    call: int
    reading: Reading
    inputs: tuple[bool, ...] = ()
    outputs: tuple[bool, ...] = ()
    layouts: Layouts = ()


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """One probed graph.

    Attributes
    ----------
    number : int
    root : code object
        Of the compiled frame; the code that runs has its name and file.
    events : tuple of (int, bool)
        Beginnings (True) and ends (False) of calls, in order.
    low_risk : int
        API calls left out by ``risk_level``.
    left_out : mapping of str to int
        Other calls that are not recorded, by reason.
    """

    number: int
    root: CodeType
    events: tuple[tuple[int, bool], ...]
    low_risk: int
    left_out: Mapping[str, int] = field(default_factory=dict)


class ProbeRegistry:
    """Calls and events of all probed graphs of the process: what the numbers in a graph mean.

    A graph outlives a debugger, so this does, too.

    Attributes
    ----------
    calls, results, events, graphs
        By number; ``results`` only of calls that have ended.
    backward_order : dict of int to int
        When autograd came to the gradients of a call, by its number, when its backward graph was traced last.
    recorder : callable
        Returns what probes report to, None if there is nothing.
    """

    def __init__(self) -> None:
        self.calls: list[TracedCall] = []
        self.results: dict[int, TracedResult] = {}
        self.events: list[Event] = []
        self.graphs: list[GraphPlan] = []
        self.backward_order: dict[int, int] = {}
        self._order = itertools.count()
        self._numbers: dict[Event, int] = {}
        self.recorder: Callable[[], GraphRecorder | None] = _nobody

    def serve(self, recorder: GraphRecorder) -> None:
        """Send what probes read to ``recorder`` from now on; it is not kept alive."""
        self.recorder = weakref.ref(recorder)

    def gradients_traced(self, call: int) -> None:
        """Autograd has come to the gradients of ``call`` while a backward graph is traced."""
        self.backward_order[call] = next(self._order)

    def event(self, event: Event) -> int:
        """Number of ``event``, the same each time."""
        number = self._numbers.get(event)
        if number is None:
            number = self._numbers[event] = len(self.events)
            self.events.append(event)
        return number


def _nobody() -> None:
    """There is no recorder yet."""


REGISTRY = ProbeRegistry()
