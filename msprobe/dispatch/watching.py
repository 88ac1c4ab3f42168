"""What a task does around recorded calls besides encoding their values.

`Capture` and `GradientWatch` call a :class:`Watcher` at fixed points; a task that needs more than statistics and files
implements it. One without a watcher pays for nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msprobe.core.backward_records import Alarm
from msprobe.measure.tensor_files import OwnElements
from msprobe.store import StepWriter

if TYPE_CHECKING:
    from msprobe.core.backward_span import Span
    from msprobe.dispatch.gradient_edges import SpanPlan

Files = dict[str, OwnElements]


class Watched:
    """State of one call, or of one backward pass through it.

    Attributes
    ----------
    name : str
        Its record.
    files : dict or None
        File name -> saver of the tensors met so far; None when none are kept.
    """

    __slots__ = ("files", "name")

    def __init__(self, name: str, files: Files | None) -> None:
        self.name = name
        self.files = files


class Watcher:
    """A task's part in the capture. Methods run inside the hook boundary; what they raise becomes a coverage entry.

    Parameters
    ----------
    settle : callable
        Waits until every result that is still on a device stands in its record.

    Attributes
    ----------
    ended : str or None
        Why nothing more is to be recorded in this run.
    """

    def __init__(self, settle: Callable[[], None]) -> None:
        self.ended: str | None = None
        self._settle = settle
        self._current = threading.local()

    # -- a call, or a backward pass through it

    def begin(self, name: str, span: Span | None = None) -> Watched | None:
        """Record a call from now on, before its inputs are encoded; with a span, a backward pass through it.

        None: this call is recorded as usual, and nothing is done around it.
        """
        return None

    def run(self, watched: Watched, record: dict[str, Any]) -> None:
        """The inputs of a forward call are encoded; next it runs."""

    def returned(self, watched: Watched) -> None:
        """The call, or the one node of a backward pass, has run. What is encoded next belongs to it."""
        self._keep_for(watched, hold=False)

    def resume(self, watched: Watched) -> None:
        """A gradient of a backward pass of several nodes has arrived; it is encoded next."""
        self._keep_for(watched, hold=True)

    def output(self, watched: Watched, value: Any) -> None:
        """A result of the call; of a backward pass, a gradient of an input."""

    def end(self, watched: Watched, record: dict[str, Any]) -> Alarm | None:
        """The record is complete and will be added next."""
        return None

    def watch_nodes(self, span: Span, plan: SpanPlan) -> None:
        """The gradients of a call are about to be watched: the place for hooks that run before those of the capture."""

    # -- tensors that may become files

    def write_tensor(self, file_name: str, saver: OwnElements) -> str | None:
        """Keep a tensor that the encoder wants in a file. No file is written yet, so there is no name to record."""
        files: Files | None = getattr(self._current, "files", None)
        if files is not None:
            if self._current.hold:
                saver.hold()
            files[file_name] = saver
        return None

    def _keep_for(self, watched: Watched | None, *, hold: bool) -> None:
        """Collect files for ``watched`` in this thread; with ``hold``, copies, since the call may write to them."""
        self._current.files = watched.files if watched is not None else None
        self._current.hold = hold

    # -- steps

    def open_step(self, writer: StepWriter) -> None:
        """A step begins."""

    def resolve(self) -> None:
        """Fill in results that are still on a device; called before records are written, possibly by another thread."""

    def close_step(self) -> None:
        """A step ends: every record was added."""

    def conclude(self) -> None:
        """The run is over."""

    def notes(self) -> dict[str, Any]:
        """What coverage.json says about this step."""
        return {}
