"""Calls of the Primitives that Cells of the model hold as attributes: ``Primitive.attribute.Class.n``."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

from mindspore.ops.primitive import Primitive

from msprobe.ms_dynamic import calls
from msprobe.ms_dynamic.capture import MindsporeCapture
from msprobe.ms_dynamic.replaced import ReplacedAttributes


class PrimitiveCalls:
    """Records the calls of known Primitives.

    The ``__call__`` of their classes is replaced; the objects themselves stay as they are. One call of a Primitive may
    pass through the ``__call__`` of several of its classes: the first one records.

    Parameters
    ----------
    capture : MindsporeCapture
    replaced : ReplacedAttributes
        Gets the replacements.
    """

    def __init__(self, capture: MindsporeCapture, replaced: ReplacedAttributes) -> None:
        self._capture = capture
        self._replaced = replaced
        self._known: dict[int, tuple[str, Any]] = {}
        self._classes: set[type] = set()

    def record(self, models: Sequence[Any]) -> None:
        """Record the Primitives of all Cells of these models, those of the roots included, too."""
        for root in models:
            for _, cell in root.cells_and_names():
                for attribute, value in vars(cell).items():
                    if isinstance(value, Primitive):
                        self._add(f"Primitive.{attribute}.{type(value).__name__}", value)

    def forget(self) -> None:
        """Record no Primitive any more."""
        self._known.clear()

    def _add(self, base: str, primitive: Primitive) -> None:
        self._known.setdefault(id(primitive), (base, primitive))
        owner = next(kind for kind in type(primitive).__mro__ if "__call__" in vars(kind))
        if owner not in self._classes:
            self._classes.add(owner)
            self._replaced.add(owner, "__call__", self._recorded)

    def _recorded(self, original: calls.Function) -> calls.Function:
        capture, known = self._capture, self._known

        @functools.wraps(original)
        def recorded(primitive: Any, *args: Any, **kwargs: Any) -> Any:
            found = known.get(id(primitive))
            threads = capture.threads
            if found is None or not capture.recording or threads.primitive is primitive:
                return original(primitive, *args, **kwargs)
            opened = calls.begin(capture, found[0], args, kwargs, sys._getframe(1))
            outer, threads.primitive = threads.primitive, primitive
            try:
                output = original(primitive, *args, **kwargs)
            except BaseException as error:
                threads.primitive = outer
                calls.abort(capture, opened, error)
                raise
            threads.primitive = outer
            calls.end(capture, opened, output)
            return output

        return recorded
