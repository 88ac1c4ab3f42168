"""What distributed wrappers make of a model, undone in names: a record has the name that it has without them.

* ``fully_shard`` gives a module a class of its own, ``FSDPLinear`` for ``Linear``.
* FSDP, DDP, tensor and pipeline parallelism call torch functions of their own around the model's: gathering, splitting,
  copying. They are no part of the model, and would shift the indices of those that are.
"""

from __future__ import annotations

from types import FrameType

_WRAPPERS = (
    "torch.distributed.fsdp",
    "torch.distributed._composable",
    "torch.distributed._tools",
    "torch.distributed.algorithms",
    "torch.distributed.pipelining",
    "torch.distributed.tensor",
    "torch.distributed.utils",
    "torch.distributed._functional_collectives",
    "torch.distributed.distributed_c10d",
    "torch.nn.parallel",
)
_COMPUTING = "torch.distributed.tensor.experimental"  # context parallel attention replaces the model's own

#: Modules of frames that stand between a call and who makes it.
_BETWEEN = frozenset({"torch._ops", "torch.autograd.function", "torch.nn.parameter"})


def class_name(kind: type) -> str:
    """Name of a class of modules as the user has written it."""
    while kind.__module__.startswith("torch.distributed.") and len(kind.__bases__) == 2:  # made by fully_shard
        kind = kind.__bases__[1]
    return kind.__name__


def is_wrapper_code(frame: FrameType) -> bool:
    """Whether a call in ``frame`` is one of a distributed wrapper."""
    caller: FrameType | None = frame
    name = frame.f_globals.get("__name__") or ""
    while name in _BETWEEN and caller is not None:
        caller = caller.f_back
        name = caller.f_globals.get("__name__") or "" if caller is not None else ""
    return name.startswith(_WRAPPERS) and not name.startswith(_COMPUTING)


def may_be_wrapper_code(frame: FrameType) -> bool:
    """Whether a call in ``frame`` can ever be one of a distributed wrapper, whoever has called it."""
    name = frame.f_globals.get("__name__") or ""
    return name in _BETWEEN or name.startswith(_WRAPPERS)
