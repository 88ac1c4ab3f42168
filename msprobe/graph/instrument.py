"""Turn the marks in a Dynamo graph into a probed graph, or take them out again."""

from __future__ import annotations

import copy
import inspect
import operator
from dataclasses import replace
from types import CodeType
from typing import Any

import torch
from torch._dynamo.source import ConstantSource
from torch.fx import GraphModule, Node

from msprobe.dispatch.api_mode import ApiMode
from msprobe.dispatch.api_table import Api
from msprobe.graph.call_template import TemplateBuilder
from msprobe.graph.graph_bodies import bodies_of, body_name, nodes_in_order, recompile_all
from msprobe.graph.graph_plan import REGISTRY, GraphPlan, Site, TracedCall, TracedResult
from msprobe.graph.mutation import writes_by_name
from msprobe.graph.traced_call import begin_call, end_call
from msprobe.graph.tracing import CALL, PASSED_OVER, TracedGraph

_LOSS = tuple(inspect.signature(torch.nn.functional.cross_entropy).parameters)
_RUN = "msprobe_run"
_BATCHING = {"_vmap_increment_nesting": 1, "_vmap_decrement_nesting": -1}  # torch.vmap begins and ends
_DYNAMO_ATTRIBUTES = ("_param_name_to_source", "_source_to_user_stacks")


def marks_of(module: GraphModule) -> list[Node]:
    """Nodes that mark the beginnings and ends of calls, in order."""
    return [node for node in nodes_in_order(module) if node.target is begin_call or node.target is end_call]


def copy_of(module: GraphModule) -> GraphModule:
    """A copy of a Dynamo graph: Dynamo goes on to use its own. Parameters and submodules are shared."""
    graph = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    output = graph.graph_copy(module.graph, copies)
    if output is not None:
        graph.output(output)
    copied = GraphModule(module, graph)
    copied.meta = copy.copy(module.meta)
    for name in _DYNAMO_ATTRIBUTES:
        if hasattr(module, name):
            setattr(copied, name, getattr(module, name))
    for old, new in copies.items():
        if hasattr(old, "_dynamo_source"):
            new._dynamo_source = old._dynamo_source
    for node in graph.nodes:
        body = body_name(copied, node)
        if body is not None:
            setattr(copied, body, copy_of(getattr(copied, body)))
    return copied


def erase_marks(module: GraphModule) -> None:
    """Take the marks out of a graph."""
    for node in reversed(marks_of(module)):
        node.graph.erase_node(node)
    recompile_all(module)


def mark_unseen(module: GraphModule, mode: ApiMode, seen: TracedGraph) -> None:
    """Mark calls that Dynamo has put into the graph without handing them to the function mode.

    So it does with ``F.tanh`` and ``F.sigmoid``, which torch does not hand over either, and with some functions that a
    module of torch calls. Where in the user's program they are written is not known.
    """
    inside = batched = 0
    for node in nodes_in_order(module):
        if getattr(node.target, "__name__", "") in _BATCHING:
            batched += _BATCHING[node.target.__name__]
        elif batched:
            continue
        elif node.target is begin_call or node.target is end_call:
            known = REGISTRY.calls[node.args[0]]
            inside += 0 if known.module is not None else 1 if node.target is begin_call else -1
        elif not inside and PASSED_OVER not in node.meta and isinstance(node.meta.get("example_value"), torch.Tensor):
            api = _api_of(node, mode)
            if api is not None and api.risk >= mode.lowest:
                _mark(node.graph, node, api)
            elif api is not None:
                seen.low_risk += 1


def _api_of(node: Node, mode: ApiMode) -> Api | None:
    if node.target in (abs, operator.abs):
        return mode.table.find(torch.Tensor.abs).renamed("__abs__")
    if node.op == "call_method":
        function = getattr(torch.Tensor, str(node.target), None)
    elif node.op == "call_function" and not isinstance(node.target, torch._ops.HigherOrderOperator):
        function = node.target
    else:
        return None
    written_in = str(getattr(function, "__module__", ""))
    if function is None or written_in in ("_operator", "builtins"):
        return None
    if written_in.startswith("torch.distributed."):  # what Dynamo makes of `DTensor.from_local` and the like
        return None
    name = getattr(function, "__name__", "")
    if name.startswith("_") and not name.startswith("__"):  # what Dynamo makes of `x.data`: nothing of the user's
        return None
    public = getattr(torch.nn.functional, name, None)
    if public is not None and function in vars(torch._C._nn).values():  # what a function of torch.nn.functional calls
        function = public
    api = mode.table.find(function)
    return None if api.ignored or api.engine else api


def _as_written(values: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as ``nn.CrossEntropyLoss`` writes them, whose call Dynamo replaces by one with positional arguments."""
    given = dict(zip(_LOSS, values, strict=True))
    return values[:2], {name: given[name] for name in ("weight", "ignore_index", "reduction", "label_smoothing")}


def _mark(graph: torch.fx.Graph, node: Node, api: Api) -> None:
    arguments, result = TemplateBuilder(), TemplateBuilder()
    positional, named = tuple(node.args), dict(node.kwargs)
    if node.target is torch.nn.functional.cross_entropy and len(positional) == len(_LOSS):
        positional, named = _as_written(positional)
    args, kwargs = arguments.node(positional), arguments.node(named)
    number = len(REGISTRY.calls)
    counts = len(arguments.tensors), len(arguments.numbers)
    REGISTRY.calls.append(TracedCall(number, api.base, None, args, kwargs, *counts, Site((), ())))
    mutates = writes_by_name(api) or bool(node.kwargs.get("inplace"))
    REGISTRY.results[number] = TracedResult(result.node(node), node.name, mutates)
    with graph.inserting_before(node):
        flight = graph.call_function(begin_call, (number, *arguments.tensors, *arguments.numbers))
    with graph.inserting_after(node):
        graph.call_function(end_call, (number, flight, len(result.tensors), *result.tensors))


def add_run_input(module: GraphModule, seen: TracedGraph, root: CodeType) -> GraphPlan:
    """Give the graph one more input, the number of its run, and every mark that number.

    Parameters
    ----------
    module : GraphModule
        Graph of Dynamo with marks; changed in place.
    seen : TracedGraph
        What tracing has counted.
    root : code object
        Of the compiled frame.

    Returns
    -------
    GraphPlan
        The graph's calls in order, registered under its number.
    """
    marks = marks_of(module)
    for node in nodes_in_order(module):
        owner = node.meta.get(CALL)
        if owner in REGISTRY.results:
            REGISTRY.results[owner] = replace(REGISTRY.results[owner], node=node.name)
    runs: dict[torch.fx.Graph, Node] = {}
    _add_placeholder(module, runs)
    begun = {mark.args[0] for mark in marks if mark.target is begin_call}
    ended = {mark.args[0] for mark in marks if mark.target is end_call}
    for mark in marks:
        number: Any = mark.args[0]
        run = runs[mark.graph]
        if mark.target is begin_call:
            if number not in ended and REGISTRY.calls[number].module is None:
                continue  # the call raised, and the traced program went on
            mark.args = (number, run, *mark.args[1:])
        elif number in begun:
            mark.args = (*mark.args[:2], run, *mark.args[2:])
    for mark in marks:
        if mark.args[1] is not runs[mark.graph] and mark.target is begin_call:
            mark.graph.erase_node(mark)
    recompile_all(module)
    return register_calls(module, seen, root)


def register_calls(module: GraphModule, seen: TracedGraph, root: CodeType) -> GraphPlan:
    """Register the calls of a graph with marks; parameters as of :func:`add_run_input`."""
    marks = marks_of(module)
    ended = {mark.args[0] for mark in marks if mark.target is end_call}
    events: list[tuple[int, bool]] = []
    for mark in marks:
        number: Any = mark.args[0]
        begins = mark.target is begin_call
        if not begins or number in ended or REGISTRY.calls[number].module is not None:  # else the call has raised
            events.append((number, begins))
    plan = GraphPlan(len(REGISTRY.graphs), root, tuple(events), seen.low_risk, dict(seen.left_out))
    REGISTRY.graphs.append(plan)
    return plan


def _add_placeholder(module: GraphModule, runs: dict[torch.fx.Graph, Node]) -> Node:
    """Add the input that holds the number of the run, to a graph and to the bodies in it."""
    graph = module.graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    first = next(iter(graph.nodes))
    with graph.inserting_after(inputs[-1]) if inputs else graph.inserting_before(first):
        run = runs[graph] = graph.placeholder(_RUN)
    run._dynamo_source = ConstantSource(source_name=_RUN)
    run.meta["example_value"] = torch.zeros((), dtype=torch.int64)
    for node, body in bodies_of(module):
        _add_placeholder(body, runs)
        node.args = (*node.args, run)
    return run
