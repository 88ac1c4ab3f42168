"""Where calls come from: cheap while training runs, formatted when the dump is written.

A stack is kept as (code object, instruction offset) pairs; line numbers and source lines are looked up at flush time.
The part outside the innermost running module does not change while that module runs, so it is walked once per module
call and shared by everything inside.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Collection, Hashable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import TypeAlias

_OWN_FOLDER = str(Path(__file__).resolve().parents[1])
_COMPILER = str(Path("torch", "_dynamo"))  # torch's compiler, around the user's compiled functions


class StackNode:
    """One distinct stack: frames from the innermost outwards, then those of ``outer``. Compared by identity.

    ``lines`` is how it was rendered: stacks are the same in every step, and their lines share their text.
    """

    __slots__ = ("codes", "in_clip_grad", "lines", "offsets", "outer")

    def __init__(
        self, codes: tuple[CodeType, ...], offsets: tuple[int, ...], outer: StackNode | None, *, in_clip_grad: bool
    ) -> None:
        self.codes = codes
        self.offsets = offsets
        self.outer = outer
        self.lines: list[str] | None = None
        self.in_clip_grad: bool = in_clip_grad or (outer is not None and outer.in_clip_grad)


KeyOf: TypeAlias = Callable[[FrameType | None, FrameType | None, StackNode | None, bool], Hashable | None]


class StackBook:
    """All distinct stacks of a run.

    Parameters
    ----------
    clip : collection of CodeType
        Code of the framework's functions that clip gradients.
    redispatch : CodeType, optional
        Code of what runs because of the capture; its caller is the function that runs a second time.
    key_of : callable, optional
        Does quickly what :func:`stack_key` does.
    """

    def __init__(
        self, clip: Collection[CodeType] = (), redispatch: CodeType | None = None, key_of: KeyOf | None = None
    ) -> None:
        self._clip = clip
        self._redispatch = redispatch
        self._key_of = key_of or stack_key
        self._nodes: dict[Hashable, StackNode] = {}
        self._rendered: dict[tuple[int, int], str | None] = {}

    def node(
        self, frame: FrameType | None, anchor: FrameType | None, outer: StackNode | None, inclusive: bool = False
    ) -> StackNode | None:
        """The stack from ``frame`` outwards.

        Parameters
        ----------
        frame : FrameType
            Innermost frame.
        anchor : FrameType, optional
            Frame whose outside does not change, such as that of the innermost running module call.
        outer : StackNode, optional
            Stack outside ``anchor``.
        inclusive : bool
            Whether ``anchor`` itself belongs to the stack.

        Returns
        -------
        StackNode or None
            None if ``anchor`` is not on the stack: what it ran is over.
        """
        key = self._key_of(frame, anchor, outer, inclusive)
        if key is None:
            return None
        found = self._nodes.get(key)
        if found is None:
            frames = [*_walk(frame, anchor)]
            if inclusive and anchor is not None:
                frames.append(anchor)
            codes = tuple(step.f_code for step in frames)  # keeps them alive, so their ids stay theirs
            found = self._nodes[key] = self.traced(codes, tuple(step.f_lasti for step in frames), outer)
        return found

    def traced(self, codes: tuple[CodeType, ...], offsets: tuple[int, ...], outer: StackNode | None) -> StackNode:
        """A new stack from code that a compiler has traced: it does not run as these frames."""
        return StackNode(codes, offsets, outer, in_clip_grad=any(code in codes for code in self._clip))

    def render(self, node: StackNode | None) -> list[str]:
        """Format a stack, innermost frame first; frames that are there because of the capture are left out."""
        if node is None:
            return []
        if node.lines is None:
            node.lines = self._render(node)
        return node.lines

    def _render(self, node: StackNode | None) -> list[str]:
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


def stack_key(
    frame: FrameType | None, anchor: FrameType | None, outer: StackNode | None, inclusive: bool
) -> Hashable | None:
    """What tells a stack from others: see :meth:`StackBook.node`. None if ``anchor`` is not on the stack."""
    key = [id(outer)]
    walked = frame
    while walked is not None and walked is not anchor:
        key += (id(walked.f_code), walked.f_lasti)
        walked = walked.f_back
    if walked is not anchor:
        return None
    if inclusive and anchor is not None:
        key += (id(anchor.f_code), anchor.f_lasti)
    return tuple(key)


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
