"""What the probes of compiled kernels do at run time (level L2): names, selection, records.

A half of a graph is straight-line code, so all its kernels are named when it is entered, in the order of its nodes:
the compiler may move probes. The API and module calls that they come from are named when the graph of Dynamo is
entered, as in an eager run, to be their parents.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import torch

from msprobe.core.open_call import OpenCall
from msprobe.dispatch.aten_mode import EnclosingMode
from msprobe.dispatch.kernel_capture import EnclosingApi, KernelCapture, OpenKernel
from msprobe.dispatch.modules import ModuleHooks
from msprobe.graph.call_template import fill
from msprobe.graph.graph_plan import GraphPlan
from msprobe.graph.kernel_registry import INPUTS, KERNELS, OUTPUTS, KernelGraph
from msprobe.graph.run_calls import RunCalls

LATE = "kernels of a compiled backward pass whose forward pass was not recorded in this step"


class KernelRun(NamedTuple):
    """One run of a graph of Dynamo, kept until the step ends: a backward pass may come at any time."""

    plan: GraphPlan
    epoch: int
    parents: dict[int, EnclosingApi | OpenCall]


class OpenGraph(NamedTuple):
    """A half of a graph while it runs."""

    graph: KernelGraph
    kernels: list[OpenKernel | None]


class _Running(threading.local):
    """Of this thread: the run of a graph of Dynamo that is going on, and the halves that are running."""

    def __init__(self) -> None:
        self.runs: list[KernelRun | None] = []
        self.graphs: list[OpenGraph] = []


class KernelRecorder:
    """Makes the records of compiled kernels.

    Parameters
    ----------
    capture : KernelCapture
    modules : ModuleHooks
        Knows the names of modules.
    mode : EnclosingMode
        Sees the kernels that are not compiled.

    Attributes
    ----------
    runs : Counter
        How often each graph of Dynamo has run in this step, by its number.
    """

    def __init__(self, capture: KernelCapture, modules: ModuleHooks, mode: EnclosingMode) -> None:
        self.capture = capture
        self.mode = mode
        self._modules = modules
        self._calls = RunCalls(capture, modules)
        self.runs: Counter[int] = Counter()
        self._runs: dict[int, KernelRun] = {}
        self._numbers = itertools.count()
        self._running = _Running()

    def forget_step(self) -> None:
        """The step is over: what comes of its runs is too late."""
        self._runs.clear()
        self._calls.forget_step()
        self.runs.clear()

    # -- a graph of Dynamo

    def enter(self, plan: GraphPlan, frame: FrameType | None) -> int:
        """A graph is about to run in ``frame``; returns the number of its run."""
        capture = self.capture
        for reason, count in plan.left_out.items():
            capture.coverage.not_recorded[reason] += count
        self.runs[plan.number] += 1
        run = KernelRun(plan, capture.epoch, {})
        with torch._C.DisableTorchFunction():
            self._name_calls(run, frame)
        number = next(self._numbers)
        self._runs[number] = run
        self._running.runs.append(run)
        return number

    def leave(self) -> None:
        """The graph has returned, or raised."""
        self._running.runs.pop()

    def _name_calls(self, run: KernelRun, frame: FrameType | None) -> None:
        for call, module, base, stack_of in self._calls.of(run.plan, frame):
            if base is not None:
                run.parents[call.number] = opened = self.capture.enclose(base, stack_of, None, module)
                if isinstance(opened, OpenCall):
                    self.capture.threads.modules.append(opened)
            elif module is not None:
                self._modules.pop(module)

    # -- a half of it

    def begin(self, graph: KernelGraph, number: int | None) -> bool:
        """A half is about to run; False if nothing of it is recorded.

        Parameters
        ----------
        graph : KernelGraph
        number : int or None
            Of the run that a backward half belongs to; None for the forward half of the run that is going on.
        """
        capture = self.capture
        if not capture.running or capture.writer is None:
            return False
        run = self._runs.get(number) if number is not None else self._running.runs[-1] if self._running.runs else None
        if run is None:
            capture.coverage.not_recorded[LATE] += len(graph.nodes)
            return False
        for reason, count in graph.left_out.items():
            capture.coverage.not_recorded[reason] += count
        place = partial(capture.place_kernel, backward=graph.backward)
        parents = run.parents
        kernels = [place(node.kernel, None if node.call is None else parents.get(node.call)) for node in graph.nodes]
        self._running.graphs.append(OpenGraph(graph, kernels))
        return True

    def end(self, *, returned: bool) -> None:
        """The half has returned or raised: add its records, in the order of its nodes."""
        graph, kernels = self._running.graphs.pop()
        capture = self.capture
        if not returned or capture.writer is None:
            capture.coverage.not_recorded["kernel in a compiled graph that raised"] += sum(map(bool, kernels))
            return
        for node, opened in zip(graph.nodes, kernels, strict=True):
            if opened is None or opened.epoch != capture.epoch:
                continue
            opened.record["fx"] = self._place(graph, node.name, opened.api, node.module)
            capture.keep_kernel(opened)

    def _place(self, graph: KernelGraph, node: str, api: EnclosingApi | None, module: str) -> dict[str, Any]:
        place: dict[str, Any] = {"graph": graph.plan.number, "node": node}
        if api is not None:
            place["api"] = api.call.backward() if graph.backward else api.call.forward
        if module:
            place["module"] = module
        return place

    # -- probes

    def probe(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int], graph: int, index: int, part: int) -> None:
        """A probe is reached. Never raises."""
        running = self._running.graphs
        if not running or running[-1].graph.number != graph:
            return
        opened = running[-1].kernels[index]
        if opened is None:
            return
        node = KERNELS.graphs[graph].nodes[index]
        with torch._C.DisableTorchFunction(), torch.no_grad():
            try:
                values = [tensor.detach() for tensor in tensors]
                if part != OUTPUTS:
                    args, kwargs = fill(node.args, values, numbers), fill(node.kwargs, values, numbers)
                    self.capture.read_arguments(opened, args, kwargs)
                if part != INPUTS:
                    skipped = (0, 0) if part == OUTPUTS else (node.tensors, node.numbers)
                    results = fill(node.output, values[skipped[0] :], numbers[skipped[1] :])
                    self.capture.read_results(opened, results)
            except Exception as error:  # noqa: BLE001 - hook boundary
                self.capture.failed(f"compiled kernel {node.name}", error)
