"""Where calls come from: cheap while training runs, formatted when the dump is written.

A stack is kept as (code object, instruction offset) pairs; line numbers and source lines are looked up at flush time.
The part outside the innermost running module does not change while that module runs, so it is walked once per module
call and shared by everything inside.
"""

from __future__ import annotations

import linecache
from collections.abc import Collection, Iterator
from pathlib import Path
from types import CodeType, FrameType

_OWN_FOLDER = str(Path(__file__).resolve().parents[1])
_COMPILER = str(Path("torch", "_dynamo"))  # torch's compiler, around the user's compiled functions


class StackNode:
    """One distinct stack: frames from the innermost outwards, then those of ``outer``. Compared by identity."""

    __slots__ = ("codes", "in_clip_grad", "offsets", "outer")

    def __init__(
        self, codes: tuple[CodeType, ...], offsets: tuple[int, ...], outer: StackNode | None, *, in_clip_grad: bool
    ) -> None:
        self.codes = codes
        self.offsets = offsets
        self.outer = outer
        self.in_clip_grad: bool = in_clip_grad or (outer is not None and outer.in_clip_grad)


class StackBook:
    """All distinct stacks of a run.

    Parameters
    ----------
    clip : collection of CodeType
        Code of the framework's functions that clip gradients.
    redispatch : CodeType, optional
        Code of what runs because of the capture; its caller is the function that runs a second time.
    """

    def __init__(self, clip: Collection[CodeType] = (), redispatch: CodeType | None = None) -> None:
        self._clip = clip
        self._redispatch = redispatch
        self._nodes: dict[tuple[int, ...], StackNode] = {}
        self._rendered: dict[tuple[int, int], str | None] = {}

    def node(self, frame: FrameType | None, anchor: FrameType | None, outer: StackNode | None) -> StackNode | None:
        """The stack from ``frame`` outwards.

        Parameters
        ----------
        frame : FrameType
            Innermost frame.
        anchor : FrameType, optional
            Frame of the innermost running module call; its own outside is ``outer``.
        outer : StackNode, optional
            Stack outside ``anchor``.

        Returns
        -------
        StackNode or None
            None if ``anchor`` is not on the stack: the module call it belongs to is over.
        """
        key = [id(outer)]
        walked = frame
        while walked is not None and walked is not anchor:
            key.append(id(walked.f_code))
            key.append(walked.f_lasti)
            walked = walked.f_back
        if walked is None and anchor is not None:
            return None
        found = self._nodes.get(tuple(key))
        if found is None:
            codes = tuple(step.f_code for step in _walk(frame, anchor))
            found = self.traced(codes, tuple(key[2::2]), outer)  # keeps the codes alive, so their ids stay theirs
            self._nodes[tuple(key)] = found
        return found

    def traced(self, codes: tuple[CodeType, ...], offsets: tuple[int, ...], outer: StackNode | None) -> StackNode:
        """A new stack from code that a compiler has traced: it does not run as these frames."""
        return StackNode(codes, offsets, outer, in_clip_grad=any(code in codes for code in self._clip))

    def render(self, node: StackNode | None) -> list[str]:
        """Format a stack, innermost frame first; frames that are there because of the capture are left out."""
        lines = []
        redispatched = False
        while node is not None:
            for code, offset in zip(node.codes, node.offsets, strict=True):
                line = None if redispatched else self._line(code, offset)
                redispatched = code is self._redispatch  # then its caller is the function that torch runs a second time
                if line is not None:
                    lines.append(line)
            node = node.outer
        return lines

    def _line(self, code: CodeType, offset: int) -> str | None:
        key = (id(code), offset)
        if key not in self._rendered:
            self._rendered[key] = None if code is self._redispatch else _format_frame(code, offset)
        return self._rendered[key]


def _walk(frame: FrameType | None, anchor: FrameType | None) -> Iterator[FrameType]:
    while frame is not None and frame is not anchor:
        yield frame
        frame = frame.f_back


def _line_number(code: CodeType, offset: int) -> int:
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            return line
    return code.co_firstlineno


def _format_frame(code: CodeType, offset: int) -> str | None:
    if code.co_filename.startswith(_OWN_FOLDER) or _COMPILER in code.co_filename:
        return None
    number = _line_number(code, offset)
    source = linecache.getline(code.co_filename, number).strip()
    return f"File {code.co_filename}, line {number}, in {code.co_name}, \n {source}"
