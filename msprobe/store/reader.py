"""Reading a dump: finished, still being written, or left behind by a process that was killed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msprobe.store.coverage_file import COVERAGE_FILE
from msprobe.store.json_bytes import loads_json
from msprobe.store.memory_bound import free_memory
from msprobe.store.part_file import TAIL_DUMP, TAIL_OBJECT, cut_back, is_growing, salvage
from msprobe.store.stacks import JOURNAL_FILE, STACK_FILE, read_journal
from msprobe.store.step_files import CONSTRUCT_FILE, DEBUG_FILE, DUMP_FILE
from msprobe.store.tensor_files import TENSOR_FOLDER


class DumpReadError(ValueError):
    """A dump cannot be read; the message names the file, what is wrong with it and what to do."""


NOTHING = {
    TAIL_DUMP: b'{"task":"","level":"","framework":"","dump_data_dir":"","data":{}}',
    TAIL_OBJECT: b"{}",
}
"""What an empty file stands for, by its tail: its process was killed between making it and writing its first line."""


@dataclass(frozen=True, slots=True)
class Dump:
    """One rank of one step.

    Attributes
    ----------
    path
        The ``dump.json`` or ``debug.json`` that was read.
    task, level, framework
        As written; empty where a foreign file has none.
    data
        Record name to record, in the order of the file.
    stacks
        Record name to frames, innermost first. Empty without ``stack.json``.
    parents
        Record name to the name of what encloses it, or None. Empty without ``construct.json``.
    coverage
        Content of ``coverage.json``; None for dumps of other tools.
    complete
        False if the step was not finished: still open, killed, or the file had to be cut back to its last complete
        record.
    tensor_folder
        Folder of the tensor files; None if there is none.
    """

    path: Path
    task: str
    level: str
    framework: str
    data: dict[str, Any]
    stacks: dict[str, list[str]]
    parents: dict[str, Any]
    coverage: dict[str, Any] | None
    complete: bool
    tensor_folder: Path | None


def read_dump(path: str | Path) -> Dump:
    """Read one rank folder.

    Parameters
    ----------
    path
        The folder, or the ``dump.json`` / ``debug.json`` in it. Dumps of mindstudio-probe are read too.

    Raises
    ------
    DumpReadError
        There is no such file, or it is not a dump.
    """
    file = find_dump_file(Path(path))
    head, whole = _read_object(file, TAIL_DUMP)
    data = head.get("data")
    if not isinstance(data, dict):
        raise DumpReadError(
            f'{file}: no object under the key "data"; give the dump.json of a step{{N}}/rank{{R}} folder'
        )
    folder = file.parent
    coverage = _read_optional(folder / COVERAGE_FILE)
    return Dump(
        path=file,
        task=str(head.get("task") or ""),
        level=str(head.get("level") or ""),
        framework=str(head.get("framework") or ""),
        data=data,
        stacks=read_stacks(folder),
        parents=_read_optional(folder / CONSTRUCT_FILE) or {},
        coverage=coverage,
        complete=whole and _was_finished(folder, coverage),
        tensor_folder=_tensor_folder(folder, head.get("dump_data_dir")),
    )


def find_dump_file(path: Path) -> Path:
    """Return the main file of a rank folder.

    Raises
    ------
    DumpReadError
        Neither ``dump.json`` nor ``debug.json`` is there.
    """
    if path.is_file():
        return path
    for name in (DUMP_FILE, DEBUG_FILE):
        if (path / name).is_file():
            return path / name
    inside = ", ".join(sorted(entry.name for entry in path.iterdir())[:8]) if path.is_dir() else "no such folder"
    raise DumpReadError(f"{path}: no dump.json or debug.json here ({inside}); give a step{{N}}/rank{{R}} folder")


def iter_records(path: str | Path) -> Iterator[tuple[str, Any]]:
    """Yield the records of a dump one by one, in the order of the file and with bounded memory.

    Files of other tools, which do not hold one record per line, are loaded whole. A name that was written twice is
    yielded twice.

    Raises
    ------
    DumpReadError
        There is no such file, or it is not a dump.
    """
    file = find_dump_file(Path(path))
    with file.open("rb") as lines:
        head = lines.readline()
        if not is_growing(head, TAIL_DUMP):
            yield from read_dump(file).data.items()
            return
        for line in lines:
            member = line.rstrip().removesuffix(b",")
            if not member or TAIL_DUMP.strip().startswith(member):
                continue
            try:
                yield from loads_json(b"{" + member + b"}").items()
            except ValueError:
                continue  # the unfinished last line of a killed process


def read_stacks(folder: Path) -> dict[str, list[str]]:
    """Read the call stacks of a rank folder, including those of a step that was not finished.

    Returns
    -------
    dict
        Record name to frames, innermost first; empty if none were recorded.
    """
    stacks: dict[str, list[str]] = {}
    for key, entry in (_read_optional(folder / STACK_FILE) or {}).items():
        if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], list) and isinstance(entry[1], list):
            names, frames = entry
            stacks.update({name: frames for name in names if isinstance(name, str)})
        elif isinstance(entry, list):
            stacks[key] = entry  # older layout of mindstudio-probe: name to frames
    journal = folder / JOURNAL_FILE
    if journal.is_file():
        stacks.update(read_journal(journal))
    return stacks


def _read_object(file: Path, tail: bytes) -> tuple[dict[str, Any], bool]:
    """Return the object in a file, and whether it was complete as it stood."""
    try:
        size, free = file.stat().st_size, free_memory()
        if size > free:
            raise DumpReadError(
                f"{file}: {size >> 20} MiB, and {free >> 20} MiB of memory are free; read it where there is more"
            )
        text = file.read_bytes()
    except OSError as error:
        raise DumpReadError(f"{file}: {error.strerror}") from error
    if not text:
        return loads_json(NOTHING[tail]), False
    try:
        content, whole = loads_json(text), True
    except ValueError as error:
        content, whole = _repaired(text, tail), False
        if content is None:
            raise DumpReadError(f"{file}: not JSON, and no complete record can be found in it ({error})") from error
    if not isinstance(content, dict):
        raise DumpReadError(f"{file}: holds {type(content).__name__} instead of an object; is it a dump file?")
    return content, whole


def _repaired(text: bytes, tail: bytes) -> Any:
    for repair in (cut_back, salvage):
        fixed = repair(text, tail)
        if fixed is None:
            return None
        try:
            return loads_json(fixed)
        except ValueError:
            continue
    return None


def _was_finished(folder: Path, coverage: dict[str, Any] | None) -> bool:
    """Tell from ``coverage.json``; a folder without one comes from another tool and counts as finished."""
    if coverage is None:
        return not (folder / COVERAGE_FILE).exists()
    return bool(coverage.get("complete"))


def _read_optional(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    try:
        return _read_object(file, TAIL_OBJECT)[0]
    except DumpReadError:
        return None


def _tensor_folder(folder: Path, written: Any) -> Path | None:
    """Prefer the folder beside the file: a dump that was moved or copied still names its old place."""
    beside = folder / TENSOR_FOLDER
    if beside.is_dir():
        return beside
    return Path(written) if isinstance(written, str) and Path(written).is_dir() else None
