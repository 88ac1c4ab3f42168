"""An earlier md5 dump to compare with, and the file that says what differed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msprobe.store.coverage_file import COVERAGE_FILE
from msprobe.store.json_bytes import dumps_json
from msprobe.store.reader import DumpReadError, iter_records
from msprobe.store.step_files import DUMP_FILE
from msprobe.store.step_folder import StepFolder

SUMMARY_FILE = "bench_differences.json"
_STEP = re.compile(r"step\d+\Z")
_RANK = re.compile(r"(?:rank|proc)\d+\Z")
_CRC = re.compile(r"[0-9a-f]{8}\Z")
Kept = TypeVar("Kept")


class BenchError(DumpReadError):
    """The earlier dump cannot be compared with; the message says what is there instead."""


def check_bench(path: Path, dump_path: Path) -> None:
    """See whether a folder holds a dump of a whole run.

    Parameters
    ----------
    path
        ``bench_path`` of the configuration.
    dump_path
        Where this run writes to: an earlier dump there would be moved away.

    Raises
    ------
    BenchError
        It does not.
    """
    if not path.is_dir():
        raise BenchError(f"{path}: there is no such folder")
    if path.resolve() == dump_path.resolve():
        raise BenchError(f"{path} is dump_path too: this run would move the earlier dump aside; write it elsewhere")
    if not _folders(path, _STEP):
        inside = ", ".join(sorted(entry.name for entry in path.iterdir())[:6]) or "nothing"
        hint = "name the folder above" if _RANK.match(path.name) or _STEP.match(path.name) else "name the dump_path"
        raise BenchError(f"{path}: no step folder in it, but {inside}; {hint} of the earlier run")


def find_bench(path: Path, step: str, rank: str) -> Path:
    """Return the rank folder of the earlier dump that belongs to a rank folder of this run.

    Parameters
    ----------
    path
        ``bench_path``.
    step, rank
        Names of this run's folders: ``step3``, ``rank0`` or ``proc4711``.

    Raises
    ------
    BenchError
        There is none, or it cannot be told which.
    """
    steps = _folders(path, _STEP)
    if step not in steps:
        listed = ", ".join(sorted(steps, key=lambda name: int(name[4:]))[:6])
        raise BenchError(f"{path}: no {step}, only {listed}; record the same steps in both runs")
    folder = path / step
    ranks = _folders(folder, _RANK)
    if rank in ranks:
        return folder / rank
    # Without ranks, or with one process on either side, the only folder is the one.
    if len(ranks) == 1 and (rank.startswith("proc") or ranks[0].startswith("proc")):
        return folder / ranks[0]
    listed = ", ".join(sorted(ranks)[:6]) or "no rank"
    reason = "this process has no rank" if rank.startswith("proc") else f"no {rank}"
    raise BenchError(f"{folder}: {reason}, and there is {listed}; run with the same ranks as the earlier run")


def read_bench(folder: Path, reduce: Callable[[Mapping[str, Any]], Kept]) -> tuple[dict[str, Kept], bool]:
    """Read the records of one rank folder, each reduced to what is needed of it.

    Parameters
    ----------
    folder
        As :func:`find_bench` returned it.
    reduce
        Called with each record; what it returns is kept.

    Returns
    -------
    records : dict
        Record name -> what was kept of it.
    own : bool
        Whether msprobe wrote it, and not mindstudio-probe.

    Raises
    ------
    BenchError
        It cannot be read, or was not recorded with ``summary_mode`` md5.
    """
    kept: dict[str, Kept] = {}
    checked = False
    try:
        for name, record in iter_records(folder / DUMP_FILE):
            if not isinstance(record, dict):
                continue
            checked = checked or _check_summary(folder, record)
            kept[name] = reduce(record)
    except DumpReadError:
        raise
    except OSError as error:
        raise BenchError(f"{folder / DUMP_FILE}: {error.strerror}") from error
    return kept, (folder / COVERAGE_FILE).is_file()


def write_summary(folder: Path, summary: Mapping[str, Any]) -> Path:
    """Write ``bench_differences.json`` into a rank folder, replacing it in one step.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    OSError
        It cannot be written.
    """
    opened = StepFolder(folder)
    temporary = f".{SUMMARY_FILE}.tmp"
    try:
        opened.remove(temporary)
        with os.fdopen(opened.create(temporary), "wb") as file:
            file.write(dumps_json(summary) + b"\n")
        opened.rename(temporary, SUMMARY_FILE)
    finally:
        opened.close()
    return folder / SUMMARY_FILE


def _folders(path: Path, pattern: re.Pattern[str]) -> list[str]:
    try:
        return [entry.name for entry in path.iterdir() if pattern.match(entry.name) and entry.is_dir()]
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}") from error


def _check_summary(folder: Path, record: Mapping[str, Any]) -> bool:
    """Refuse a dump without CRC-32 values; False if the record has no tensor that tells."""
    for entry in _entries(list(record.values())):
        checksum = entry.get("md5")
        if isinstance(checksum, str) and _CRC.match(checksum):
            return True
        if entry.get("Max") is not None or checksum is not None:
            found = "xor or hash" if checksum is not None else "statistics"
            raise BenchError(f'{folder / DUMP_FILE} was recorded with summary_mode {found}; "md5" is needed')
    return False


def _entries(values: Sequence[Any]) -> Iterator[Mapping[str, Any]]:
    for value in values:
        if isinstance(value, dict):
            if "dtype" in value and "shape" in value:
                yield value
            else:
                yield from _entries(list(value.values()))
        elif isinstance(value, list):
            yield from _entries(value)
