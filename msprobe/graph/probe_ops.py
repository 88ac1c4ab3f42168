"""The operator that stays in a compiled program: it hands tensors over and returns nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from msprobe.graph.graph_plan import REGISTRY

_LIBRARY = torch.library.Library("msprobe", "DEF")
_LIBRARY.define("probe(Tensor[] tensors, SymInt[] numbers, Tensor run, int event) -> ()")


def _probe(tensors: Sequence[torch.Tensor], numbers: Sequence[int], run: torch.Tensor, event: int) -> None:
    recorder = REGISTRY.recorder()
    if recorder is not None:
        recorder.probe(tensors, numbers, run, event)


def _nothing(*_: Any) -> None:
    """What the operator computes when shapes are propagated."""


_LIBRARY.impl("probe", _probe, "CompositeExplicitAutograd")
torch.library.register_fake("msprobe::probe", _nothing, lib=_LIBRARY)
# Not an effectful operator: in a backward graph under compiled autograd those are lost.
torch.fx.node.has_side_effect(torch.ops.msprobe.probe.default)

#: ``probe(tensors, numbers, run, event)``: ``run`` is a scalar that says which run of which graph this is.
probe = torch.ops.msprobe.probe.default
