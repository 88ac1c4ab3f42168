"""Complete the files of steps that a killed process left open."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msprobe.store.coverage_file import COVERAGE_FILE
from msprobe.store.json_bytes import dumps_json, loads_json
from msprobe.store.part_file import SEPARATOR, TAIL_DUMP, TAIL_OBJECT, cut_back, is_growing, salvage
from msprobe.store.process_start import start_ticks
from msprobe.store.reader import NOTHING, DumpReadError, read_stacks
from msprobe.store.stacks import JOURNAL_FILE, STACK_FILE
from msprobe.store.step_files import CONSTRUCT_FILE, DEBUG_FILE, DUMP_FILE
from msprobe.store.step_folder import FILE_MODE
from msprobe.store.tensor_files import TENSOR_FOLDER

#: What the files of a folder hold that a process was killed over before their first line; the growing ones are closed.
_WHERE_EMPTY = ((STACK_FILE, NOTHING[TAIL_OBJECT]), (COVERAGE_FILE, dumps_json({"complete": False}) + b"\n"))


@dataclass(frozen=True, slots=True)
class FolderReport:
    """What was done in one rank folder.

    Attributes
    ----------
    folder
        The folder.
    state
        "fine" (nothing to do), "repaired", "open" (its process is still running; left alone) or "damaged".
    records
        Records in the main file afterwards.
    bytes_cut
        Length of unfinished lines that were removed.
    actions
        One sentence per file changed, or the reason of "open" and "damaged".
    """

    folder: Path
    state: str
    records: int
    bytes_cut: int
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecoverReport:
    """Outcome of :func:`recover`, one entry per rank folder found."""

    folders: tuple[FolderReport, ...]

    @property
    def repaired(self) -> int:
        """Number of folders in which something was changed."""
        return sum(report.state == "repaired" for report in self.folders)


def recover(path: str | Path) -> RecoverReport:
    """Make every dump below a folder loadable with ``json.load``.

    Unfinished lines are cut off, open objects closed, and ``stack.json`` is made from its journal. Finished steps and
    steps of a process that still runs on this machine are left alone. Records are not parsed, so this takes about as
    long as reading the files.

    Parameters
    ----------
    path
        A dump_path, a step folder, a rank folder or a dump file.

    Raises
    ------
    DumpReadError
        Nothing below the path looks like a dump.
    OSError
        A repaired file cannot be written.
    """
    start = Path(path)
    folders = sorted(set(_rank_folders(start if not start.is_file() else start.parent)))
    if not folders:
        raise DumpReadError(
            f"{path}: no dump.json or debug.json in it or below; give a dump_path or one of its step folders"
        )
    return RecoverReport(tuple(_recover_folder(folder) for folder in folders))


def _rank_folders(start: Path) -> Iterator[Path]:
    for name in (DUMP_FILE, DEBUG_FILE):
        yield from (file.parent for file in start.rglob(name) if file.is_file() and not file.is_symlink())


def _recover_folder(folder: Path) -> FolderReport:
    coverage = _coverage(folder)
    if coverage is not None and coverage.get("complete"):
        records = coverage.get("records")
        return FolderReport(folder, "fine", records if isinstance(records, int) else 0, 0, ())
    owner = _living_owner(coverage or {})
    if owner:
        return FolderReport(folder, "open", 0, 0, (f"process {owner} is still writing it",))
    main = folder / (DUMP_FILE if (folder / DUMP_FILE).is_file() else DEBUG_FILE)
    actions: list[str] = []
    try:
        cut, records = _close(main, TAIL_DUMP, actions)
        if (folder / CONSTRUCT_FILE).is_file():
            cut += _close(folder / CONSTRUCT_FILE, TAIL_OBJECT, actions)[0]
        _assemble_stacks(folder, actions)
        for name, content in _WHERE_EMPTY:
            _fill(folder / name, content, actions)
    except DumpReadError as error:
        return FolderReport(folder, "damaged", 0, 0, (str(error),))
    _remove_temporaries(folder, actions)
    return FolderReport(folder, "repaired" if actions else "fine", records, cut, tuple(actions))


def _close(file: Path, tail: bytes, actions: list[str]) -> tuple[int, int]:
    """Complete one growing object; return bytes cut and members kept."""
    if _fill(file, NOTHING[tail], actions):
        return 0, 0
    text = file.read_bytes()
    if not is_growing(text, tail):
        _check_foreign(file, text)
        return 0, 0
    fixed = salvage(text, tail) if b"\0" in text.rstrip(b"\0") else cut_back(text, tail)
    body = (fixed or text).partition(b"\n")[2].removesuffix(tail)
    records = body.count(SEPARATOR) + 1 if body else 0
    if fixed is None or fixed == text:
        return 0, records
    _replace(file, fixed)
    cut = max(len(text) - len(fixed), 0)
    actions.append(f"{file.name}: closed after its last complete member")
    return cut, records


def _fill(file: Path, content: bytes, actions: list[str]) -> bool:
    """Write to a file that has nothing in it: its process was killed between making it and writing its first line."""
    if not file.is_file() or file.is_symlink() or file.stat().st_size:
        return False
    file.write_bytes(content)
    actions.append(f"{file.name}: nothing had been written to it yet; made an empty one")
    return True


def _check_foreign(file: Path, text: bytes) -> None:
    """Accept a file that is not of ours (or whose first line is lost) as it stands, if it is JSON."""
    try:
        loads_json(text)
    except ValueError as error:
        raise DumpReadError(f"{file}: neither JSON nor written line by line, cannot be repaired ({error})") from error


def _assemble_stacks(folder: Path, actions: list[str]) -> None:
    journal = folder / JOURNAL_FILE
    if not journal.is_file():
        return
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, frames in read_stacks(folder).items():
        groups.setdefault(tuple(frames), []).append(name)
    members = [
        b'"%d":[%b,%b]' % (number, dumps_json(names), dumps_json(frames))
        for number, (frames, names) in enumerate(groups.items())
    ]
    _replace(folder / STACK_FILE, b"{\n" + SEPARATOR.join(members) + TAIL_OBJECT)
    journal.unlink()
    actions.append(f"{STACK_FILE}: assembled from its journal")


def _replace(file: Path, content: bytes) -> None:
    """Write a file beside another one and give it its name; a link that stands there is removed, not followed."""
    temporary = file.with_name(file.name + ".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
    temporary.replace(file)


def _remove_temporaries(folder: Path, actions: list[str]) -> None:
    left = [file for file in (folder / TENSOR_FOLDER).glob(".*.tmp") if file.is_file()]
    for file in left:
        file.unlink()
    if left:
        actions.append(f"{TENSOR_FOLDER}: {len(left)} unfinished tensor file(s) removed")


def _coverage(folder: Path) -> dict[str, Any] | None:
    file = folder / COVERAGE_FILE
    if not file.is_file():  # a pipe would never end
        return None
    try:
        content = loads_json(file.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _living_owner(coverage: dict[str, Any]) -> int | None:
    """Return the process that has the step open, if it runs on this machine."""
    writer = coverage.get("writer")
    if not isinstance(writer, dict) or writer.get("host") != socket.gethostname():
        return None
    pid = writer.get("pid")
    started = start_ticks(pid) if isinstance(pid, int) else None
    return pid if started is not None and started == writer.get("start_ticks") else None
