"""Results of asynchronous collectives: read when the program waits for them, and never kept alive for it.

A collective with ``async_op=True`` returns a ``Work``. The program gets one of ours, which hands everything on to it;
``wait()`` returns what the original returns, after the outputs have been recorded. Tensors are held by weak references
only, so that a work that is never waited for frees what it would have freed without the tool.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import P2POp, Work


class RecordedWork(Work):  # type: ignore[misc]
    """A work that tells when its outputs are ready.

    Parameters
    ----------
    work : Work
        What the collective has returned. Every question goes to it.
    ready : callable
        Called once, when the program has waited or has learnt that the work is complete.
    """

    def __init__(self, work: Work, ready: Callable[[], None]) -> None:
        super().__init__()
        self._work = work
        self._ready: Callable[[], None] | None = ready

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """Wait; returns what the original returns."""
        result = self._work.wait(*args, **kwargs)
        self._tell()
        return result

    def synchronize(self, *args: Any, **kwargs: Any) -> Any:
        """Make the current stream wait."""
        result = self._work.synchronize(*args, **kwargs)
        self._tell()
        return result

    def is_completed(self) -> bool:
        """Whether the outputs are there."""
        completed: bool = self._work.is_completed()
        if completed:
            self._tell()
        return completed

    def _tell(self) -> None:
        ready, self._ready = self._ready, None
        if ready is not None:
            ready()

    def __getattr__(self, name: str) -> Any:
        if name in ("_work", "_ready"):  # a copy that was never initialised
            raise AttributeError(name)
        return getattr(self._work, name)


def _delegate(name: str) -> Callable[..., Any]:
    original = getattr(Work, name)

    @functools.wraps(original)
    def method(self: RecordedWork, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._work, name)(*args, **kwargs)

    return method


def _complete(kind: type[RecordedWork]) -> None:
    """Hand every other method of a work on: those that it inherits would answer for an empty one."""
    for name in dir(Work):
        if not name.startswith(("__", "_pybind11")) and name not in vars(kind) and name != "unbox":
            setattr(kind, name, _delegate(name))


_complete(RecordedWork)


def weakly(value: Any) -> Any:
    """The same structure with weak references in the place of tensors; see :func:`alive`."""
    if isinstance(value, torch.Tensor):
        return weakref.ref(value)
    if isinstance(value, (list, tuple)):
        return [weakly(element) for element in value]
    if isinstance(value, P2POp):
        return _WeakOperation({name: weakly(part) for name, part in vars(value).items()})
    return value


def alive(value: Any) -> tuple[Any, int]:
    """Undo :func:`weakly`: the structure, with None for tensors that are gone, and how many those are."""
    if isinstance(value, weakref.ref):
        tensor = value()
        return tensor, int(tensor is None)
    if isinstance(value, list):
        parts = [alive(element) for element in value]
        return [part for part, _ in parts], sum(gone for _, gone in parts)
    if isinstance(value, _WeakOperation):
        found = {name: alive(part) for name, part in value.parts.items()}
        operation = object.__new__(P2POp)
        vars(operation).update({name: part for name, (part, _) in found.items()})
        return operation, sum(gone for _, gone in found.values())
    return value, 0


class _WeakOperation:
    """A point-to-point operation without its tensor."""

    __slots__ = ("parts",)

    def __init__(self, parts: dict[str, Any]) -> None:
        self.parts = parts
