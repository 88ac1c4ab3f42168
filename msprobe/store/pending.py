"""What waits to be written, with a count of what was taken, that is right at whatever instruction it is interrupted.

Python runs signal handlers between two instructions of the main thread, and what they raise (``KeyboardInterrupt``, a
time limit) ends a flush there. Were the items removed and counted by two instructions, the next flush could write some
of them again, or skip some.
"""

from __future__ import annotations

from array import array
from collections import deque
from itertools import chain
from operator import delitem, setitem
from typing import Any

_TAKEN, _LOST = 0, 1


class Pending:
    """Pairs in the order in which they came.

    Attributes
    ----------
    pairs : list
        First and second of each pair by turns. Others only append to it, both in one step; it is never replaced, so
        that what another thread adds is never lost.
    first_hashes : array of int64
        Hash of the first of each pair that was taken, if these are kept.
    """

    __slots__ = ("_counts", "_keep_hashes", "first_hashes", "pairs")

    def __init__(self, *, keep_hashes: bool = False) -> None:
        self.pairs: list[Any] = []
        self.first_hashes = array("q")
        self._counts = array("q", (0, 0))
        self._keep_hashes = keep_hashes

    def __len__(self) -> int:
        """Return the number of pairs that wait."""
        return len(self.pairs) // 2

    @property
    def taken(self) -> int:
        """Number of pairs that were taken because they are written."""
        return self._counts[_TAKEN]

    @property
    def lost(self) -> int:
        """Number of pairs that were taken though they could not be written."""
        return self._counts[_LOST]

    def first(self, count: int) -> tuple[list[Any], list[Any]]:
        """Return the firsts and the seconds of the oldest pairs, ``count`` of them at most."""
        batch = self.pairs[: 2 * count]
        return batch[::2], batch[1::2]

    def take(self, written: int, lost: int = 0) -> None:
        """Remove the oldest pairs: first those that are written, then those that could not be."""
        if written:
            self._remove(written, _TAKEN)
        if lost:
            self._remove(lost, _LOST)

    def settle(self, written: int) -> None:
        """Take the pairs that an interrupted flush has written, but not taken any more.

        Parameters
        ----------
        written
            Number of pairs that are in the file.
        """
        self.take(max(written - self.taken, 0))

    def _remove(self, count: int, kind: int) -> None:
        hashes = array("q", map(hash, self.pairs[: 2 * count : 2] if self._keep_hashes and kind == _TAKEN else ()))
        together = chain(
            map(delitem, (self.pairs,), (slice(0, 2 * count),)),
            map(setitem, (self._counts,), (kind,), (self._counts[kind] + count,)),
            map(array.extend, (self.first_hashes,), (hashes,)),
        )
        deque(together, maxlen=0)  # C code calls C code three times: no instruction in between
