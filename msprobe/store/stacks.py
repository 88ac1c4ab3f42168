"""Call stacks of the recorded calls: a journal while the step is open, ``stack.json`` when it pauses.

``stack.json`` is ``{"0": [[names], [frames]], ...}`` with one entry per different stack, so names that arrive later
belong into entries that are already written. The journal (``stack.json.part``) therefore holds one line per new stack
and one per group of names; a pause appends what is new to ``stack.json``, and the end of the step merges entries of
the same stack if there were several pauses. Kept in memory: one small entry per different stack, nothing per call.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

from msprobe.store.json_bytes import dumps_json, loads_json
from msprobe.store.part_file import TAIL_OBJECT, GrowingObject
from msprobe.store.step_folder import ShortWriteError, StepFolder, read_fully, write_fully

STACK_FILE = "stack.json"
JOURNAL_FILE = "stack.json.part"
_STACK_FIELD = b'{"stack":'
_NAMES_FIELD = b',"names":['


class StackJournal:
    """Writer of ``stack.json`` for one open step.

    Parameters
    ----------
    folder
        Rank folder.
    render
        Turns a stack key into its frames, innermost first. Called once per different key, when it is first flushed.

    Raises
    ------
    OSError
        The files cannot be created.
    """

    __slots__ = (
        "_assembled",
        "_folder",
        "_ids",
        "_ids_by_text",
        "_render",
        "_scattered",
        "_spans",
        "_state",
        "_target",
    )

    def __init__(self, folder: StepFolder, render: Callable[[Hashable], list[str]]) -> None:
        self._folder = folder
        self._render = render
        self._ids: dict[Hashable, int] = {}
        self._ids_by_text: dict[bytes, int] = {}
        self._spans: list[tuple[int, int]] = []  # per stack: length and offset of its frames' JSON in the journal
        self._state = (0, 0)  # length of the journal and names in it, always changed together
        self._assembled = 0
        self._scattered = False  # stack.json may hold several entries of one stack, or lack some
        self._target = GrowingObject(folder, STACK_FILE, b"{", TAIL_OBJECT)
        os.close(folder.create(JOURNAL_FILE))

    @property
    def size(self) -> int:
        """Length of ``stack.json`` in bytes."""
        return self._target.size

    @property
    def names(self) -> int:
        """Number of names in the journal."""
        return self._state[1]

    @property
    def _end(self) -> int:
        return self._state[0]

    def append(self, names: Sequence[str], keys: Sequence[Hashable]) -> None:
        """Write names, each with its stack, to the journal.

        Raises
        ------
        OSError
            The journal cannot be written; it ends with its last complete line.
        """
        different = dict.fromkeys(keys)
        self._define([key for key in different if key not in self._ids])
        groups: dict[int, list[str]] = {}
        members = {key: groups.setdefault(self._ids[key], []) for key in different}
        deque(map(list.append, map(members.__getitem__, keys), names), maxlen=0)  # a loop at the speed of C
        lines = [
            b"%b%d%b%b}\n" % (_STACK_FIELD, number, _NAMES_FIELD, dumps_json(group)[1:])
            for number, group in groups.items()
        ]
        self._write(b"".join(lines), len(names))

    def pause(self) -> None:
        """Bring ``stack.json`` up to date; the cost is that of what was added since the last pause.

        Raises
        ------
        OSError
            ``stack.json`` cannot be written; the journal still has everything.
        """
        if self._assembled == self._end:
            return
        entries = self._entries(self._assembled, self._target.members)
        scattered = self._scattered or self._assembled > 0
        self._scattered = True  # until it is known that it worked
        self._assembled = self._end
        self._target.append(entries)
        self._scattered = scattered

    def finish(self) -> None:
        """Bring ``stack.json`` into its final form, one entry per different stack, and remove the journal.

        Raises
        ------
        OSError
            ``stack.json`` cannot be written; the journal stays and readers use it.
        """
        self.pause()
        if self._scattered:
            self._merge()
        self._folder.remove(JOURNAL_FILE)

    def _define(self, keys: Sequence[Hashable]) -> None:
        """Write the frames of new keys; the tables change only when that worked, and never name a missing span."""
        ids: dict[Hashable, int] = {}
        by_text: dict[bytes, int] = {}
        spans: list[tuple[int, int]] = []
        text = bytearray()
        for key in keys:
            frames = dumps_json(self._render(key))
            digest = hashlib.blake2b(frames, digest_size=16).digest()
            number = self._ids_by_text.get(digest, by_text.get(digest))
            if number is None:
                number = by_text[digest] = len(self._spans) + len(spans)
                text += b'{"stack":%d,"frames":' % number
                spans.append((len(frames), self._end + len(text)))
                text += frames + b"}\n"
            ids[key] = number
        self._write(bytes(text))
        self._spans.extend(spans)
        self._ids_by_text.update(by_text)
        self._ids.update(ids)

    def _entries(self, start: int, first: int, *, by_number: bool = False) -> list[bytes]:
        """Return entries of ``stack.json`` for the names that the journal has from an offset on.

        They are numbered from ``first`` on, in the order in which their stacks come there or were defined. What this
        process has written is not parsed again.
        """
        descriptor = self._folder.open(JOURNAL_FILE)
        try:
            text = read_fully(descriptor, self._end - start, start)
            groups = _names_by_stack(text)
            entries = []
            for place, number in enumerate(sorted(groups) if by_number else groups, first):
                length, offset = self._spans[number]
                at = offset - start
                frames = text[at : at + length] if at >= 0 else os.pread(descriptor, length, offset)
                entries.append(b'"%d":[[%b],%b]' % (place, b",".join(groups[number]), frames))
            return entries
        finally:
            os.close(descriptor)

    def _write(self, text: bytes, names: int = 0) -> None:
        if not text:
            return
        descriptor, status = self._folder.open_known(JOURNAL_FILE)
        try:
            write_fully(descriptor, text, self._end)
            self._state = (self._end + len(text), self.names + names)
            if status.st_size > self._end:  # an earlier write was interrupted
                os.ftruncate(descriptor, self._end)
        except ShortWriteError:
            os.ftruncate(descriptor, self._end)
            raise
        finally:
            os.close(descriptor)

    def _merge(self) -> None:
        temporary = STACK_FILE + ".tmp"
        self._folder.remove(temporary)
        try:
            merged = GrowingObject(self._folder, temporary, b"{", TAIL_OBJECT)
            merged.append(self._entries(0, 0, by_number=True))
            self._folder.rename(temporary, STACK_FILE)
        except OSError:
            self._folder.remove(temporary)
            raise
        self._target = merged


def _names_by_stack(text: bytes) -> dict[int, list[bytes]]:
    """Find the lines of names among complete lines of a journal: per stack their JSON lists, without brackets."""
    groups: dict[int, list[bytes]] = {}
    for line in text.split(b"\n"):
        # Neither a number nor text in frames has this: a quotation mark inside of text has a backslash before it.
        head, found, names = line.partition(_NAMES_FIELD)
        if found:
            groups.setdefault(int(head[len(_STACK_FIELD) :]), []).append(names[:-2])
    return groups


def read_journal(path: Path) -> dict[str, list[str]]:
    """Read the stacks of a step that was not finished.

    Parameters
    ----------
    path
        ``stack.json.part``; a broken last line is ignored.

    Returns
    -------
    dict
        Record name to frames, innermost first.
    """
    frames: dict[int, list[str]] = {}
    stacks: dict[str, list[str]] = {}
    for line in path.read_bytes().split(b"\n"):
        try:
            entry = loads_json(line)
        except ValueError:
            continue
        number = entry.get("stack") if isinstance(entry, dict) else None
        if not isinstance(number, int):
            continue  # no line of ours
        if isinstance(entry.get("frames"), list):
            frames[number] = entry["frames"]
        if isinstance(entry.get("names"), list):
            stacks.update({name: frames.get(number, []) for name in entry["names"] if isinstance(name, str)})
    return stacks
