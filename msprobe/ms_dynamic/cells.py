"""Calls of Cells (levels L0 and mix).

``Cell.__call__`` is replaced while something is recorded, rather than giving each Cell hooks: MindSpore compiles the
hooks of a Cell into the graph of a ``mindspore.jit`` function that calls it, and a Cell without hooks takes another
path through MindSpore's own code. A recorded model runs the code that it runs without the tool.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from msprobe.core.open_call import OpenCall
from msprobe.ms_dynamic import calls
from msprobe.ms_dynamic.capture import MindsporeCapture
from msprobe.ms_dynamic.replaced import ReplacedAttributes


def named_cells(models: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Names of the Cells below the given roots: ``Cell.[index.]path.Class``; a root is not named itself."""
    several = len(models) > 1
    for index, root in enumerate(models):
        prefix = f"Cell.{index}." if several else "Cell."
        for path, cell in root.cells_and_names():
            if cell is not root:
                yield f"{prefix}{path}.{type(cell).__name__}", cell


class CellCalls:
    """Records the calls of known Cells.

    Parameters
    ----------
    capture : MindsporeCapture
    replaced : ReplacedAttributes
        Gets the replacement of ``__call__``.
    kind : type
        Class whose ``__call__`` every Cell runs.
    """

    def __init__(self, capture: MindsporeCapture, replaced: ReplacedAttributes, kind: type) -> None:
        self._capture = capture
        self._known: dict[int, tuple[str, Any]] = {}
        replaced.add(kind, "__call__", self._recorded)

    def record(self, cells: Iterator[tuple[str, Any]]) -> None:
        """Record these, too. A Cell that is reachable by several paths has the name of the first."""
        for base, cell in cells:
            self._known.setdefault(id(cell), (base, cell))

    def forget(self) -> None:
        """Record no Cell any more."""
        self._known.clear()

    def _recorded(self, original: calls.Function) -> calls.Function:
        capture, known = self._capture, self._known

        @functools.wraps(original)
        def recorded(cell: Any, *args: Any, **kwargs: Any) -> Any:
            found = known.get(id(cell))
            if found is None or not capture.recording:
                return original(cell, *args, **kwargs)
            opened = calls.begin(capture, found[0], args, kwargs, sys._getframe(1), cell)
            if opened is not None:
                opened.frame = sys._getframe(0)  # not in a variable: the frame would hold itself
                opened.outer = opened.node
                capture.threads.modules.append(opened)
            try:
                output = original(cell, *args, **kwargs)
            except BaseException as error:
                self._leave(opened)
                calls.abort(capture, opened, error)
                raise
            self._leave(opened)
            calls.end(capture, opened, output)
            return output

        return recorded

    def _leave(self, opened: OpenCall | None) -> None:
        """The call is over, and with it every call inside."""
        if opened is None:
            return
        opened.frame = None  # the frame holds this very object
        modules = self._capture.threads.modules
        if opened in modules:
            del modules[modules.index(opened) :]
