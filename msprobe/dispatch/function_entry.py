"""Run something else in place of a function without replacing the function.

``from torch.distributed import all_reduce`` keeps the function object, and so do frameworks that store it under a name
of their own: a new attribute in torch would be seen by none of them. What the object *does* is exchanged instead, so
that every name of it leads to the recording, and ``torch.distributed.all_reduce is all_reduce`` stays true:

* most functions of c10d are decorated; the decorator's closure cell holds the function inside;
* the others get another code object, and keep their signature.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any


class FunctionEntry:
    """One function whose body can be exchanged.

    Parameters
    ----------
    function : function
        A plain Python function: decorated, with the original in a closure cell and as ``__wrapped__``, or without a
        closure.

    Attributes
    ----------
    original : callable
        What the function runs when nothing is exchanged.

    Raises
    ------
    TypeError
        If it is neither.
    """

    def __init__(self, function: Any) -> None:
        if not isinstance(function, FunctionType):
            raise TypeError(f"{function!r} is no Python function, its body cannot be exchanged")
        self._function = function
        self._cell = _cell_of(function)
        self._exchanged: Any = None
        self._signature = inspect.signature(function)
        if self._cell is not None:
            self.original: Callable[..., Any] = function.__wrapped__  # type: ignore[attr-defined]
            return
        if function.__closure__:
            raise TypeError(f"{function.__qualname__} has a closure without __wrapped__, its body cannot be exchanged")
        self._code = function.__code__
        copy = FunctionType(self._code, function.__globals__, function.__name__, function.__defaults__)
        copy.__kwdefaults__ = function.__kwdefaults__
        self.original = copy

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters, in order."""
        return list(self._signature.parameters)

    def exchange(self, replacement: Callable[..., Any]) -> None:
        """Run ``replacement`` from now on, with the arguments of the call; until :meth:`restore`."""
        if self._cell is not None:
            self._exchanged = replacement
            self._cell.cell_contents = replacement
        else:
            self._exchanged = _calling(replacement, self._code)
            self._function.__code__ = self._exchanged
            self._function.__signature__ = self._signature  # type: ignore[attr-defined]

    def restore(self) -> None:
        """Run the original again, unless something else has been put in its place since."""
        if self._cell is not None:
            if self._exchanged is not None and self._cell.cell_contents is self._exchanged:
                self._cell.cell_contents = self.original
        elif self._exchanged is not None and self._function.__code__ is self._exchanged:
            self._function.__code__ = self._code
            del self._function.__signature__  # type: ignore[attr-defined]
        self._exchanged = None


def _cell_of(function: FunctionType) -> CellType | None:
    """The closure cell that holds what ``function`` decorates."""
    inside = getattr(function, "__wrapped__", None)
    cells = function.__closure__ or ()
    return next((cell for cell in cells if inside is not None and cell.cell_contents is inside), None)


def _calling(replacement: Callable[..., Any], code: CodeType) -> CodeType:
    """Code of a function that hands its arguments to ``replacement``; named as ``code`` in tracebacks."""

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        place: Any = "what runs instead"
        return place(*args, **kwargs)

    template = stand_in.__code__
    constants = tuple(replacement if value == "what runs instead" else value for value in template.co_consts)
    return template.replace(co_consts=constants, co_name=code.co_name)
