"""The files of one open step, with every refusal of the disk turned into a note.

What the writer hands over is already encoded; this class knows which file it belongs to and what happens when that
file cannot be written.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from msprobe.core.interruptions import pass_on_interruption
from msprobe.store.coverage_file import COVERAGE_FILE, CoverageFile
from msprobe.store.failures import Announcer, FailureNotes
from msprobe.store.json_bytes import dumps_json
from msprobe.store.memory_bound import VARIABLE, memory_bound
from msprobe.store.part_file import TAIL_DUMP, TAIL_OBJECT, GrowingObject, PartWrittenError
from msprobe.store.stacks import JOURNAL_FILE, STACK_FILE, StackJournal
from msprobe.store.step_folder import FOLDER_MODE, StepFolder, write_fully
from msprobe.store.tensor_files import TENSOR_FOLDER, TensorFiles
from msprobe.store.tensor_queue import TensorContent, TensorQueue, can_wait

DUMP_FILE = "dump.json"
DEBUG_FILE = "debug.json"
CONSTRUCT_FILE = "construct.json"
_HEAD_ROOM = 64  # spaces kept in the first line, for a folder that gets a longer name
_LOST = "records that could not be written are lost, those written before stay readable."


class StepFiles:
    """Files of one rank in one step, made when there is something to write. Nothing here raises because of the disk.

    Parameters
    ----------
    folder
        Absolute path of the rank folder to create; must not hold a dump yet.
    head
        First fields of the main file: ``task``, ``level``, ``framework``.
    extra_info
        Whether ``stack.json`` and ``construct.json`` are written.
    tensors
        Whether ``dump_tensor_data/`` is made.
    render_stack
        Turns a stack key into frames, innermost first.
    announcer
        Where warnings go.
    refusal
        Why nothing may be written here, found out before.
    place
        Returns where a folder belongs now: asked before it is made and after that, since another run may take the
        dump_path in between. Never raises.
    asynchronous
        Whether tensor files wait until `drain`; otherwise a thread writes them.
    spare_core
        Whether that thread has a processor to itself, see `TensorQueue`.
    """

    __slots__ = (
        "_announcer",
        "_asynchronous",
        "_construct",
        "_coverage",
        "_dump",
        "_extra_info",
        "_head",
        "_head_line",
        "_main",
        "_making",
        "_place",
        "_queue",
        "_render_stack",
        "_root",
        "_stacks",
        "_tensors",
        "_wants_tensors",
        "folder",
        "notes",
        "opened",
    )

    def __init__(  # noqa: PLR0913 - one keyword per property of the dump
        self,
        folder: Path,
        head: Mapping[str, str],
        *,
        extra_info: bool,
        tensors: bool,
        render_stack: Callable[[Hashable], list[str]],
        announcer: Announcer,
        refusal: OSError | None = None,
        place: Callable[[Path], Path] | None = None,
        asynchronous: bool = False,
        spare_core: bool = True,
    ) -> None:
        self.folder = folder
        self.notes = FailureNotes(None, announcer)
        self.opened = False
        self._making = threading.Lock()
        self._announcer = announcer
        self._place = place
        self._extra_info = extra_info
        self._wants_tensors = tensors
        self._render_stack: Callable[[Hashable], list[str]] | None = render_stack
        self._head = head
        self._main = DEBUG_FILE if head["level"] == "debug" else DUMP_FILE
        self._head_line = self._render_head(tensors)
        self._root: StepFolder | None = None
        self._dump: GrowingObject | None = None
        self._construct: GrowingObject | None = None
        self._stacks: StackJournal | None = None
        self._coverage: CoverageFile | None = None
        self._tensors: TensorFiles | None = None
        self._asynchronous = asynchronous
        self._queue: TensorQueue | None = None
        if tensors and refusal is None:
            bound = memory_bound(os.environ, asynchronous=asynchronous)
            self._queue = TensorQueue(bound=bound, background=not asynchronous, spare_core=spare_core)
        if refusal is not None:
            self.opened = True
            self._note_not_made(refusal)

    def open(self) -> None:
        """Make the folder and its files; a second call does nothing."""
        if self.opened:
            return
        with self._making:  # tensor files are written by several threads
            if not self.opened:
                self._open()
                self.opened = True

    def _open(self) -> None:
        try:
            self._move_to_its_place()
            self._root = root = StepFolder(self.folder)
            made = self.folder
            if self._move_to_its_place():
                self.folder.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):  # moved along with the others by the run that came
                    made.rename(self.folder)
            self._make_files(root)
        except OSError as error:
            self._note_not_made(error)

    def _move_to_its_place(self) -> bool:
        place = self.folder if self._place is None else self._place(self.folder)
        moved = place != self.folder
        if moved:
            self.folder = place
            self._head_line = self._render_head(self._wants_tensors)
        return moved

    def _make_files(self, root: StepFolder) -> None:
        was_empty = root.is_empty()
        try:
            self.notes = FailureNotes(root, self._announcer, self.notes)
            self._dump = GrowingObject(root, self._main, self._head_line, TAIL_DUMP)
            self._coverage = CoverageFile(root)
            if self._extra_info and self._render_stack is not None:
                self._construct = GrowingObject(root, CONSTRUCT_FILE, b"{", TAIL_OBJECT)
                self._stacks = StackJournal(root, self._render_stack)
            if self._wants_tensors:
                self._tensors = TensorFiles(root)
                self._open_queue(self._tensors)
            self.opened = True  # here, so that there is no moment at which the files are made and nobody knows it
        except OSError:
            raise
        except BaseException:  # of a signal handler: the next record makes the files again
            if was_empty:
                for name in (self._main, COVERAGE_FILE, CONSTRUCT_FILE, STACK_FILE, JOURNAL_FILE):
                    root.remove(name)
            raise

    def _note_not_made(self, error: OSError) -> None:
        self.notes.note_os_error(str(self.folder), error, "what cannot be written of this step is lost.")

    @property
    def size(self) -> int:
        """Bytes written so far, JSON and tensor files together."""
        growing = (self._dump, self._construct, self._stacks)
        tensors = self._tensors.bytes_written if self._tensors is not None else 0
        return tensors + sum(file.size for file in growing if file is not None)

    @property
    def written(self) -> tuple[int, int, int]:
        """Number of records, parents and names with a stack that are in the files."""
        dump, construct, stacks = self._dump, self._construct, self._stacks
        return (
            dump.members if dump is not None else 0,
            construct.members if construct is not None else 0,
            stacks.names if stacks is not None else 0,
        )

    def append_records(self, members: Sequence[bytes]) -> int:
        """Append encoded records to the main file; return how many of them are in it."""
        self.open()
        return self._append(self._dump, self._main, members)

    def append_parents(self, members: Sequence[bytes]) -> int:
        """Append encoded lines to ``construct.json``; return how many of them are in it."""
        self.open()
        return self._append(self._construct, CONSTRUCT_FILE, members)

    def append_stacks(self, names: Sequence[str], keys: Sequence[Hashable]) -> int:
        """Add names with their stack keys to the stack journal; return how many of them are in it."""
        self.open()
        if self._stacks is None:
            return 0
        try:
            self._stacks.append(names, keys)
        except OSError as error:
            self._note_refused(STACK_FILE, error)
            return 0
        return len(names)

    @property
    def counts(self) -> dict[str, int]:
        """Tensor files that share their content with another one, and those that could not be written."""
        queue = self._queue
        found = {"linked_files": queue.linked, "lost_files": queue.lost} if queue is not None else {}
        return {name: count for name, count in found.items() if count}

    def write_tensor(self, file_name: str, save: TensorContent | Callable[[BinaryIO], object]) -> str | None:
        """Write one tensor file, or queue it if its content can be held; None if that failed."""
        if self._queue is None:
            return None
        try:
            if can_wait(save):
                if not (self._asynchronous and self._queue.has_room(save)):
                    self.open()  # an asynchronous dump does not even make a folder inside the step
                return self._queue.put(file_name, save)
            self.open()
            return self._tensors.write(file_name, save) if self._tensors is not None else None
        except Exception as error:  # noqa: BLE001 - a callback of the caller; it must not reach the training
            pass_on_interruption(error)
            self.notes.note_lost_file(str(self.folder / TENSOR_FOLDER), file_name, error)
        return None

    def link_tensor(self, file_name: str, source: Path) -> str | None:
        """Give a file of another program a name among the tensor files; None if that failed."""
        self.open()
        try:
            return self._tensors.adopt(file_name, source) if self._tensors is not None else None
        except OSError as error:
            self.notes.note_lost_file(str(self.folder / TENSOR_FOLDER), file_name, error)
        return None

    def write_file(self, name: str, content: bytes) -> Path | None:
        """Write a file for another program; None if that failed."""
        self.open()
        if self._root is None:
            return None
        try:
            self._root.remove(name)
            descriptor = self._root.create(name)
            try:
                write_fully(descriptor, content, 0)
            finally:
                os.close(descriptor)
        except OSError as error:
            self.notes.note_os_error(str(self.folder / name), error, "what needs this file is not done.")
            return None
        return self.folder / name

    def drain(self, *, write: bool = True) -> None:
        """Return when every tensor file that was queued is complete or noted as failed; see `TensorQueue.drain`."""
        if self._queue is not None and self._queue.waits:
            self.open()
            self._queue.drain(write=write)

    def pause(self) -> None:
        """Bring ``stack.json`` up to date; the other files always are."""
        if self._stacks is not None:
            try:
                self._stacks.pause()
            except OSError as error:
                self._note_refused(STACK_FILE, error)

    def finish(self, coverage: Callable[[], Mapping[str, Any]], *, empty: bool = False) -> None:
        """Finish ``stack.json``, write ``coverage.json``, close the folder.

        The coverage is asked for last, so that it names every failure. What was not made until now is not made for
        an empty step.

        Parameters
        ----------
        coverage
            Content of ``coverage.json``.
        empty
            Nothing was seen, so that there is nothing to say either.
        """
        if not empty or self.notes.reasons or (self._queue is not None and self._queue.waits):
            self.open()
        self.opened = True  # what comes later makes no folder
        if self._queue is not None:
            self._queue.close()
        if self._stacks is not None:
            try:
                self._stacks.finish()
            except OSError as error:
                self._note_refused(STACK_FILE, error)
        if self._coverage is not None:
            try:
                self._coverage.finish(coverage())
            except OSError as error:
                self._note_refused("coverage.json", error)
        # Before anything is closed: an interrupted end is made up for by a second one. And the stacks hold the caller's
        # callback: a finished step is no part of a reference cycle.
        self._coverage = self._render_stack = self._stacks = None
        for opened in (self._tensors, self._root):
            if opened is not None:
                opened.close()

    def relocate(self, folder: Path) -> None:
        """Rename the folder and correct the path in the head of the main file.

        Raises
        ------
        OSError
            The folder cannot be renamed.
        """
        with self._making:
            if self._root is not None:
                self.folder.rename(folder)
            self.folder = folder
            if not self.opened:
                self._head_line = self._render_head(self._wants_tensors)
                return
        if self._root is not None and not self._root.is_open:
            return  # finished: the head keeps the old path
        line = self._render_head(self._wants_tensors, len(self._head_line))
        if self._dump is None or len(line) != len(self._head_line):
            return  # a much longer name: the head keeps the old path, readers look beside the file first
        try:
            self._dump.replace_head(line)
            self._head_line = line
        except OSError as error:
            self._note_refused(self._main, error)

    def _render_head(self, tensors: bool, length: int = 0) -> bytes:
        """Render the first line, padded to a length so that it can be overwritten in place later."""
        fields = {**self._head, "dump_data_dir": str(self.folder / TENSOR_FOLDER) if tensors else None}
        text = dumps_json(fields)[:-1] + b',"data":'
        return text.ljust(length - 1 if length else len(text) + _HEAD_ROOM) + b"{"

    def _append(self, file: GrowingObject | None, name: str, members: Sequence[bytes]) -> int:
        if file is None:
            return 0
        try:
            file.append(members)
        except PartWrittenError as error:
            self._note_refused(name, error)
            return error.kept
        except OSError as error:
            self._note_refused(name, error)
            return 0
        return len(members)

    def _open_queue(self, files: TensorFiles) -> None:
        if self._queue is not None:
            on_error = partial(self.notes.note_lost_file, str(self.folder / TENSOR_FOLDER))
            self._queue.open(files, on_error, partial(_note_full, self.notes, self._queue.bound))

    def _note_refused(self, name: str, error: OSError) -> None:
        self.notes.note_os_error(str(self.folder / name), error, _LOST)


def _note_full(notes: FailureNotes, bound: int) -> None:
    notes.warn(
        "memory bound",
        f"async_dump: copies of tensors take {bound >> 20} MiB of host memory, which is the bound; what comes on top "
        f"in a step is written at once, inside the step. Name fewer tensors in list, or set the environment variable "
        f"{VARIABLE} to more MiB.",
    )
