"""What is known of the kernels of a compiled graph before it runs (level L2), and what their probes report to."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msprobe.graph.call_template import Mapped, Sequenced, Template
from msprobe.graph.graph_plan import GraphPlan

if TYPE_CHECKING:
    from msprobe.dispatch.kernel_capture import Kernel
    from msprobe.graph.kernel_recorder import KernelRecorder

BOTH, INPUTS, OUTPUTS = range(3)
"""What a probe reads: arguments and results of the operator, or one of them."""


@dataclass(frozen=True, slots=True)
class KernelNode:
    """One operator of a compiled graph.

    Attributes
    ----------
    name : str
        Of its FX node.
    kernel : Kernel
    args, kwargs, output : Template
    tensors, numbers : int
        How many tensors and symbolic numbers the arguments hold.
    call : int or None
        Number of the traced call that it comes from: an API call, or a module call where there is none.
    module : str
        Path of the module whose code it comes from, as the compiled function reaches it; empty if there is none.
    """

    name: str
    kernel: Kernel
    args: Sequenced
    kwargs: Mapped
    output: Template
    tensors: int
    numbers: int
    call: int | None
    module: str


@dataclass(frozen=True, slots=True)
class KernelGraph:
    """The forward or the backward half of a compiled graph.

    Attributes
    ----------
    number : int
        What its probes call it.
    plan : GraphPlan
        The graph of Dynamo that it comes from.
    backward : bool
    nodes : tuple of KernelNode
        In order.
    left_out : mapping of str to int
        Operators without probes, by reason.
    """

    number: int
    plan: GraphPlan
    backward: bool
    nodes: tuple[KernelNode, ...]
    left_out: Mapping[str, int]


class KernelRegistry:
    """All instrumented halves of the process: a graph outlives a debugger, so this does, too.

    Attributes
    ----------
    graphs : list of KernelGraph
    recorder : callable
        Returns what probes report to, None if there is nothing.
    """

    def __init__(self) -> None:
        self.graphs: list[KernelGraph] = []
        self.recorder: Callable[[], KernelRecorder | None] = _nobody

    def probes_of(self, plan: GraphPlan) -> int:
        """How many kernels of a graph of Dynamo have probes."""
        return sum(len(graph.nodes) for graph in self.graphs if graph.plan is plan)

    def serve(self, recorder: KernelRecorder) -> None:
        """Send what probes read to ``recorder`` from now on; it is not kept alive."""
        self.recorder = weakref.ref(recorder)


def _nobody() -> None:
    """There is no recorder yet."""


KERNELS = KernelRegistry()
