"""The operator that stays in a compiled program: it hands tensors over and returns nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from msprobe.graph.graph_plan import REGISTRY
from msprobe.graph.kernel_registry import KERNELS

_LIBRARY = torch.library.Library("msprobe", "DEF")
_LIBRARY.define("probe(Tensor[] tensors, SymInt[] numbers, Tensor run, int event) -> ()")
_LIBRARY.define("kernel(Tensor[] tensors, SymInt[] numbers, int graph, int node, int part) -> ()")


def _probe(tensors: Sequence[torch.Tensor], numbers: Sequence[int], run: torch.Tensor, event: int) -> None:
    recorder = REGISTRY.recorder()
    if recorder is not None:
        recorder.probe(tensors, numbers, run, event)


def _kernel(tensors: Sequence[torch.Tensor], numbers: Sequence[int], graph: int, node: int, part: int) -> None:
    recorder = KERNELS.recorder()
    if recorder is not None:
        recorder.probe(tensors, numbers, graph, node, part)


def _nothing(*_: Any) -> None:
    """What the operator computes when shapes are propagated."""


for _name, _run in (("probe", _probe), ("kernel", _kernel)):
    _LIBRARY.impl(_name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"msprobe::{_name}", _nothing, lib=_LIBRARY)
    # Not an effectful operator: in a backward graph under compiled autograd those are lost.
    torch.fx.node.has_side_effect(getattr(torch.ops.msprobe, _name).default)

#: ``probe(tensors, numbers, run, event)``: ``run`` is a scalar that says which run of which graph this is.
probe = torch.ops.msprobe.probe.default

#: ``kernel_probe(tensors, numbers, graph, node, part)``: arguments or results, or both, of one operator at level L2.
kernel_probe = torch.ops.msprobe.kernel.default
