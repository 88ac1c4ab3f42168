"""Kernels of a compiled graph (level L2): the operators that AOTAutograd has left, each with a probe behind it.

The forward and the backward graph are instrumented apart, at the moment when each is compiled. What a probe reads, and
which API call of the user the operator comes from, stays outside the graph.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from msprobe.dispatch.aten_mode import describe_kernel
from msprobe.dispatch.kernel_capture import Kernel
from msprobe.graph.call_template import Mapped, Sequenced, TemplateBuilder
from msprobe.graph.graph_bodies import nodes_in_order
from msprobe.graph.graph_plan import GraphPlan
from msprobe.graph.kernel_registry import BOTH, INPUTS, KERNELS, OUTPUTS, KernelGraph, KernelNode
from msprobe.graph.probe_ops import kernel_probe
from msprobe.graph.traced_call import begin_call, end_call

_CUSTOM = "custom"  # key of a node's ``meta`` that reaches what becomes of the node, also in the backward graph
_CALL = "msprobe_call"
_FIRST_STEPS = re.compile(r"L\['\w+'\]\.?|_modules\['([^']*)'\]")


def label_calls(module: GraphModule) -> None:
    """Write into each node of a marked graph which traced call it is part of, where compilers leave it in place."""
    open_calls: list[Any] = []
    for node in nodes_in_order(module):
        if node.target is begin_call:
            open_calls.append(node.args[0])
        elif node.target is end_call:
            if node.args[0] in open_calls:
                del open_calls[open_calls.index(node.args[0]) :]
        elif open_calls:
            node.meta[_CUSTOM] = {**(node.meta.get(_CUSTOM) or {}), _CALL: open_calls[-1]}


def probe_kernels(graph: Graph, plan: GraphPlan, *, backward: bool) -> KernelGraph:
    """Put a probe behind each operator of a graph of ATen operators.

    Parameters
    ----------
    graph : torch.fx.Graph
        Changed in place; its ``nodes`` hold example values under ``val``.
    plan : GraphPlan
        Of the graph of Dynamo.
    backward : bool
        Whether it computes gradients.

    Returns
    -------
    KernelGraph
        What the probes stand for, registered under its number.
    """
    number = len(KERNELS.graphs)
    found: list[KernelNode] = []
    left_out: Counter[str] = Counter()
    for node in list(graph.nodes):
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            left_out[f"kernels inside the higher-order operator {node.target.name()} of a compiled graph"] += 1
            continue
        kernel = describe_kernel(node.target) if node.op == "call_function" else None
        if kernel is None or node.target is kernel_probe:
            continue
        probed = _Probed(node, kernel)
        if probed.reads_anything:
            probed.insert(graph, (number, len(found)))
            found.append(probed.described())
    kernels = KernelGraph(number, plan, backward, tuple(found), dict(left_out))
    KERNELS.graphs.append(kernels)
    return kernels


class _Values(TemplateBuilder):
    """Builds templates of the nodes of a graph that AOTAutograd has made."""

    def example(self, node: Node) -> Any:
        """What the node computes, without values."""
        example = node.meta.get("val")
        return None if isinstance(example, (tuple, list, torch.SymFloat, torch.SymBool)) else example


class _Probed:
    """An operator that gets a probe."""

    def __init__(self, node: Node, kernel: Kernel) -> None:
        self._node = node
        self._kernel = kernel
        self._inputs, self._outputs = _Values(), _Values()
        self._args = self._inputs.node(tuple(node.args))
        self._kwargs = self._inputs.node(dict(node.kwargs))
        self._last = node
        self._output = self._outputs.node(self._results())

    @property
    def reads_anything(self) -> bool:
        """Whether there is a tensor to read."""
        return bool(self._inputs.tensors or self._outputs.tensors)

    def _results(self) -> list[Any]:
        """Nodes of the results: the operator's, those that unpack it, or what it has written to."""
        node = self._node
        if not self._kernel.returns:
            written = self._kernel.written
            return [node.kwargs.get(key) if isinstance(key, str) else node.args[key] for key in written]
        if not isinstance(node.meta.get("val"), (tuple, list)):
            return [node]
        items: list[Any] = [None] * len(node.meta["val"])
        users = set(node.users)
        for after in node.graph.nodes:  # in order
            if after in users and after.target is operator.getitem:
                items[after.args[1]] = self._last = after
        return items

    def insert(self, graph: Graph, place: tuple[int, int]) -> None:
        """Put the probe into the graph; what is written to is read before, too."""
        arguments = self._inputs.tensors, self._inputs.numbers
        results = self._outputs.tensors, self._outputs.numbers
        if self._kernel.written:
            with graph.inserting_before(self._node):
                graph.call_function(kernel_probe, (*arguments, *place, INPUTS))
        else:
            results = [*arguments[0], *results[0]], [*arguments[1], *results[1]]
        with graph.inserting_after(self._last):
            graph.call_function(kernel_probe, (*results, *place, OUTPUTS if self._kernel.written else BOTH))

    def described(self) -> KernelNode:
        """What the probe stands for."""
        meta = self._node.meta
        counts = len(self._inputs.tensors), len(self._inputs.numbers)
        call = (meta.get(_CUSTOM) or {}).get(_CALL)
        modules = meta.get("fwd_nn_module_stack") or meta.get("nn_module_stack")
        assert isinstance(self._args, Sequenced)  # noqa: S101 - of a tuple
        assert isinstance(self._kwargs, Mapped)  # noqa: S101 - of a dict
        return KernelNode(
            self._node.name, self._kernel, self._args, self._kwargs, self._output, *counts, call, _path(modules)
        )


def _path(modules: Mapping[str, Any] | None) -> str:
    """Path of the innermost module, from Dynamo's expression for it."""
    if not modules:
        return ""
    expression = str(list(modules.values())[-1][0])
    return _FIRST_STEPS.sub(lambda found: found.group(1) or "", expression).strip(".")
