"""Arguments of collectives: which functions there are, and what of their arguments says something."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed import P2POp
from torch.distributed._functional_collectives import AsyncCollectiveTensor

#: Function -> parameter that is only written to: what it holds before is of no meaning, and is recorded as null.
COLLECTIVES: Mapping[str, str | None] = {
    "send": None,
    "recv": "tensor",
    "isend": None,
    "irecv": "tensor",
    "batch_isend_irecv": None,
    "broadcast": None,
    "all_reduce": None,
    "all_reduce_coalesced": None,
    "reduce": None,
    "all_gather": "tensor_list",
    "all_gather_single": "output_tensor",
    "all_gather_into_tensor": "output_tensor",
    "_all_gather_base": "output_tensor",
    "all_gather_coalesced": "output_tensor_lists",
    "gather": "gather_list",
    "scatter": "tensor",
    "reduce_scatter": "output",
    "reduce_scatter_single": "output",
    "reduce_scatter_tensor": "output",
    "_reduce_scatter_base": "output",
    "all_to_all_single": "output",
    "all_to_all": "output_tensor_list",
    "barrier": None,
}
#: Functions that send pickled objects as tensors: what is in those is no value of the program.
OBJECT_COLLECTIVES = (
    "all_gather_object",
    "gather_object",
    "send_object_list",
    "recv_object_list",
    "broadcast_object_list",
    "scatter_object_list",
)


def without(values: Sequence[Any], place: int | None) -> tuple[Any, ...]:
    """The arguments, with null in the place of what is only written to."""
    return tuple(
        None if at == place else _unread(value) if isinstance(value, list) else value for at, value in enumerate(values)
    )


def _unread(values: list[Any]) -> list[Any]:
    """A list of arguments as it is; receive operations in it without what their buffers hold before."""
    if not values or not isinstance(values[0], P2POp):
        return values
    return [_receiving(value) if getattr(value.op, "__name__", "") == "irecv" else value for value in values]


def still_running(result: Any) -> Any:
    """The result as a value that tells its type and shape, and that it must not be read yet."""
    if isinstance(result, (list, tuple)):
        return [still_running(part) for part in result]
    unread = isinstance(result, torch.Tensor) and not isinstance(result, AsyncCollectiveTensor)
    return AsyncCollectiveTensor(result) if unread else result


def _receiving(operation: P2POp) -> P2POp:
    copy = object.__new__(P2POp)
    vars(copy).update(vars(operation), tensor=None)
    return copy
