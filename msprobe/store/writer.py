"""Writer of one open step of one rank.

The hot calls (`add`, `add_parent`, `add_stack`) only append to a list. A flush encodes what is pending and appends it
to the files with one write each; it happens when 1,000 items are pending, every half second on a background thread,
at a pause and at the end. Nothing that was flushed stays in memory, except eight bytes per record to count duplicate
names.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypedDict

from typing_extensions import Required

from msprobe.core.interruptions import pass_on_interruption
from msprobe.store.at_exit import OPEN
from msprobe.store.failures import Announcer
from msprobe.store.json_bytes import dumps_json, dumps_members
from msprobe.store.pending import Pending
from msprobe.store.regular_flush import FLUSHING, on_flush_thread
from msprobe.store.step_files import StepFiles
from msprobe.store.tensor_queue import TensorContent

_ENCODING_ERRORS = (TypeError, ValueError, RuntimeError)  # RuntimeError: recursion, or a dict changed by another thread
_SEEN = ("not_recorded", "recomputed_calls")  # counts of a coverage report that tell of calls
ASYNCHRONOUS_BATCH = 100_000
"""Records that wait in an asynchronous dump before they are written inside the step."""
_CHUNK = 1024  # records encoded at a time, to bound memory when a whole step is flushed at once


class WriterOptions(TypedDict, total=False):
    """Keyword arguments of `StepWriter`, for code that passes them through."""

    task: Required[str]
    level: Required[str]
    framework: Required[str]
    extra_info: Required[bool]
    tensors: Required[bool]
    render_stack: Required[Callable[[Hashable], list[str]]]
    resolve: Callable[[], None] | None
    coverage: Callable[[], Mapping[str, Any]] | None
    flush_every: float | None
    batch: int | None
    asynchronous: bool
    spare_core: bool


class Waiting(NamedTuple):
    """What the next flush writes: records by name, parents by child, stack keys by name."""

    records: Pending
    parents: Pending
    calls: Pending


def _write_out(pending: Pending, count: int, append: Callable[[list[Any], list[Any]], int]) -> None:
    while count > 0:
        batch = min(count, _CHUNK)
        written = append(*pending.first(batch))
        pending.take(written, batch - written)
        count -= batch


class StepWriter:
    """One open step of one rank; the only writer of its folder.

    No method raises because of the disk or of a callback: the reason goes to `failures`, to ``dump_error_info.log``
    and ``coverage.json``, and once to the ``msprobe`` logger. In a forked child all methods do nothing. All methods
    may be called from several threads.

    Parameters
    ----------
    folder
        ``step{N}/rank{R}``; created with mode 0750 by the first record, must not hold a dump yet.
    task, level, framework
        Written to the head of ``dump.json`` (``debug.json`` for level "debug").
    extra_info
        Whether ``stack.json`` and ``construct.json`` are written (never for level "debug").
    tensors
        Whether ``dump_tensor_data/`` is made.
    render_stack
        Turns a key given to `add_stack` into frames, innermost first. Called at a flush, once per different key.
    resolve
        Called before every flush, with the writer's lock held and possibly on the background thread: fills results
        that were not known yet into the records already added.
    coverage
        Content for `finish` when the interpreter exits with the step still open; may still add records.
    flush_every
        Seconds between background flushes; None: no thread.
    batch
        Number of pending items at which `add` flushes; None: never.
    asynchronous
        Nothing is written before `pause` or `finish`, within bounds: `ASYNCHRONOUS_BATCH` items and the memory of
        `memory_bound`. Replaces `flush_every` and `batch`.
    spare_core
        Whether a thread that writes tensor files has a processor to itself, see `tensor_queue.TensorQueue`.
    announcer
        Shared by all steps of a run, so that a full disk is announced once and not in every step.
    refusal
        Why nothing may be written here, found out before; everything is then dropped and counted as lost.
    place
        Returns where the folder belongs now, see `StepFiles`.

    Attributes
    ----------
    batch : int
        Length from which on one of the `lists` is flushed.
    """

    def __init__(  # noqa: PLR0913 - one keyword per property of the dump
        self,
        folder: Path,
        *,
        task: str,
        level: str,
        framework: str,
        extra_info: bool,
        tensors: bool,
        render_stack: Callable[[Hashable], list[str]],
        resolve: Callable[[], None] | None = None,
        coverage: Callable[[], Mapping[str, Any]] | None = None,
        flush_every: float | None = 0.5,
        batch: int | None = 1000,
        asynchronous: bool = False,
        spare_core: bool = True,
        announcer: Announcer | None = None,
        refusal: OSError | None = None,
        place: Callable[[Path], Path] | None = None,
    ) -> None:
        self._extra_info = extra_info and level != "debug"
        self._render_stack = render_stack
        self._resolve = resolve
        self._exit_coverage = coverage
        if asynchronous:
            flush_every, batch = None, ASYNCHRONOUS_BATCH
        self._asynchronous = asynchronous
        self.batch = 2 * batch if batch is not None else sys.maxsize
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._flushing = False
        self._closed = False
        self._waiting = Waiting(Pending(keep_hashes=True), Pending(), Pending())
        self._records, self._parents, self._calls = (pending.pairs for pending in self._waiting)
        self._files = StepFiles(
            Path(os.path.abspath(folder)),  # noqa: PTH100 - Path.resolve would follow links
            {"task": task, "level": level, "framework": framework},
            extra_info=self._extra_info,
            tensors=tensors,
            render_stack=self._render,
            announcer=announcer or Announcer(),
            refusal=refusal,
            place=place,
            asynchronous=asynchronous,
            spare_core=spare_core,
        )
        OPEN.add(self)
        if flush_every is not None and not FLUSHING.add(self, flush_every):
            self.batch = 1
            self._files.notes.warn(
                "no thread",
                "no thread could be started for the regular flush (limit of processes or memory): each record is "
                "written when it comes, which is slower",
            )

    # Hot path: three lists that grow by two at a time, in one step that no other thread can come between. Pairs would
    # be thousands of objects more for the garbage collector.

    def add(self, name: str, record: dict[str, Any]) -> None:
        """Take a finished record; it is encoded and written later. A name given twice: readers see the last one."""
        pending = self._records
        pending += (name, record)
        if len(pending) >= self.batch:
            self.flush_batch()

    def add_parent(self, child: str, parent: str | None) -> None:
        """Take one line of ``construct.json``; None means that nothing encloses the child."""
        if self._extra_info:
            pending = self._parents
            pending += (child, parent)
            if len(pending) >= self.batch:
                self.flush_batch()

    def add_stack(self, name: str, key: Hashable) -> None:
        """Take the call stack of a record, as a key that `render_stack` understands."""
        if self._extra_info:
            pending = self._calls
            pending += (name, key)
            if len(pending) >= self.batch:
                self.flush_batch()

    @property
    def lists(self) -> tuple[list[Any], list[Any], list[Any]]:
        """The lists that `add`, `add_stack` and `add_parent` append to, for native code that does the same.

        Both items of a pair are appended in one step. A list that has `batch` items is to be written by `flush_batch`.
        """
        return self._records, self._calls, self._parents

    @property
    def recorded(self) -> int:
        """Number of records written so far."""
        return self._waiting.records.taken

    @property
    def folder(self) -> Path:
        """Where the step is written; changes with `relocate`."""
        return self._files.folder

    @property
    def has_folder(self) -> bool:
        """Whether the folder was made: when the first record came, or a reason why there is none."""
        return self._files.opened

    @property
    def failures(self) -> list[str]:
        """Reasons why something was not written, each once."""
        return self._files.notes.reasons

    def write_tensor(self, file_name: str, save: TensorContent | Callable[[BinaryIO], object]) -> str | None:
        """Write one file into ``dump_tensor_data/``, completely or not at all.

        A content that can be held is copied and written later: by a thread, or in an asynchronous dump at the end of
        the step. Its file is complete before a record that was added after it can be read.

        Parameters
        ----------
        file_name
            Record path with extension, e.g. ``Torch.relu.0.forward.input.0.pt``; made safe for the file system.
        save
            Writes the content to the binary file it is given. A `TensorContent` is told if its file is not written.

        Returns
        -------
        str or None
            Name of the file, for ``data_name``; None if it could not be written (noted).
        """
        if self._in_forked_child():
            return None
        return self._files.write_tensor(file_name, save)

    def link_tensor(self, file_name: str, source: Path) -> str | None:
        """Give a tensor file that another program wrote a second name in ``dump_tensor_data/``, or copy it there.

        Returns
        -------
        str or None
            Name of the file, for ``data_name``; None if that failed (noted).
        """
        if self._in_forked_child():
            return None
        return self._files.link_tensor(file_name, source)

    def write_file(self, name: str, content: Mapping[str, Any]) -> Path | None:
        """Write a JSON file for another program into the folder, over an earlier one of the same name.

        Returns
        -------
        Path or None
            None if it could not be written (noted).
        """
        if self._in_forked_child():
            return None
        with self._lock:
            return self._files.write_file(name, dumps_json(content))

    def flush(self) -> None:
        """Write everything pending."""
        if self._in_forked_child():
            return
        with self._lock:
            if self._flushing:
                return  # called again from inside a callback or a signal handler; the outer call writes it
            self._flushing = True
            try:
                self._flush_pending()
            finally:
                self._flushing = False

    def pause(self) -> None:
        """Make every file complete JSON with everything added so far (`stop`); the step stays open and may go on."""
        if self._in_forked_child():
            return
        self.flush()
        with self._lock:
            if not self._closed:
                self._files.drain()
                self._files.pause()

    def finish(self, coverage: Mapping[str, Any]) -> None:
        """End the step: write everything and ``coverage.json``, close the folder. A second call does nothing.

        A step in which nothing was seen and nothing went wrong leaves no folder.

        Parameters
        ----------
        coverage
            The caller's counts; ``records``, ``bytes``, ``duplicates``, ``lost_records``, ``failures`` and
            ``complete`` are added.
        """
        if self._in_forked_child():
            return
        FLUSHING.discard(self)
        self.flush()
        with self._lock:
            if self._closed or self._flushing:
                return  # called again from inside a callback or a signal handler
            self._flushing = True
            try:
                empty = not any(coverage.get(key) for key in _SEEN)
                self._files.finish(lambda: {**coverage, **self._counts()}, empty=empty)
                self._closed = True  # not before: an interrupted end is made up for, at the latest when Python exits
            finally:
                self._flushing = False
        self.batch = 1  # a late record goes straight to flush, which notes it
        OPEN.discard(self)

    def note_failure(self, text: str) -> None:
        """Add a reason to `failures` and a line to ``dump_error_info.log``."""
        if not self._in_forked_child():
            self._files.notes.note(text)

    def relocate(self, folder: Path) -> None:
        """Rename the folder of the open step, e.g. when a rank becomes known; writing goes on in it.

        Raises
        ------
        OSError
            The folder cannot be renamed; writing goes on in the old one.
        """
        with self._lock:
            self._files.relocate(folder)

    def _in_forked_child(self) -> bool:
        """Tell whether this is a copy of the writer in a forked process, and drop what is pending there.

        The parent writes it. The lock must not be touched: another thread may have held it at the moment of the fork.
        """
        if os.getpid() == self._pid:
            return False
        self._drop_pending()
        return True

    def _drop_pending(self) -> None:
        for pending in self._waiting:
            pending.pairs.clear()

    def flush_batch(self) -> None:
        """Write everything: as many items wait as may."""
        if self._asynchronous and not self._closed:
            self._files.notes.warn(
                "async records",
                f"async_dump: {ASYNCHRONOUS_BATCH} records wait, which is the bound; they are written inside step "
                f"{self.folder}. Record fewer calls with list or scope.",
            )
        self.flush()

    def _flush_pending(self) -> None:
        if not (self._records or self._parents or self._calls):
            return
        if self._closed:
            self._drop_pending()
            self._files.notes.warn("late", f"records that came after the end of the step {self.folder} were dropped")
            return
        waiting, files = self._waiting, self._files
        for pending, written in zip(waiting, files.written, strict=True):
            pending.settle(written)
        # Counted first: what another thread adds from here on is not resolved yet and waits for the next flush.
        count = len(waiting.records)
        if self._resolve is not None:
            try:
                self._resolve()
            except Exception as error:  # noqa: BLE001 - a callback of the caller; the records are still worth writing
                pass_on_interruption(error)
                self.note_failure(f"results could not be read back: {type(error).__name__}: {error}")
        # A record never names a file that is not complete. The flush thread only waits: it would compete with training.
        files.drain(write=not on_flush_thread())
        _write_out(waiting.records, count, lambda names, records: files.append_records(self._encode(names, records)))
        _write_out(
            waiting.parents,
            len(waiting.parents),
            lambda children, parents: files.append_parents(self._encode(children, parents)),
        )
        _write_out(waiting.calls, len(waiting.calls), files.append_stacks)

    def _encode(self, names: Sequence[str], values: Sequence[Any]) -> list[bytes]:
        try:
            return dumps_members(names, values)
        except _ENCODING_ERRORS as error:
            pass_on_interruption(error)
            return list(map(self._encode_alone, names, values))

    def _encode_alone(self, name: str, value: Any) -> bytes:
        try:
            return dumps_json(name) + b":" + dumps_json(value)
        except _ENCODING_ERRORS as error:
            pass_on_interruption(error)
            self.note_failure(f"record {name} has no JSON form and is left empty: {type(error).__name__}: {error}")
            return dumps_json(str(name)) + b":{}"

    def _render(self, key: Hashable) -> list[str]:
        try:
            return self._render_stack(key)
        except Exception as error:  # noqa: BLE001 - a callback of the caller; the name is kept with an empty stack
            pass_on_interruption(error)
            self.note_failure(f"a call stack could not be rendered: {type(error).__name__}: {error}")
            return []

    def _counts(self) -> dict[str, Any]:
        records = self._waiting.records
        return {
            "records": records.taken,
            "bytes": self._files.size,
            "duplicates": records.taken - len(set(records.first_hashes)),
            "lost_records": records.lost,
            "failures": list(self.failures),
            **self._files.counts,
        }

    def finish_at_exit(self) -> None:
        """Finish a step that is still open when the interpreter exits."""
        coverage: Mapping[str, Any] = {}
        if self._exit_coverage is not None and os.getpid() == self._pid:
            try:
                coverage = self._exit_coverage()
            except Exception as error:  # noqa: BLE001 - a callback of the caller; the step is still finished
                pass_on_interruption(error)
                self.note_failure(f"coverage could not be collected at exit: {type(error).__name__}: {error}")
        self.finish(coverage)
