"""Where the step folders of this run belong: in dump_path, or aside once a later run has taken it."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from msprobe.store.failures import Announcer
from msprobe.store.run_marks import RunMark, read_mark

EARLIER = "earlier"
"""Folder in dump_path for what earlier runs have left there."""


def aside_name(mark: RunMark | None = None) -> str:
    """Name the folder for the steps of a run: when it took dump_path, or the current time where no mark tells."""
    moment = datetime.now(timezone.utc)
    if mark is not None:
        try:
            moment = datetime.fromtimestamp(mark.taken.epoch, timezone.utc)
        except (ValueError, OverflowError, OSError):  # somebody else wrote this
            return f"run{mark.pid}"
    return moment.strftime("%Y%m%dT%H%M%S.%fZ")


class RunPlace:
    """Home of the steps of this run.

    Parameters
    ----------
    dump_path
        As configured, absolute.
    part
        Folder of it that holds the steps; empty for dump_path itself.
    announcer
        Where the warning goes if another run takes the dump_path.
    """

    __slots__ = ("_announcer", "_dump_path", "_home", "_mark", "_overtaken")

    def __init__(self, dump_path: Path, part: str, announcer: Announcer) -> None:
        self._home = dump_path / part
        self._dump_path = dump_path
        self._announcer = announcer
        self._mark: RunMark | None = None
        self._overtaken = False

    def join(self, mark: RunMark | None) -> None:
        """Keep the mark that stands for this run in dump_path."""
        self._mark = mark

    def of(self, folder: Path) -> Path:
        """Return where a rank folder of this run belongs now; never raises.

        A later run writes its mark before it looks for folders to move. So who asks before and after making a folder
        either had it moved along with the others, or learns that it is in the wrong place.
        """
        home = self.home
        return home / folder.parent.name / folder.name if self._overtaken else folder

    @property
    def home(self) -> Path:
        """Folder that holds the steps now."""
        if not self._overtaken:
            self._look()
        return self._home

    def _look(self) -> None:
        own = self._mark
        now = read_mark(self._dump_path) if own is not None else None
        if own is None or now is None or not now.started.after(own.taken):
            return
        aside = self._dump_path / EARLIER / aside_name(own)
        self._home = aside / self._home.relative_to(self._dump_path)
        self._overtaken = True
        self._announcer.warn(
            "overtaken",
            f"msprobe: another run (process {now.pid}) dumps into {self._dump_path} now. What this run has recorded "
            f"and what it goes on to record is in {aside}; give each run a dump_path of its own.",
        )
