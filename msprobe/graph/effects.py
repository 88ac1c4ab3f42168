"""What a graph of Dynamo does besides computing results: whether it can run twice without being noticed."""

from __future__ import annotations

import inspect
import operator
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from msprobe.dispatch.tensor_leaves import tensor_leaves
from msprobe.graph.mutation import name_writes

_KNOWN_OPERATORS = ("aten", "prims", "prim")
# They compute, and what they write to is written by operators in their bodies.
_PURE_BODIES = frozenset(
    {
        "associative_scan",
        "autograd_function_apply",
        "cond",
        "flex_attention",
        "invoke_subgraph",
        "map_impl",
        "scan",
        "tag_activation_checkpoint",
        "while_loop",
        "wrap",
        "wrap_activation_checkpoint",
        "wrap_with_autocast",
        "wrap_with_set_grad_enabled",
    }
)
_KNOWN_MODULES = ("torch", "_operator", "operator", "builtins", "math")
_IN_PLACE = frozenset(
    {operator.iadd, operator.iand, operator.iconcat, operator.ifloordiv, operator.ilshift, operator.imatmul}
    | {operator.imod, operator.imul, operator.ior, operator.ipow, operator.irshift, operator.isub, operator.itruediv}
    | {operator.ixor, operator.setitem}
)


@dataclass(frozen=True, slots=True)
class Effects:
    """What has to be known of a graph before it is run a second time.

    Attributes
    ----------
    hindrance : str
        Why it cannot be; empty if it can.
    written : frozenset of int
        Positions of the inputs that it may write to.
    devices : tuple of torch.device
        Accelerators that it computes on.
    differentiable : bool
        Whether an input requires gradients.
    """

    hindrance: str
    written: frozenset[int] = frozenset()
    devices: tuple[torch.device, ...] = ()
    differentiable: bool = False


def effects_of(module: GraphModule) -> Effects:
    """Look at a graph without probes, and at the bodies in it."""
    nodes = list(_nodes(module))
    tensors = [tensor for node in nodes for tensor in _tensors(node)]
    inputs = [_tensors(node) for node in module.graph.nodes if node.op == "placeholder"]
    arguments = [argument for node in module.graph.nodes for argument in _written_by(module, node)]
    written = {_memory(tensor) for argument in arguments for tensor in _tensors(argument)}
    hindrances = [*map(_hindrance_of, nodes), _of_memory(module, inputs, written)]
    if any(is_traceable_wrapper_subclass(tensor) for tensor in tensors):
        hindrances.append("it computes with distributed tensors, or others that hold tensors")
    devices = {tensor.device for tensor in tensors if tensor.device.type not in ("cpu", "meta")}
    return Effects(
        next((reason for reason in hindrances if reason), ""),
        frozenset(at for at, found in enumerate(inputs) if any(_memory(one) in written for one in found)),
        tuple(sorted(devices, key=str)),
        any(tensor.requires_grad for found in inputs for tensor in found),
    )


def _of_memory(module: GraphModule, inputs: list[list[torch.Tensor]], written: set[int]) -> str:
    """Whether what the graph writes to cannot be replaced by copies of its inputs."""
    given = Counter(_memory(tensor) for found in inputs for tensor in found)
    if any(given[memory] > 1 for memory in written):
        return "it writes to memory that several of its inputs share"
    kept = {_memory(tensor) for node in module.graph.nodes if node.op == "get_attr" for tensor in _tensors(node)}
    return "it writes to a tensor that is not an input" if kept & written else ""


def _hindrance_of(node: Node) -> str:
    """Why one node keeps its graph from being run twice; empty if it does not."""
    if node.op == "call_module":
        return f"it calls the module {node.target}"
    if node.op == "placeholder" and type(node.meta.get("example_value")).__name__ == "BackwardState":
        return "it has hooks of the program"
    return _hindrance_of_call(node.target) if node.op == "call_function" else ""


def _hindrance_of_call(target: Any) -> str:
    if isinstance(target, torch._ops.HigherOrderOperator):
        return "" if target.name() in _PURE_BODIES else f"it has the higher-order operator {target.name()}"
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        name = str(target)
        known = name.partition(".")[0].partition("::")[0] in _KNOWN_OPERATORS
        return "" if known else "it communicates" if "c10d" in name else f"it calls the operator {name}"
    written_in = getattr(target, "__module__", None) or "builtins"
    if written_in.startswith("torch.distributed"):
        return "it communicates"
    if written_in.partition(".")[0] in _KNOWN_MODULES or _is_native(target):
        return ""
    return f"it calls {written_in}.{getattr(target, '__name__', target)}"


def _is_native(function: Any) -> bool:
    """Whether a function is written in C++: torch's binding gives some of them odd modules."""
    return not hasattr(function, "__code__") and type(function).__name__ in (
        "builtin_function_or_method",
        "method_descriptor",
        "wrapper_descriptor",
    )


def _written_by(module: GraphModule, node: Node) -> list[Node]:
    """Arguments of a node that it may write to; rather one too many."""
    target: Any = node.target
    if node.op not in ("call_function", "call_method"):
        return []
    if isinstance(target, torch._ops.HigherOrderOperator):
        writes = any(_written_by(body, inner) for body in _bodies(module, node) for inner in body.graph.nodes)
    elif isinstance(target, torch._ops.OpOverload):
        writes = target._schema.is_mutable
    elif isinstance(target, torch._ops.OpOverloadPacket):
        writes = True
    else:
        return _written_by_function(target, node)
    return list(node.all_input_nodes) if writes else []


def _written_by_function(target: Any, node: Node) -> list[Node]:
    every = list(node.all_input_nodes)
    if node.kwargs.get("out") is not None:
        return every
    if isinstance(target, str):
        return _first(node) if name_writes(target) else []
    if getattr(target, "__module__", "") == "_operator":  # `and_` does not write
        return _first(node) if target in _IN_PLACE else []
    name = getattr(target, "__name__", "")
    if name in ("embedding", "embedding_bag"):
        return every if _argument(node, "max_norm") is not None else []
    if name_writes(name):
        return _first(node) if name.startswith("_foreach_") else every
    return _first(node) if _argument(node, "inplace") else []


def _first(node: Node) -> list[Node]:
    """The nodes of the first argument."""
    found: list[Node] = []
    torch.fx.node.map_arg(node.args[:1] or tuple(node.kwargs.values()), found.append)
    return found


def _argument(node: Node, name: str) -> Any:
    """Value of an argument by name, however it is given; None for a function that has none of that name."""
    if name in node.kwargs:
        return node.kwargs[name]
    target: Any = node.target
    try:
        names = list(inspect.signature(target).parameters)
    except (TypeError, ValueError):  # written in C++
        return None
    return dict(zip(names, node.args, strict=False)).get(name)


def _nodes(module: GraphModule) -> Iterator[Node]:
    """All nodes of a graph, and of the bodies that it uses."""
    for node in module.graph.nodes:
        yield node
        for body in _bodies(module, node):
            yield from _nodes(body)


def _bodies(module: GraphModule, node: Node) -> Iterator[GraphModule]:
    """The graphs that a higher-order operator is given."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.HigherOrderOperator):
        return
    for argument in node.all_input_nodes:
        body = getattr(module, str(argument.target), None) if argument.op == "get_attr" else None
        if isinstance(body, GraphModule):
            yield body


def _tensors(node: Node) -> list[torch.Tensor]:
    return tensor_leaves([node.meta.get("example_value")])


def _memory(tensor: torch.Tensor) -> int:
    """What the views of one tensor have in common."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except RuntimeError:  # a sparse tensor, or one without memory
        return id(tensor)
