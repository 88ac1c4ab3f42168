"""Values of torch that are not tensors -> JSON; plain Python values are in `plain_scalars`."""

from __future__ import annotations

from typing import Any

import torch

from msprobe.measure.plain_scalars import PLAIN, PLAIN_BASES, ScalarEncoder, group_id


def encode_dtype(value: Any) -> dict[str, Any]:
    """Encode a dtype, or the Python type given in the place of one."""
    return {"type": "torch.dtype", "value": str(value)}


def encode_device(value: Any) -> dict[str, Any]:
    """Encode a device as ``type:index``; text and plain indices are kept as given."""
    if isinstance(value, torch.device):
        return {"type": "torch.device", "value": f"{value.type}:{value.index}"}
    return {"type": "torch.device", "value": value}


def encode_size(value: torch.Size) -> dict[str, Any]:
    """Encode a torch.Size."""
    return {"type": "torch.Size", "value": [size if type(size) is int else str(size) for size in value]}


def encode_memory_format(value: torch.memory_format) -> dict[str, Any]:
    """Encode a memory format by its short name."""
    return {"type": "torch.memory_format", "format": str(value).removeprefix("torch.")}


def encode_symbolic(value: Any) -> dict[str, Any]:
    """Encode a symbolic number by its expression, without fixing its value."""
    return {"type": f"torch.{type(value).__name__}", "value": str(value)}


def encode_reduce_op(value: Any) -> dict[str, Any]:
    """Encode the operation of a collective."""
    text = str(value) if "RedOpType" in str(value) else f"RedOpType.{_reduce_op_name(value)}"
    return {"type": "torch.distributed.ReduceOp", "value": text}


def _reduce_op_name(value: Any) -> str:
    names = type(value).RedOpType.__members__
    return next((name for name, member in names.items() if value == member), "UNKNOWN")


def _group_ranks(group: Any) -> list[int]:
    return list(torch.distributed.get_process_group_ranks(group))


def encode_process_group(value: Any) -> dict[str, Any]:
    """Encode a process group by its global ranks."""
    ranks = _group_ranks(value)
    return {"type": "torch.ProcessGroup", "group_ranks": ranks, "group_id": group_id(ranks)}


def encode_p2p_op(value: Any, tensor: Any) -> dict[str, Any]:
    """Encode a point-to-point operation whose tensor is encoded already."""
    group = value.group if value.group is not None else torch.distributed.group.WORLD
    return {
        "class_type": "torch.distributed.P2POp",
        "tensor": tensor,
        "op": getattr(value.op, "__name__", str(value.op)),
        "peer": value.peer,
        "tag": value.tag,
        "group_id": group_id(_group_ranks(group)),
    }


#: Exact type -> encoder.
SCALARS: dict[type, ScalarEncoder] = {
    **PLAIN,
    torch.dtype: encode_dtype,
    torch.device: encode_device,
    torch.Size: encode_size,
    torch.memory_format: encode_memory_format,
    torch.SymInt: encode_symbolic,
    torch.SymFloat: encode_symbolic,
    torch.SymBool: encode_symbolic,
}

#: Keyword whose text or number stands for an object -> encoder.
NAMED: dict[str, ScalarEncoder] = {"device": encode_device, "dtype": encode_dtype}

_HAS_DISTRIBUTED = torch.distributed.is_available()

#: Base class -> encoder, tried in this order for types that are not in `SCALARS`.
SCALAR_BASES: tuple[tuple[type | tuple[type, ...], ScalarEncoder], ...] = (
    *PLAIN_BASES,
    *(
        (
            ((torch.distributed.ReduceOp, torch.distributed.ReduceOp.RedOpType), encode_reduce_op),
            (torch.distributed.ProcessGroup, encode_process_group),
        )
        if _HAS_DISTRIBUTED
        else ()
    ),
)

#: The classes of point-to-point operations: they hold a tensor, which the caller encodes.
P2P_OPS: tuple[type, ...] = (torch.distributed.P2POp,) if _HAS_DISTRIBUTED else ()
