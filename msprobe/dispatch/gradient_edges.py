"""Where a call sits in the autograd graph: found by looking, without adding a node.

A gradient edge is a pair (node, input number of that node) to which a tensor's gradient flows. Before a call the
edges of its inputs are noted; afterwards the graph is walked back from the outputs until those edges are met. The
gradient of an output is what arrives at its node; the gradient of an input is what the nodes that own its edge send
along it, counted within this call only, as ``register_full_backward_hook`` would report it, but without its identity
node and so without its effect on accumulation order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from msprobe.core.backward_span import Slot

AccumulateGrad = torch._C._functions.AccumulateGrad
Node = Any  # torch.autograd.graph.Node; the C++ nodes are not subclasses of it
Edge = tuple[Node, int]


class Geometry(NamedTuple):
    """Where a view lies in its base: sizes and strides in elements, offset relative to the base's."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, view: torch.Tensor, base: torch.Tensor) -> Geometry | None:
        """Geometry of ``view`` in ``base``; None unless the base is contiguous, so that its gradient can be sliced."""
        if not base.is_contiguous():
            return None
        return cls(tuple(view.shape), view.stride(), view.storage_offset() - base.storage_offset())

    def cut(self, gradient: torch.Tensor) -> torch.Tensor:
        """The view's part of the base's gradient."""
        dense = gradient.contiguous()
        return dense.as_strided(self.size, self.stride, dense.storage_offset() + self.offset)


class InputEdges:
    """Edges of a call's tensor arguments, taken before the call.

    Parameters
    ----------
    tensors : sequence of Tensor
        Tensor leaves of args and kwargs, in order; their index is the position.
    """

    __slots__ = ("bases", "count", "inner", "leaves")

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.count = len(tensors)
        self.inner: dict[Edge, list[int]] = {}
        self.leaves: dict[int, list[int]] = {}
        self.bases: dict[Edge, Slot] = {}
        for position, tensor in enumerate(tensors):
            if not tensor.requires_grad:
                continue
            node = tensor.grad_fn
            if node is None:
                self.leaves.setdefault(id(tensor), []).append(position)
                continue
            self.inner.setdefault((node, tensor.output_nr), []).append(position)
            if tensor._is_view():
                self._note_base(tensor, position)

    def _note_base(self, tensor: torch.Tensor, position: int) -> None:
        """An in-place operation on a view takes its gradient from the base: CopySlices bypasses the view's node."""
        base = tensor._base
        if base is None or base.grad_fn is None:
            return
        geometry = Geometry.of(tensor, base)
        if geometry is not None:
            self.bases[base.grad_fn, base.output_nr] = Slot(0, position, geometry)

    def __bool__(self) -> bool:
        return bool(self.inner or self.leaves)


class SpanPlan(NamedTuple):
    """Which nodes to listen at for the gradients of one call.

    Attributes
    ----------
    results : dict of node -> list of Slot
        Gradients of the outputs, in what arrives at the node.
    arguments : dict of node -> list of Slot
        Gradients of the inputs, in what the node sends on. A position may occur several times: its gradient is the sum.
    passed_through : list of (node, number, result position, argument position)
        Outputs that are inputs: no node lies between, the gradient is the one that arrives at the earlier node.
    """

    results: dict[Node, list[Slot]]
    arguments: dict[Node, list[Slot]]
    passed_through: list[tuple[Node, int, int, int]]

    def single_node(self) -> Node | None:
        """The one node that sees everything, if there is one: the common case of a single autograd function."""
        if len(self.results) != 1 or self.passed_through or len(self.arguments) > 1:
            return None
        (node,) = self.results
        slots = self.arguments.get(node)
        if slots is None:
            return None if self.arguments else node
        positions = set()
        for _, position, geometry in slots:
            if geometry is not None:
                return None
            positions.add(position)
        for slot in self.results[node]:
            if slot.geometry is not None:
                return None
        return node if len(positions) == len(slots) else None


def plan_span(edges: InputEdges, since: int, outputs: Sequence[torch.Tensor]) -> SpanPlan | None:
    """Find the nodes of one call.

    Parameters
    ----------
    edges : InputEdges
    since : int
        ``torch._C._autograd._get_sequence_nr()`` when the call began: older nodes are not part of it.
    outputs : sequence of Tensor
        Tensor leaves of the result.

    Returns
    -------
    SpanPlan or None
        None if no gradient can reach the call.
    """
    results: dict[Node, list[Slot]] = {}
    passed: list[tuple[Node, int, int, int]] = []
    for position, tensor in enumerate(outputs):
        node = tensor.grad_fn if tensor.requires_grad else None
        if node is None:
            continue
        number = tensor.output_nr
        same = edges.inner.get((node, number))
        if same is not None:
            passed.append((node, number, position, same[0]))
            continue
        node, slot = _result_slot(tensor, node, Slot(number, position, None), since)
        results.setdefault(node, []).append(slot)
    if not results and not passed:
        return None
    return SpanPlan(results, _argument_slots(edges, since, results), passed)


def written_since(since: int, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Those of ``tensors`` that an in-place operation gave a new node since the sequence number ``since``."""
    return [tensor for tensor in tensors if tensor.grad_fn is not None and tensor.grad_fn._sequence_nr() >= since]


def _result_slot(tensor: torch.Tensor, node: Node, slot: Slot, since: int) -> tuple[Node, Slot]:
    """Where the gradient of a result arrives: at CopySlices if it was written in place through a view."""
    if tensor._is_view():
        base = tensor._base
        owner = base.grad_fn if base is not None else None
        if owner is not None and type(owner).__name__ == "CopySlices" and owner._sequence_nr() >= since:
            geometry = Geometry.of(tensor, base)
            if geometry is not None:
                return owner, Slot(base.output_nr, slot.position, geometry)
    return node, slot


def _argument_slots(edges: InputEdges, since: int, results: dict[Node, list[Slot]]) -> dict[Node, list[Slot]]:
    """Walk from the results' nodes back to the inputs' edges."""
    hits: dict[int, tuple[list[int], list[tuple[Node, int]]]] = {}  # by the first position that has the edge
    arguments: dict[Node, list[Slot]] = {}
    inner, leaves, bases = edges.inner, edges.leaves, edges.bases
    seen = set(results)
    pending = list(results)
    while pending:
        node = pending.pop()
        for number, edge in enumerate(node.next_functions):
            owner = edge[0]
            if owner is None:
                continue
            positions = inner.get(edge)
            if positions is None and type(owner) is AccumulateGrad:
                positions = leaves.get(id(owner.variable))
                if positions is None:
                    continue
            if positions is not None:
                found = hits.get(positions[0])
                if found is None:
                    hits[positions[0]] = positions, [(node, number)]
                else:
                    found[1].append((node, number))
                continue
            base = bases.get(edge) if bases else None
            if base is not None:
                arguments.setdefault(node, []).append(base._replace(number=number))
            elif owner not in seen and owner._sequence_nr() >= since:
                seen.add(owner)
                pending.append(owner)
    for positions, places in hits.values():
        for (node, number), position in zip(places, _assign(positions, places), strict=True):
            arguments.setdefault(node, []).append(Slot(number, position, None))
    return arguments


def _assign(positions: list[int], found: list[tuple[Node, int]]) -> Sequence[int]:
    """Positions for the places where one edge was met.

    One node that takes the same tensor several times (``h * h``, attention with q = k = v) lists it in argument
    order. When several nodes take it, which came from which argument cannot be told: the sum goes to the first.
    """
    if len(found) == len(positions) and (len(found) == 1 or len({id(node) for node, _ in found}) == 1):
        return positions
    return [positions[0]] * len(found)
