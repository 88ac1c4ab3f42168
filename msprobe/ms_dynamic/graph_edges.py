"""Where a call sits in MindSpore's autograd graph: found by looking, without adding a node.

Since 2.10 a tensor tells the node that made it (``_grad_node``) and its number among the node's outputs, and a node
tells which nodes its gradients flow to. The edges of a call's inputs are noted before it runs; afterwards the graph is
walked back from its outputs until those edges are met.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from mindspore import Tensor

from msprobe.core.backward_span import Slot

Node = Any
Edge = tuple[int, int]
_LEAF = (1 << 64) - 1  # sequence number of a node that nothing made


class Listening(NamedTuple):
    """A node and the gradients that pass it."""

    node: Node
    slots: list[Slot]


def nodes_are_visible() -> bool:
    """Whether this MindSpore shows its autograd nodes."""
    return hasattr(Tensor, "_grad_node") and hasattr(Tensor, "_output_index")


class Passed(NamedTuple):
    """A result that is an argument.

    Attributes
    ----------
    tensor : Tensor
    node : BackwardNode
        The one that made it.
    number : int
        Its number among the outputs of the node.
    result, argument : int
        Positions.
    """

    tensor: Tensor
    node: Node
    number: int
    result: int
    argument: int


class InputEdges:
    """Edges of a call's tensor arguments, taken before the call.

    Parameters
    ----------
    tensors : sequence of Tensor
        Tensor leaves of args and kwargs, in order; their index is the position.
    """

    __slots__ = ("_alive", "count", "newest", "positions")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.count = len(tensors)
        self.positions: dict[Edge, list[int]] = {}
        self.newest = -1
        self._alive: list[Node] = []  # an id is only good while its node lives
        for position, tensor in enumerate(tensors):
            node = tensor._grad_node
            if node is None:
                continue
            self._alive.append(node)
            self.positions.setdefault((node._unique_id(), tensor._output_index), []).append(position)
            self.newest = max(self.newest, sequence_of(node))


class SpanPlan(NamedTuple):
    """Which nodes to listen at for the gradients of one call.

    Attributes
    ----------
    results, arguments : list of Listening
        Gradients of the outputs, in what arrives at a node; of the inputs, in what it sends on. A position may occur
        several times: its gradient is the sum.
    passed_through : list of Passed
        Outputs that are inputs: no node lies between.
    newest : int
        Largest sequence number among the results' nodes.
    """

    results: list[Listening]
    arguments: list[Listening]
    passed_through: list[Passed]
    newest: int


def sequence_of(node: Node) -> int:
    """Number of a node in the order in which they were made; -1 for a leaf."""
    number: int = node._sequence_nr()
    return -1 if number == _LEAF else number


def plan_span(edges: InputEdges, since: int, outputs: Sequence[Tensor]) -> SpanPlan | None:
    """Find the nodes of one call.

    Parameters
    ----------
    edges : InputEdges
    since : int
        Nodes with a smaller sequence number are not part of the call.
    outputs : sequence of Tensor
        Tensor leaves of the result.

    Returns
    -------
    SpanPlan or None
        None if no gradient can reach the call.
    """
    results: dict[int, Listening] = {}
    passed: list[Passed] = []
    newest = -1
    for position, tensor in enumerate(outputs):
        node = tensor._grad_node
        if node is None:
            continue
        number, key = tensor._output_index, node._unique_id()
        same = edges.positions.get((key, number))
        if same is not None:
            passed.append(Passed(tensor, node, number, position, same[0]))
            continue
        if node.is_leaf():
            continue
        newest = max(newest, sequence_of(node))
        results.setdefault(key, Listening(node, [])).slots.append(Slot(number, position))
    if not results and not passed:
        return None
    return SpanPlan(list(results.values()), _arguments(edges, since, results), passed, newest)


def _arguments(edges: InputEdges, since: int, results: dict[int, Listening]) -> list[Listening]:
    """Walk from the results' nodes back to the inputs' edges."""
    hits: dict[Edge, list[tuple[Node, int]]] = {}
    seen = set(results)
    pending = [listening.node for listening in results.values()]
    while pending:
        node = pending.pop()
        for number, (owner, index) in enumerate(node.next_functions):
            if owner is None:
                continue
            key = owner._unique_id()
            if (key, index) in edges.positions:
                hits.setdefault((key, index), []).append((node, number))
            elif key not in seen and sequence_of(owner) >= since:
                seen.add(key)
                pending.append(owner)
    found: dict[int, Listening] = {}
    for edge, places in hits.items():
        positions = _assign(edges.positions[edge], places)
        for (node, number), position in zip(places, positions, strict=True):
            found.setdefault(node._unique_id(), Listening(node, [])).slots.append(Slot(number, position))
    return list(found.values())


def _assign(positions: list[int], places: list[tuple[Node, int]]) -> Sequence[int]:
    """Positions for the places where one edge was met.

    One node that takes the same tensor several times (``h * h``) lists it in argument order. When several nodes take
    it, which came from which argument cannot be told: the sum goes to the first.
    """
    one_node = len({node._unique_id() for node, _ in places}) == 1
    if len(places) == len(positions) and (len(places) == 1 or one_node):
        return positions
    return [positions[0]] * len(places)
