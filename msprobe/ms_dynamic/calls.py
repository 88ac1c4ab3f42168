"""Around every recorded call: the functions that stand in for MindSpore's own while something is recorded."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from msprobe.core.open_call import OpenCall
from msprobe.ms_dynamic.capture import MindsporeCapture

Function = Callable[..., Any]


def recorded_function(capture: MindsporeCapture, base: str, function: Function, *, hides: bool) -> Function:
    """Return a function that does what ``function`` does and records it as ``base`` while the capture runs.

    Parameters
    ----------
    capture : MindsporeCapture
    base : str
        ``Prefix.name``.
    function : callable
    hides : bool
        Whether functions that it calls are not recorded.
    """

    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        threads = capture.threads
        if not capture.running or threads.busy or threads.hiding:
            return function(*args, **kwargs)
        opened = begin(capture, base, args, kwargs, sys._getframe(1))
        threads.hiding += hides
        try:
            output = function(*args, **kwargs)
        except BaseException as error:
            threads.hiding -= hides
            abort(capture, opened, error)
            raise
        threads.hiding -= hides
        end(capture, opened, output)
        return output

    return recorded


def recorded_custom_function(current: Callable[[], MindsporeCapture | None], base: str, function: Function) -> Function:
    """Return what records a function that the user registered: by the capture of the moment, if there is one.

    Parameters
    ----------
    current : callable
        Returns the capture that records API calls now, or None.
    base : str
        ``Prefix.name``.
    function : callable
    """

    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        capture = current()
        if capture is None:
            return function(*args, **kwargs)
        return recorded_function(capture, base, function, hides=True)(*args, **kwargs)

    return recorded


def begin(  # noqa: PLR0913, PLR0917 - what a call is made of
    capture: MindsporeCapture,
    base: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    frame: FrameType | None,
    module: Any = None,
) -> OpenCall | None:
    """A call begins; never raises."""
    with capture.hidden():
        try:
            return capture.begin(base, args, kwargs, frame, module)
        except Exception as error:  # noqa: BLE001 - hook boundary
            capture.failed(f"inputs of {base}", error)
            return None


def end(capture: MindsporeCapture, opened: OpenCall | None, output: Any) -> None:
    """A call returned; never raises."""
    _tell(capture, capture.end, opened, output, "outputs")


def abort(capture: MindsporeCapture, opened: OpenCall | None, error: BaseException) -> None:
    """A call raised; never raises itself."""
    _tell(capture, capture.abort, opened, error, "end")


def _tell(
    capture: MindsporeCapture, what: Callable[[OpenCall, Any], None], opened: OpenCall | None, value: Any, part: str
) -> None:
    if opened is None:
        return
    with capture.hidden():
        try:
            what(opened, value)
        except Exception as error:  # noqa: BLE001 - hook boundary
            capture.failed(f"{part} of {opened.call.base}", error)
