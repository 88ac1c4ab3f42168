"""Names of calls that activation checkpointing repeats: those of the first run, tagged ``#recompute``."""

from __future__ import annotations

from collections.abc import Callable

from msprobe.core.names import CallName

RECOMPUTE = "recompute"
_LOOK_AHEAD = 64  # calls that a recomputation may skip (a filtered branch) before its region counts as lost


class Replay:
    """A recomputation under way: walks through the calls of the first run.

    Parameters
    ----------
    calls : list of CallName
        Calls in the order of the first run.
    start : int
        Where the recomputed region begins.
    """

    __slots__ = ("_at", "_calls", "parent")

    def __init__(self, calls: list[CallName], start: int = 0) -> None:
        self._calls = calls
        self._at = start
        self.parent = None

    def next(self, base: str) -> CallName | None:
        """The first call named ``base`` from here on; None if the second run does something else."""
        for at in range(self._at, min(self._at + _LOOK_AHEAD, len(self._calls))):
            if self._calls[at].base == base:
                self._at = at + 1
                return self._calls[at]
        return None


class Repeats:
    """Counts within one step how often a call was recomputed."""

    __slots__ = ("_times",)

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def name(self, replay: Replay, base: str, take: Callable[[str], int], *, module: bool) -> CallName:
        """Name of a recomputed call that begins now.

        Parameters
        ----------
        replay : Replay
        base : str
            ``Prefix.name`` or ``Module.path.Class``.
        take : callable
            Counts a new call of ``base`` and returns its index, for a call that the first run did not make.
        module : bool
            Whether a module call is named.
        """
        first = replay.next(base)
        index = take(base) if first is None else first.index
        call = CallName(base, index, module=module, tag=RECOMPUTE)
        call.parent = None if first is None else first.parent
        times = self._times[call.forward] = self._times.get(call.forward, 0) + 1
        return call if times == 1 else call.tagged(f"{RECOMPUTE}{times}")
