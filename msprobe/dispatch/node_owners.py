"""Which API call made an autograd node: found by the node's sequence number.

Every autograd node gets the next number of its thread when it is made. The numbers that were given out while a call
ran, ``[since, until)``, are those of its nodes; what runs in the backward pass of such a node belongs to that call.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Generic, TypeVar

Owner = TypeVar("Owner")


class NodeOwners(Generic[Owner]):
    """Calls of one thread by the sequence numbers of their nodes. Calls may lie inside each other."""

    __slots__ = ("_calls", "_open", "_outer", "_since", "_until")

    def __init__(self) -> None:
        self._since: list[int] = []
        self._until: list[int | None] = []
        self._calls: list[Owner] = []
        self._outer: list[int] = []
        self._open: list[int] = []

    def begin(self, call: Owner, number: int) -> None:
        """``call`` begins; the next node gets ``number``, which is not less than at any earlier call."""
        self._outer.append(self._open[-1] if self._open else -1)
        self._open.append(len(self._calls))
        self._since.append(number)
        self._until.append(None)
        self._calls.append(call)

    def end(self, call: Owner, number: int) -> None:
        """``call`` is over, and every call inside it; the next node gets ``number``."""
        while self._open:
            at = self._open.pop()
            ended = self._calls[at]
            self._until[at] = number
            if self._since[at] == number and at == len(self._calls) - 1:  # made no node: nothing to find
                for table in (self._since, self._until, self._calls, self._outer):
                    table.pop()
            if ended is call:
                return

    def find(self, number: int) -> Owner | None:
        """The innermost call that made the node ``number``."""
        at = bisect_right(self._since, number) - 1
        while at >= 0:
            until = self._until[at]
            if until is None or number < until:
                return self._calls[at]
            at = self._outer[at]
        return None

    def clear(self) -> None:
        """Forget all calls."""
        self.__init__()  # type: ignore[misc]
