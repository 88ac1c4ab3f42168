"""Folders of a run: ``dump_path/step{N}/rank{R}``, and what to do with those of an earlier run."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from pathlib import Path

from typing_extensions import Unpack

from msprobe.store.failures import Announcer
from msprobe.store.process_start import run_start
from msprobe.store.run_marks import RunMark, locked, looks_earlier
from msprobe.store.run_place import EARLIER, RunPlace, aside_name
from msprobe.store.step_folder import FOLDER_MODE
from msprobe.store.writer import StepWriter, WriterOptions

PARTS = ("graph", "pynative")
"""Folders inside dump_path that hold steps, where a MindSpore run has a compiled and a dynamic part."""
_STEP_NAME = re.compile(r"step\d+\Z")


class RunLayout:
    """Place of every step of this process under one dump_path.

    Step folders that were made before this run started belong to an earlier run. Before the first step of this run is
    opened they are moved to ``dump_path/earlier/<UTC time>/``, under a file lock, and a warning says which; sibling
    ranks of this run see that nothing is left to move (`run_marks` tells runs apart, whatever the clock does). A run
    that is still alive when its folders are moved goes on beside them. A rank folder that this run itself has filled
    already (a step number used again) is moved in the same way when its step is opened again. Nothing is ever
    overwritten.

    Parameters
    ----------
    dump_path
        Any path. A symbolic link is followed only if it belongs to the current user or root.
    rank
        Rank of this process; None while unknown (the folder is then ``proc{pid}``).
    part
        One of `PARTS`: the steps are in that folder of dump_path.
    """

    def __init__(self, dump_path: str | Path, *, rank: int | None = None, part: str = "") -> None:
        self.dump_path = Path(os.path.abspath(Path(dump_path).expanduser()))  # noqa: PTH100 - resolve() would follow links
        self.announcer = Announcer()
        self._rank = rank
        self._place = RunPlace(self.dump_path, part, self.announcer)
        self._started = run_start(os.environ)
        self._prepared = False
        self._writer: StepWriter | None = None

    @property
    def rank_name(self) -> str:
        """Name of this process's folder in every step."""
        return f"proc{os.getpid()}" if self._rank is None else f"rank{self._rank}"

    def step_folder(self, step: int) -> Path:
        """Return the folder of this process in a step; it need not exist."""
        return self._place.home / f"step{step}" / self.rank_name

    def open_step(self, step: int, **options: Unpack[WriterOptions]) -> StepWriter:
        """Open a step of this process; parameters as in `StepWriter`.

        Never raises because of the disk: a writer that cannot write says so in its `failures`.
        """
        folder = self._place.of(self.step_folder(step))
        refusal = None
        try:
            self._make_room(folder)
        except OSError as error:
            refusal = error  # an earlier run that cannot be moved must not be mixed with this one
        self._writer = StepWriter(folder, announcer=self.announcer, refusal=refusal, place=self._place.of, **options)
        return self._writer

    def discard(self, writer: StepWriter) -> None:
        """Delete what a finished step of this process has written; other ranks' parts of it stay.

        Never raises because of the disk: what cannot be deleted stays, and a warning says so.
        """
        if not writer.has_folder:
            return
        folder = self._place.of(writer.folder)
        try:
            shutil.rmtree(folder)
            with contextlib.suppress(OSError):  # another rank has its folder there
                folder.parent.rmdir()
        except OSError as error:
            self.announcer.warn(
                ("discard", error.errno),
                f"msprobe cannot delete {folder} of a discarded step: {error.strerror}. It stays.",
            )

    def set_rank(self, rank: int) -> None:
        """Name the folders of this process after its rank.

        When the rank becomes known, the open folder and those of finished steps of this run are renamed. A process that
        later goes by another rank keeps the folders that it has filled.
        """
        old, first = self.rank_name, self._rank is None
        self._rank = rank
        if not first or not self._place.home.is_dir():
            return
        writer = self._writer
        if writer is not None and not writer.has_folder and writer.folder.name == old:
            self._rename_rank(writer.folder, writer.folder.with_name(self.rank_name))
        for step in _step_folders(self._place.home):
            source, target = step / old, step / self.rank_name
            if source.is_dir() and not source.is_symlink():
                self._rename_rank(source, target)

    def _rename_rank(self, source: Path, target: Path) -> None:
        try:
            if target.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            if self._writer is not None and self._writer.folder == source:
                self._writer.relocate(target)
            else:
                source.rename(target)
        except OSError as error:
            self.announcer.warn(
                ("rank", error.errno),
                f"msprobe cannot rename {source} to {target.name}: {error.strerror}. It keeps its name.",
            )

    def _make_room(self, folder: Path) -> None:
        if not self._prepared:
            self._check_link()
            self._check_for_files()
            self.dump_path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            self._take()
            self._prepared = True
        depth = len(folder.relative_to(self.dump_path).parts)
        if any(part.is_symlink() for part in (folder, *folder.parents)[:depth]):
            raise OSError(errno.ELOOP, "a symbolic link stands where a folder of the dump belongs")
        if folder.is_dir() and any(folder.iterdir()):
            self._move([folder], "this run has filled already (step number used twice)")

    def _check_link(self) -> None:
        if self.dump_path.is_symlink() and self.dump_path.lstat().st_uid not in {0, os.geteuid()}:
            raise OSError(errno.ELOOP, "dump_path is a symbolic link that belongs to another user")

    def _check_for_files(self) -> None:
        for place in (self.dump_path, *self.dump_path.parents):
            if place.exists() and not place.is_dir():
                raise OSError(errno.ENOTDIR, f"{place} is a file, not a folder")

    def _take(self) -> None:
        """Make dump_path this run's, and move aside what another run left there."""
        with locked(self.dump_path) as held:
            before = held.mark
            if before is None or self._earlier_steps(before) or self._started.after(before.taken):
                # First the mark, then another look, then the move: see `RunPlace.of`.
                held.take(self._started)
                try:
                    self._move_earlier_run(self._earlier_steps(before), before)
                except OSError:
                    held.put_back()
                    raise
            self._place.join(held.mark)

    def _earlier_steps(self, mark: RunMark | None) -> list[Path]:
        """Return the step folders of another run, as far as they can be told from those of a sibling of this one."""
        parts = [part for name in PARTS if (part := self.dump_path / name).is_dir() and not part.is_symlink()]
        steps = [step for home in (self.dump_path, *parts) for step in _step_folders(home)]
        if mark is None or mark.taken.boot != self._started.boot:  # no clock that both runs had
            return [step for step in steps if looks_earlier(step, self._started)]
        return steps if self._started.after(mark.taken) else []

    def _move_earlier_run(self, steps: list[Path], mark: RunMark | None) -> None:
        if not steps:
            return
        if mark is None:
            self._move(steps, "an earlier run left here")
            return
        goes_on = f"; that run is still alive (process {mark.pid}) and goes on there" if mark.alive else ""
        self._move(steps, "an earlier run left here", aside_name(mark), goes_on)

    def _move(self, folders: list[Path], why: str, place: str = "", more: str = "") -> None:
        aside = self.dump_path / EARLIER / place
        if not place or any((aside / folder.relative_to(self.dump_path)).exists() for folder in folders):
            aside = self.dump_path / EARLIER / aside_name()
        if aside.parent.is_symlink():
            raise OSError(errno.ELOOP, f"{aside.parent} is a symbolic link")
        for folder in folders:
            target = aside / folder.relative_to(self.dump_path)
            target.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            folder.rename(target)
        names = [str(folder.relative_to(self.dump_path)) for folder in folders]
        listed = ", ".join(names if len(names) <= 6 else [*names[:3], "...", *names[-2:]])
        self.announcer.warn(
            ("moved", aside.name),
            f"msprobe moved {len(names)} folder(s) that {why} from {self.dump_path} to {aside}: {listed}{more}",
        )


def _step_folders(home: Path) -> list[Path]:
    found = [entry for entry in home.iterdir() if _STEP_NAME.match(entry.name) and not entry.is_symlink()]
    return sorted((entry for entry in found if entry.is_dir()), key=lambda entry: int(entry.name[4:]))


def step_of(folder: Path) -> int:
    """Return the step whose rank folder this is (see `RunLayout.step_folder`)."""
    return int(folder.parent.name.removeprefix("step"))
