"""The user's line behind a traced call, in the form that eager naming reads: a frame."""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias

import torch

from msprobe.core.interruptions import pass_on_interruption
from msprobe.dispatch.operands import local_variable
from msprobe.graph.graph_plan import Site
from msprobe.graph.variables import realized

_COMPILER_FOLDER = str(Path(torch.__file__).parent / "_dynamo")
Place: TypeAlias = tuple[int | None, ...]


class TracedFrame:
    """A frame that Dynamo runs symbolically, with the attributes of a frame object that naming looks at.

    Parameters
    ----------
    translator
        Dynamo's instruction translator of the frame.
    """

    def __init__(self, translator: Any) -> None:
        self._translator = translator
        self.f_code: CodeType = translator.f_code
        self.f_lasti: int = _offset(translator)
        self.f_globals: dict[str, Any] = translator.f_globals
        self.f_builtins: dict[str, Any] = translator.f_builtins

    @property
    def f_back(self) -> TracedFrame | None:
        """The frame around it, if that is traced, too."""
        parent = getattr(self._translator, "parent", None)
        return TracedFrame(parent) if parent is not None else None

    @property
    def f_locals(self) -> dict[str, Any]:
        """Local variables whose values are known; a tensor stands for its like."""
        return {name: python_value(variable) for name, variable in self._translator.symbolic_locals.items()}


def user_frame(translator: Any) -> TracedFrame:
    """The frame that contains the API call: what Dynamo calls in place of a builtin function is left out."""
    while (
        translator.f_code.co_filename.startswith(_COMPILER_FOLDER) and getattr(translator, "parent", None) is not None
    ):
        translator = translator.parent
    return TracedFrame(translator)


def python_value(variable: Any) -> Any:
    """The value of a variable as far as naming needs it; None if it is not known.

    A variable that the traced code has not touched yet stays lazy: looking at it would add a guard.
    """
    if getattr(variable, "is_realized", None) is not None and not variable.is_realized():
        return None
    variable = realized(variable)
    if variable.is_tensor():
        return variable.as_proxy().node.meta.get("example_value")
    try:
        return variable.as_python_constant()
    except Exception as error:  # noqa: BLE001 - Dynamo says in many ways that a value is no constant
        pass_on_interruption(error)
        value = getattr(variable, "value", None)
        return value if isinstance(value, torch.nn.Module) else None


def site_of(translator: Any) -> Site:
    """Where the traced call is written, from the innermost frame to the compiled one."""
    frames = list(_outwards(translator))
    return Site(tuple(frame.f_code for frame in frames), tuple(_offset(frame) for frame in frames))


def _outwards(translator: Any) -> Iterator[Any]:
    while translator is not None:
        yield translator
        translator = getattr(translator, "parent", None)


def _offset(translator: Any) -> int:
    """Offset, in the code object, of the instruction that a translator is at.

    Dynamo's own offsets are those of a rewritten program; the place in the source text tells which instruction it is.
    """
    current = translator.current_instruction
    places = _places(translator.f_code)
    at = places.get((current.opname, _span(current.positions)))
    if at is None:
        offset = getattr(current, "offset", None)
        return offset if isinstance(offset, int) else 0
    return at


@functools.lru_cache(maxsize=512)
def _places(code: CodeType) -> dict[tuple[str, Place], int]:
    return {
        (found.opname, _span(found.positions)): found.offset
        for found in dis.get_instructions(code)
        if found.positions is not None
    }


def _span(positions: Any) -> Place:
    return tuple(getattr(positions, name, None) for name in ("lineno", "end_lineno", "col_offset", "end_col_offset"))


class _Locals(Mapping[str, Any]):
    """Local variables of the frame that runs a graph, read one by one without leaving a trace on it."""

    def __init__(self, frame: FrameType) -> None:
        self._frame = frame

    def __getitem__(self, name: str) -> Any:
        return local_variable(self._frame, name)

    def __iter__(self) -> Any:
        return iter(self._frame.f_code.co_varnames)

    def __len__(self) -> int:
        return len(self._frame.f_code.co_varnames)


def frame_scope(frame: FrameType | None) -> dict[str, Any]:
    """What Dynamo's expressions are written in: local variables and globals of the frame that runs a graph."""
    return {} if frame is None else {"L": _Locals(frame), "G": frame.f_globals}
