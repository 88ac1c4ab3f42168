"""Which calls may write to their arguments: those have to be read before the call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from msprobe.graph.call_sites import python_value

if TYPE_CHECKING:
    from msprobe.dispatch.api_table import Api

_PREFIXES = ("Functional", "Tensor", "Torch", "Aten")
# They write to running statistics, or renormalise what they look up.
_WITH_STATE = frozenset({"batch_norm", "instance_norm", "embedding", "embedding_bag", "native_batch_norm"})
_WRITING_OPERATORS = ("__i", "__set")


def may_write(function: Any, api: Api, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a call may write to its arguments.

    torch's own functions say it by their name (``add_``, ``__iadd__``, ``__setitem__``) or by ``out`` or ``inplace``;
    a custom operator says it by its schema; anything else is taken to write.

    Parameters
    ----------
    function
        The function object.
    api : Api
    args, kwargs
        Dynamo's variables of the arguments.
    """
    if isinstance(function, torch._ops.OpOverload):
        return bool(function._schema.is_mutable)
    if api.prefix not in _PREFIXES or api.name.startswith("ops."):
        return True
    if writes_by_name(api) or "out" in kwargs:
        return True
    if "inplace" in kwargs:
        return python_value(kwargs["inplace"]) is not False
    # `F.relu(x, True)`: a flag by position may be `inplace`
    return api.prefix == "Functional" and any(python_value(value) is True for value in args[1:])


def writes_by_name(api: Api) -> bool:
    """Whether the name of an API of torch says that it writes to an argument."""
    return name_writes(api.name.rpartition(".")[2])


def name_writes(last: str) -> bool:
    """Whether a function of torch with this name, without its namespace, writes to an argument."""
    if last.startswith(_WRITING_OPERATORS) and last not in ("__invert__", "__index__", "__int__"):
        return True
    return (last.endswith("_") and not last.endswith("__")) or last in _WITH_STATE
