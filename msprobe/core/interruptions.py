"""Exceptions that are not ours to keep: those that a signal handler raises while code of ours happens to run.

Python runs the handlers of signals between two instructions of the main thread, whatever these belong to. PyTorch's
data loader reports a dead worker that way, and so do time limits. At a hook boundary such an exception looks like a
failure of the tool, but it is a message to the program.
"""

from __future__ import annotations

from itertools import pairwise
from types import FrameType, TracebackType


def pass_on_interruption(error: BaseException) -> None:
    """Raise an exception again if a signal handler has raised it; to be called where others are kept.

    A handler is told by its arguments: ``(signal number, interrupted frame)``, the latter its caller. What Python or we
    have made a cause of another error counts, too: an interruption inside ``__set_name__`` comes as a `RuntimeError`.

    Parameters
    ----------
    error
        What was caught.

    Raises
    ------
    BaseException
        ``error`` itself, or its cause.
    """
    link: BaseException | None = error
    while link is not None:
        if not isinstance(link, Exception) or _came_from_handler(link):
            raise link
        link = link.__cause__  # not __context__: that may be one that the program is handling


def _came_from_handler(error: BaseException) -> bool:
    caught_in: TracebackType | None = error.__traceback__
    if caught_in is None:
        return False
    # Not in the frame that caught it: reading the variables of a running frame would make a cycle with the error.
    place = caught_in.tb_next
    while place is not None:
        if _is_handler(place.tb_frame):
            return True
        place = place.tb_next
    return False


def _is_handler(frame: FrameType) -> bool:
    code = frame.f_code
    count = code.co_argcount + bool(code.co_flags & 0x04)  # CO_VARARGS: the tuple comes after the keyword-only names
    if not 1 <= count <= 4 or frame.f_back is None:
        return False
    local = frame.f_locals
    values = [local.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & 0x04:
        values.extend(local.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount], ()))
    return any(
        interrupted is frame.f_back and issubclass(type(number), int) for number, interrupted in pairwise(values)
    )
