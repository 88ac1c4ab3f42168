"""Find out how a recorded call can be run again: its function, its arguments, and what was switched on around it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from msprobe.replay.api_kinds import PROBABILITIES, RECURRENT, decisive_name
from msprobe.replay.arguments import Arguments, Rebuilder, UnreplayableError
from msprobe.replay.calls import ApiCall
from msprobe.replay.execute import Forward, Setting, run_forward
from msprobe.replay.resolve import Resolved, resolve

_REASON_LENGTH = 300


@dataclass(frozen=True, slots=True)
class Plan:
    """A call that can run: its function, its arguments, and the settings that repeat what was recorded."""

    call: ApiCall
    resolved: Resolved
    arguments: Arguments
    gradients: list[torch.Tensor | None] | None
    autocast: torch.dtype | None


def make_plan(call: ApiCall, tensor_folder: Path | None, seed: int) -> tuple[Plan, Forward | Exception]:
    """Find arguments with which the call runs on the CPU as it was recorded.

    Returns
    -------
    plan : Plan
    run : Forward or Exception
        What the call returned on the CPU in the recorded dtype, or why it cannot run there.

    Raises
    ------
    UnreplayableError
        The function or its arguments are not known.
    """
    resolved = resolve(call.prefix, call.path)
    rebuilder = Rebuilder(call, tensor_folder, seed)
    arguments = _without_randomness(call, rebuilder.arguments())
    gradients = rebuilder.gradients() if call.gradients is not None else None
    if gradients is not None and not any(arguments.wants_gradient):
        gradients = None
    if gradients and not any(gradient is not None and gradient.any() for gradient in gradients):
        arguments.notes.append("the recorded gradients are zero: the backward pass says little")
    first: tuple[Plan, Forward] | None = None
    failed: Exception | None = None
    for variant in _variants(call, arguments):
        for autocast in (None, *_autocast_dtypes(call)):
            setting = Setting("cpu", autocast=autocast)
            try:
                forward = run_forward(resolved.function, variant, setting, gradients=gradients is not None)
            except Exception as error:  # noqa: BLE001 - the next variant may work; the first reason is reported
                failed = failed or error
                continue
            plan = Plan(call, resolved, variant, gradients, autocast)
            if _as_recorded(call, forward):
                return plan, forward
            first = first or (plan, forward)
    if first is not None:
        first[0].arguments.notes.append("outputs have another shape or dtype than in the dump")
        return first
    return Plan(call, resolved, arguments, gradients, None), failed or RuntimeError("no run on the CPU")


def _without_randomness(call: ApiCall, arguments: Arguments) -> Arguments:
    """Set the probability of a random API to zero."""
    name = decisive_name(call.prefix, call.path)
    args, kwargs = list(arguments.args), dict(arguments.kwargs)
    if name in PROBABILITIES:
        position, keyword = PROBABILITIES[name]
        if keyword in kwargs:
            kwargs[keyword] = 0.0
        elif position < len(args):
            args[position] = 0.0
        elif keyword == "p":
            kwargs[keyword] = 0.0
    elif name in RECURRENT and call.prefix in ("VF", "Torch", "Aten"):
        args = [0.0 if isinstance(value, float) else value for value in args]
    if args != arguments.args or kwargs != arguments.kwargs:
        arguments.notes.append("random: replayed with probability 0")
        return replace(arguments, args=args, kwargs=kwargs)
    return arguments


def _variants(call: ApiCall, arguments: Arguments) -> Iterator[Arguments]:
    """Yield the arguments with lists in the place of what may have been tuples: a dump does not tell them apart."""
    args = list(arguments.args)
    if call.path in ("__getitem__", "__setitem__") and len(args) > 1 and isinstance(args[1], list):
        yield replace(arguments, args=[args[0], tuple(args[1]), *args[2:]])
    yield arguments
    if any(isinstance(value, list) for value in (*args, *arguments.kwargs.values())):
        kwargs = {key: _as_tuples(value) for key, value in arguments.kwargs.items()}
        yield replace(arguments, args=[_as_tuples(value) for value in args], kwargs=kwargs)


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(item) for item in value) if isinstance(value, list) else value


def _autocast_dtypes(call: ApiCall) -> list[torch.dtype]:
    """Return the dtypes with which autocast may have been on: narrow ones among the recorded inputs and outputs."""
    text = str((call.args, call.kwargs, call.outputs))
    return [dtype for dtype in (torch.bfloat16, torch.float16) if f"'{dtype}'" in text]


def _as_recorded(call: ApiCall, forward: Forward) -> bool:
    """Whether the outputs have the dtypes and, where they do not depend on values, the shapes of the recorded ones."""
    recorded = [entry for entry in _entries(call.outputs or []) if "shape" in entry and "dtype" in entry]
    found = [value for name, value in forward.results if name.startswith("output") or not recorded]
    if not recorded or len(found) != len(recorded):
        return not recorded
    same_dtypes = all(str(value.dtype) == entry["dtype"] for value, entry in zip(found, recorded, strict=True))
    return same_dtypes and all(
        list(value.shape) == entry["shape"] for value, entry in zip(found, recorded, strict=True)
    )


def _entries(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        for item in value:
            yield from _entries(item)
    elif isinstance(value, dict):
        if "type" in value:
            yield value
        else:
            yield from _entries(list(value.values()))


def one_line(error: Exception | None) -> str:
    """Return an exception on one line."""
    if error is None:
        return ""
    text = " ".join(str(error).split())
    text = text if len(text) <= _REASON_LENGTH else f"{text[:_REASON_LENGTH]}..."
    return text if isinstance(error, UnreplayableError) else f"{type(error).__name__}: {text}"
