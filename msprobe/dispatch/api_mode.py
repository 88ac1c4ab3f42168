"""See every torch function call of a thread, whatever name it was imported under, without replacing anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from sys import _getframe
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from msprobe.core.risk import Risk
from msprobe.dispatch.api_table import Api, ApiTable
from msprobe.dispatch.call_site import Caller, CallSites, find_caller
from msprobe.dispatch.capture import Capture
from msprobe.dispatch.departure import leave_after_call
from msprobe.dispatch.flat_phase import FlatPhase
from msprobe.dispatch.recompute import may_prepare, prepares_recomputation
from msprobe.dispatch.sharded_modules import is_wrapper_code, may_be_wrapper_code
from msprobe.measure.backends import native_module

if TYPE_CHECKING:
    from msprobe.core.open_call import OpenCall
    from msprobe.dispatch.collectives import Collectives

_run_flat_call = getattr(native_module(), "run_flat_call", None)
_NO_KWARGS: Mapping[str, Any] = {}
_DisableTorchFunction = torch._C.DisableTorchFunction
_LOW_RISK = Api("", "low risk")
COMPILED_BACKWARD = "CompiledFunctionBackward"
"""Autograd node of what AOTAutograd has compiled."""
_task_id = torch._C._current_graph_task_id
_current_node = torch._C._current_autograd_node


class ApiMode(TorchFunctionMode):
    """Record the outermost API of each Python call (levels L1 and mix).

    torch takes the mode off its stack while a call is handled, so what an API calls inside stays hidden. Only its
    entry into the autograd engine puts it back (:mod:`msprobe.dispatch.engine`).

    Parameters
    ----------
    capture : Capture
    table : ApiTable
    lowest : Risk
        APIs of a lower risk class are left out.

    Attributes
    ----------
    table, lowest
        As given.
    paused : bool
        Calls of every thread pass unseen.
    collectives : Collectives or None
        Records operators that communicate.
    """

    def __init__(self, capture: Capture, table: ApiTable, lowest: Risk) -> None:
        super().__init__()
        self._capture = capture
        self.table = table
        self.lowest = lowest
        self._sites = CallSites()
        self.paused = False
        self.collectives: Collectives | None = None
        self._wanted: dict[Any, Api | None] = {}

    def enter_thread(self) -> None:
        """Put the mode on this thread's stack.

        It goes below the modes that are there: leaving ``with mode:`` takes away whatever is on top, and must not meet
        ours if the capture began inside. Only the default device stays below it, where torch insists on it.
        """
        if self in torch.overrides._get_current_function_mode_stack():  # left by a stop() in a call or another thread
            self._capture.threads.has_mode = True
        if not self._capture.threads.has_mode:
            default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
            stack = torch.overrides._get_current_function_mode_stack()
            above = [torch.overrides._pop_mode() for mode in stack if mode is not default]
            for mode in (self, *reversed(above)):
                torch.overrides._push_mode(mode)
            self._capture.threads.has_mode = True

    def leave_thread(self) -> None:
        """Take the mode off this thread's stack, also from under modes that were entered later."""
        while lift_mode(self) is not None:
            pass
        self._capture.threads.has_mode = False

    def belongs_here(self) -> bool:
        """Whether the mode is missing on this thread's stack: lifted for a moment, and not stopped since."""
        here = self._capture.running and self._capture.threads.has_mode
        return here and self not in torch.overrides._get_current_function_mode_stack()

    def switch_thread(self) -> None:
        """Put the mode on this thread's stack, or take it off."""
        if self._capture.threads.has_mode:
            self.leave_thread()
        else:
            self.enter_thread()

    def __torch_function__(  # noqa: PLR0911 - one for each kind of call
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func`` and record the call if it is wanted."""
        if torch.compiler.is_compiling():
            return func(*args, **(kwargs or _NO_KWARGS))
        try:
            api = self._wanted[func]
        except (KeyError, TypeError):
            api = self._classify(func)
        capture = self._capture
        if api is None and capture.running:  # the most of all calls: attributes of tensors and the like
            return func(*args, **kwargs) if kwargs else func(*args)
        flat = capture.threads.flat
        phase = flat.native if flat is not None else None  # kept: the call may end the phase
        if phase is not None:
            output = _run_flat_call(phase, func, args, kwargs, _getframe(1))
            if output is not phase:
                return output
        if (
            self.paused
            or not capture.running
            or (_task_id() != -1 and type(_current_node()).__name__ == COMPILED_BACKWARD)
        ):
            if not capture.running:
                leave_after_call(self, capture)
        elif api is _LOW_RISK:
            capture.coverage.low_risk += 1
        elif api.communicates and self.collectives is not None:
            return self.collectives.run_functional(api.name, func, args, kwargs or _NO_KWARGS)
        elif api.transparent and not kwargs and hasattr(func, "__wrapped__"):
            return self._look_inside(func.__wrapped__, args)
        else:
            return self.call(api, func, args, kwargs or _NO_KWARGS)
        return func(*args, **(kwargs or _NO_KWARGS))

    def begin_phase(self) -> None:
        """The capture has begun a phase of this thread: have its calls recorded natively, if they are alike."""
        flat = self._capture.threads.flat
        if flat is not None and _run_flat_call is not None:
            flat.prepare(self, self._wanted, self._name_flat)

    def _name_flat(self, func: Any, args: tuple[Any, ...], frame: FrameType) -> str | None:
        """Base of the name of a call that needs nothing but being recorded."""
        api = self._wanted[func]
        if api is None or api is _LOW_RISK or api.communicates or api.transparent:
            return None
        if id(frame.f_code) not in self._sites.plain:
            return None
        if api.at_site:
            api = self._sites.resolve(api, frame, args)
        return api.base if api.risk >= self.lowest else None

    def _look_inside(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        torch.overrides._push_mode(self)
        try:
            return function(*args)
        finally:
            lift_mode(self)  # not a plain pop: the capture may have been stopped

    def _classify(self, func: Any) -> Api | None:
        try:
            api: Api | None = self.table.find(func)
        except TypeError:  # an unhashable callable
            return None
        assert api is not None  # noqa: S101 - find always names
        if api.ignored or api.engine:
            api = None
        elif api.risk < self.lowest and not api.at_site:
            api = _LOW_RISK
        self._wanted[func] = api
        return api

    def name(self, func: Any, caller: Caller, arguments: Callable[[], Sequence[Any]]) -> Api | None:
        """The API that a call stands for, whatever its risk class; None if it is not to be recorded.

        Parameters
        ----------
        func
            The function object, as torch passes it to ``__torch_function__``.
        caller : Caller
        arguments : callable
            Returns the positional arguments, for a function that the call site decides about.
        """
        try:
            api = self.table.find(func)
        except TypeError:  # an unhashable callable
            return None
        if api.ignored or api.engine:
            return None
        if api.at_site:
            api = self._sites.resolve(api, caller.frame, tuple(arguments()), caller)
        return None if prepares_recomputation(api.base, caller.frame) else api

    def call(self, api: Api, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run ``func`` as a recorded call of ``api``."""
        recorder: Capture | FlatPhase = self._capture
        opened: Any = None
        with _DisableTorchFunction():
            try:
                frame = _getframe(2)
                if id(frame.f_code) not in self._sites.plain:
                    opened = self._begin(api, func, args, kwargs)
                else:
                    if api.at_site:
                        api = self._sites.resolve(api, frame, args)
                    if api.risk >= self.lowest:
                        flat = self._capture.threads.flat
                        if flat is not None:
                            recorder = flat
                            opened = flat.begin(api.base, args, kwargs, frame)
                        if opened is None:
                            recorder = self._capture
                            opened = recorder.begin(api.base, args, kwargs, frame)
            except Exception as error:  # noqa: BLE001 - hook boundary
                opened = None
                self._capture.failed(f"inputs of {api.base}", error)
        try:
            output = func(*args, **kwargs)
        except BaseException as error:
            if opened is not None:
                self._abort(api, recorder, opened, error)
            raise
        if opened is not None:
            alarm = None
            with _DisableTorchFunction():
                try:
                    alarm = recorder.end(opened, output, args[0] if output is None and args else None)
                except Exception as error:  # noqa: BLE001 - hook boundary
                    self._capture.failed(f"outputs of {api.base}", error)
            if alarm is not None:
                alarm.sound()
        return output

    def _begin(
        self, api: Api, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> OpenCall | None:
        """Begin a call from a frame that is not known to be plain: find who really calls, and how it is written."""
        caller = find_caller(3)
        frame = caller.frame
        if api.at_site:
            api = self._sites.resolve(api, frame, args, caller)
        if api.risk < self.lowest or prepares_recomputation(api.base, frame):
            return None
        if is_wrapper_code(frame):
            self._capture.coverage.not_recorded["call that torch.distributed makes around the model"] += 1
            return None
        if caller.wrapped:
            args, kwargs = self._sites.as_written(func, caller, args, kwargs)
        elif not (caller.dispatched or caller.functional or may_prepare(frame) or may_be_wrapper_code(frame)):
            self._sites.note_plain(frame, _getframe(3))
        return self._capture.begin(api.base, args, kwargs, frame)

    def _abort(self, api: Api, recorder: Capture | FlatPhase, opened: Any, error: BaseException) -> None:
        with _DisableTorchFunction():
            try:
                recorder.abort(opened, error)
            except Exception as failure:  # noqa: BLE001 - hook boundary
                self._capture.failed(f"failed call of {api.base}", failure)


class hidden:  # noqa: N801 - used like a function
    """While inside, calls are not seen by ``mode``: what a recorded function calls belongs to it."""

    def __init__(self, mode: ApiMode) -> None:
        self._mode = mode
        self._place: int | None = None

    def __enter__(self) -> None:
        self._place = lift_mode(self._mode)

    def __exit__(self, *exc: object) -> None:
        if self._place is not None and self._mode.belongs_here():
            put_back(self._mode, self._place)


def lift_mode(mode: TorchFunctionMode) -> int | None:
    """Take ``mode`` off this thread's stack, wherever it lies.

    Returns
    -------
    int or None
        How many modes lie below its place, for :func:`put_back`; None if it is not on the stack.
    """
    stack = torch.overrides._get_current_function_mode_stack()
    if mode not in stack:
        return None
    place = len(stack) - 1 - stack[::-1].index(mode)
    above = _pop_to(place + 1)
    torch.overrides._pop_mode()
    for other in above:
        torch.overrides._push_mode(other)
    return place


def put_back(mode: TorchFunctionMode, place: int) -> None:
    """Undo :func:`lift_mode`, whatever was put on top or taken away since."""
    above = _pop_to(place)
    for other in (mode, *above):
        torch.overrides._push_mode(other)


def _pop_to(height: int) -> list[Any]:
    """Take away all modes above ``height``; returns them, lowest first."""
    above = [torch.overrides._pop_mode() for _ in range(torch._C._len_torch_function_stack() - height)]
    return above[::-1]
