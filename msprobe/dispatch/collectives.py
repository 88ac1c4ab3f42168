"""Record the collectives of ``torch.distributed`` as ``Distributed.name``.

Their Python functions are entered in place (:mod:`msprobe.dispatch.function_entry`), so that it does not matter under
which name a framework has stored them. A collective writes into its arguments: the outputs of its record are its
arguments as they are when it is complete, which for an asynchronous one is when the program has waited
(:mod:`msprobe.dispatch.async_work`). Nothing here communicates or waits by itself, so ranks may differ in whether they
record.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, update_wrapper
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import Work, distributed_c10d

from msprobe.dispatch.api_mode import ApiMode, hidden
from msprobe.dispatch.async_work import RecordedWork, alive, weakly
from msprobe.dispatch.collective_arguments import COLLECTIVES, OBJECT_COLLECTIVES, still_running, without
from msprobe.dispatch.function_entry import FunctionEntry

if TYPE_CHECKING:
    from msprobe.core.open_call import OpenCall
    from msprobe.dispatch.capture import Capture

_PLUMBING = frozenset(
    {
        "msprobe.dispatch.api_mode",
        "torch._ops",
        "torch.distributed._functional_collectives",
        "torch.distributed.c10d_logger",
        "torch.distributed.distributed_c10d",
        "torch.overrides",
        "typing_extensions",
        __name__,
    }
)
_IllegalWork = getattr(distributed_c10d, "_IllegalWork", None)


class _Thread(threading.local):
    """What a thread is in the middle of.

    Attributes
    ----------
    inside : bool
        A collective is running: what it calls belongs to it.
    coalesced : list or None
        Collectives that ``_coalescing_manager`` holds back until its block ends.
    """

    def __init__(self) -> None:
        self.inside = False
        self.coalesced: list[_Pending] | None = None


class Collectives:
    """The collectives of one capture.

    Parameters
    ----------
    capture : Capture
    mode : ApiMode
        What a recorded function calls is hidden from it.
    """

    def __init__(self, capture: Capture, mode: ApiMode) -> None:
        self._capture = capture
        self._mode = mode
        self._thread = _Thread()
        self._entries: list[tuple[FunctionEntry, Callable[..., Any]]] = []
        self._pending: dict[int, _Pending] = {}

    def attach(self) -> None:
        """See every collective from now on."""
        self._mode.collectives = self
        if not self._entries:
            self._entries = list(self._plan())
        for entry, replacement in self._entries:
            entry.exchange(replacement)

    def detach(self) -> None:
        """Leave every function as it was. Works that are waited for later are still recorded, until the step ends."""
        self._mode.collectives = None
        for entry, _ in self._entries:
            entry.restore()

    def _plan(self) -> Iterator[tuple[FunctionEntry, Callable[..., Any]]]:
        """What to run in place of which function."""
        for name, written in COLLECTIVES.items():
            entry = _entry(name)
            if entry is not None:
                place = entry.parameters.index(written) if written in entry.parameters else None
                yield entry, _named(partial(self._run, entry.original, name, place, written), entry)
        for name in OBJECT_COLLECTIVES:
            entry = _entry(name)
            if entry is not None:
                yield entry, _named(partial(self._hide, entry.original), entry)
        entry = _entry("_coalescing_manager")
        if entry is not None:
            yield entry, _named(partial(self._coalesce, contextlib.contextmanager(entry.original)), entry)

    def close_step(self) -> None:
        """The step is over: record what is complete, and the inputs of what nobody has waited for."""
        for pending in list(self._pending.values()):
            self._finish(pending, ready=pending.completed())

    def _seen(self) -> bool:
        """Whether a call that this thread makes now is recorded and not part of another one."""
        capture, mode = self._capture, self._mode
        if torch.compiler.is_compiling() or self._thread.inside or mode.paused or not capture.running:
            return False
        return not capture.threads.has_mode or mode in torch.overrides._get_current_function_mode_stack()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        self._thread.inside = True
        try:
            with hidden(self._mode):
                yield
        finally:
            self._thread.inside = False

    # -- what runs in place of the functions

    def _run(
        self, original: Callable[..., Any], name: str, place: int | None, key: str | None, *args: Any, **kwargs: Any
    ) -> Any:
        if not self._seen():
            return original(*args, **kwargs)
        opened = self._begin(name, without(args, place), {k: None if k == key else v for k, v in kwargs.items()})
        try:
            with self._alone():
                result = original(*args, **kwargs)
        except BaseException as error:
            if opened is not None:
                self._abort([_Pending(opened, None)], error)
            raise
        if opened is None:
            return result
        written: tuple[Any, ...] = (*args, *kwargs.values())
        pending = _Pending(opened, weakly(without(written, 0) if name == "isend" else written))
        if self._thread.coalesced is not None:
            self._thread.coalesced.append(pending)
            return result
        return self._follow(pending, result)

    def run_functional(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run an operator of ``torch.distributed._functional_collectives``, as the function mode sees it.

        Its result is there when the program has used or waited for it: the record of ``wait_tensor`` has the numbers,
        that of the collective itself has type and shape only.
        """
        waits = name.endswith("wait_tensor")
        opened = self._begin(name, (None,) * len(args) if waits else args, kwargs)
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            if opened is not None:
                self._abort([_Pending(opened, None)], error)
            raise
        if opened is not None:
            outputs = result if waits else still_running(result)
            self._guarded("outputs", name, partial(self._capture.end, opened, outputs))
        return result

    def _hide(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._seen():
            return original(*args, **kwargs)
        self._capture.coverage.not_recorded["collective of Python objects"] += 1
        with self._alone():
            return original(*args, **kwargs)

    def _coalesce(self, manager: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Body of ``_coalescing_manager``: its collectives run when its block ends."""
        outer = self._thread.coalesced
        held: list[_Pending] = []
        if self._seen():
            self._thread.coalesced = held
        try:
            with manager(*args, **kwargs) as block:
                yield block
        except BaseException as error:
            self._abort(held, error)
            raise
        finally:
            self._thread.coalesced = outer
        if not held:
            return
        together = _together(len(block.works), partial(self._finish_all, held))
        block.works[:] = [self._recorded(work, together, held) for work in block.works]
        if not block.works:
            together()

    # -- records

    def _begin(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> OpenCall | None:
        def begin() -> OpenCall | None:
            opened = self._capture.begin(f"Distributed.{name}", args, kwargs, _caller())
            if opened is not None:
                opened.edges = None  # communication has no gradient of its own
            return opened

        return self._guarded("inputs", name, begin)

    def _follow(self, pending: _Pending, result: Any) -> Any:
        """Record the outputs when they are there; returns what to hand to the program."""
        works = result if isinstance(result, list) else [result]
        if not works or not all(isinstance(work, Work) and type(work) is not _IllegalWork for work in works):
            self._finish(pending)
            return result
        together = _together(len(works), partial(self._finish, pending))
        recorded = [self._recorded(work, together, [pending]) for work in works]
        return recorded if isinstance(result, list) else recorded[0]

    def _recorded(self, work: Work, ready: Callable[[], None], waiting: Sequence[_Pending]) -> RecordedWork:
        recorded = RecordedWork(work, ready)
        for pending in waiting:
            pending.works.append(weakref.ref(recorded))
            self._pending[id(pending)] = pending
        return recorded

    def _abort(self, waiting: Sequence[_Pending], error: BaseException) -> None:
        for opened in (pending.opened for pending in waiting if pending.opened is not None):
            self._guarded("failed call", opened.call.base, partial(self._capture.abort, opened, error))

    def _finish_all(self, waiting: Sequence[_Pending]) -> None:
        for pending in waiting:
            self._finish(pending)

    def _finish(self, pending: _Pending, *, ready: bool = True) -> None:
        self._pending.pop(id(pending), None)
        opened, pending.opened = pending.opened, None
        if opened is None:
            return
        alarm = self._guarded("outputs", opened.call.base, partial(self._record, opened, pending, ready))
        if alarm is not None:
            alarm.sound()

    def _record(self, opened: OpenCall, pending: _Pending, ready: bool) -> Any:
        outputs, gone = alive(pending.outputs)
        reasons = self._capture.encoder.null_reasons
        if not ready:
            outputs = []
            reasons["asynchronous collective that was not waited for in its step"] += 1
        elif gone:
            reasons["tensor was freed before its collective was waited for"] += gone
        return self._capture.end(opened, outputs)

    def _guarded(self, what: str, name: str, action: Callable[[], Any]) -> Any:
        with torch._C.DisableTorchFunction():
            try:
                return action()
            except Exception as error:  # noqa: BLE001 - hook boundary
                self._capture.failed(f"{what} of {name}", error)
        return None


class _Pending:
    """A collective between its call and the time its outputs are there."""

    __slots__ = ("opened", "outputs", "works")

    def __init__(self, opened: OpenCall, outputs: Any) -> None:
        self.opened: OpenCall | None = opened
        self.outputs = outputs
        self.works: list[weakref.ref[RecordedWork]] = []

    def completed(self) -> bool:
        """Whether all of its works are there and complete; asks, and does not wait."""
        works = [reference() for reference in self.works]
        return all(work is not None and work._work.is_completed() for work in works)


def _entry(name: str) -> FunctionEntry | None:
    """The function of c10d, if this torch has it and nobody has put something else in its place."""
    try:
        return FunctionEntry(getattr(distributed_c10d, name, None))
    except TypeError:
        return None


def _named(replacement: Callable[..., Any], entry: FunctionEntry) -> Callable[..., Any]:
    """Give the replacement the name of the original: c10d asks for it when a call fails."""
    return update_wrapper(replacement, entry.original)


def _together(count: int, action: Callable[[], None]) -> Callable[[], None]:
    """Runs ``action`` when called for the ``count``-th time."""
    left = [count]

    def one_more() -> None:
        left[0] -= 1
        if left[0] <= 0:
            action()

    return one_more


def _caller() -> FrameType:
    """The frame that calls the collective."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") in _PLUMBING:
        frame = frame.f_back
    return frame or sys._getframe(1)
