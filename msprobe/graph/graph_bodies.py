"""Regions under activation checkpointing: in a Dynamo graph each is a graph of its own, which one node calls.

Such a body is straight-line code that runs where its node stands, so its calls are recorded as part of the outer graph.
The bodies of other higher-order operators may run several times or not at all: they are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._higher_order_ops.wrap import tag_activation_checkpoint
from torch.fx import GraphModule, Node

from msprobe.dispatch.recompute import pack_of_checkpoint


def is_checkpoint(function: Any) -> bool:
    """Whether a function is what ``torch.utils.checkpoint`` becomes in a graph."""
    return function is tag_activation_checkpoint


def only_checkpoints_around(tracer: Any) -> bool:
    """Whether Dynamo's ``tracer`` fills the outermost graph, or a body that checkpointing alone makes."""
    while tracer.parent is not None:
        if not is_checkpoint(tracer.source_target):
            return False
        tracer = tracer.parent
    return True


def body_name(module: GraphModule, node: Node) -> str | None:
    """Name of the attribute of ``module`` that a node under checkpointing runs; None for any other node."""
    if node.op != "call_function" or not is_checkpoint(node.target):
        return None
    body = node.args[0]
    if not isinstance(body, Node) or body.op != "get_attr":
        return None
    name = str(body.target)
    return name if isinstance(getattr(module, name, None), GraphModule) else None


def body_of(module: GraphModule, node: Node) -> GraphModule | None:
    """The graph that a node under checkpointing runs; None for any other node."""
    name = body_name(module, node)
    found: GraphModule | None = getattr(module, name) if name is not None else None
    return found


def bodies_of(module: GraphModule) -> Iterator[tuple[Node, GraphModule]]:
    """Nodes under checkpointing with what they run, in order."""
    for node in module.graph.nodes:
        body = body_of(module, node)
        if body is not None:
            yield node, body


def nodes_in_order(module: GraphModule) -> Iterator[Node]:
    """All nodes of a graph; those of a body stand where the body runs."""
    for node in list(module.graph.nodes):
        yield node
        body = body_of(module, node)
        if body is not None:
            yield from nodes_in_order(body)


def recompile_all(module: GraphModule) -> None:
    """Write the code of a changed graph and of its bodies anew."""
    for _, body in bodies_of(module):
        recompile_all(body)
    module.graph.lint()
    module.recompile()


def recomputing() -> bool:
    """Whether checkpointing runs a body again, in a backward pass: its calls have their records already."""
    if torch._C._current_graph_task_id() == -1:
        return False
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return pack_of_checkpoint(hooks) is not None  # a nested region repeats with the outer one
