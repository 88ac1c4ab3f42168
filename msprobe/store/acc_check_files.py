"""The result files of acc_check: one line per finished call, readable at any moment, continued after a kill."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msprobe.core.errors import MsprobeError
from msprobe.store.json_bytes import dumps_json, loads_json

RESULT_FILE = "acc_check_result.csv"
DETAIL_FILE = "acc_check_details.csv"
RUN_FILE = "acc_check_run.json"

Row = Sequence[str]


class ResultFilesError(MsprobeError, ValueError):
    """The folder cannot be used; the text says why and what to do."""


class ResultFiles:
    """Writer of ``acc_check_result.csv`` and ``acc_check_details.csv``.

    The rows of a call's tensors are written before its own row: what has a row there is complete.

    Parameters
    ----------
    folder
        Made if it is missing.
    identity
        What was checked and how. Results are continued only for the same.
    columns
        Of the results, and of the details.
    resume
        Keep the rows that are there.
    force
        Replace the rows that are there.

    Attributes
    ----------
    rows
        Rows of the results by the name of the call, those of an earlier run too.

    Raises
    ------
    ResultFilesError
        The folder cannot be written to, or holds results that must not be touched.
    """

    def __init__(
        self,
        folder: Path,
        identity: Mapping[str, Any],
        columns: tuple[Row, Row],
        *,
        resume: bool = False,
        force: bool = False,
    ) -> None:
        self._folder = folder
        self._columns = columns
        self.rows: dict[str, list[str]] = {}
        self._details: list[list[str]] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._begin(identity, resume=resume, force=force)
        except OSError as error:
            raise ResultFilesError(f"{folder}: cannot write results there: {error.strerror}") from error

    def _begin(self, identity: Mapping[str, Any], *, resume: bool, force: bool) -> None:
        present = (self._folder / RESULT_FILE).exists()
        if present and not resume and not force:
            raise ResultFilesError(
                f"{self._folder} holds results of an earlier check: continue it with --resume, replace it with "
                "--force, or name another folder with -o"
            )
        if present and resume:
            self._check_identity(identity)
            self.rows = {row[0]: row for row in _read(self._folder / RESULT_FILE, len(self._columns[0]))}
            details = _read(self._folder / DETAIL_FILE, len(self._columns[1]))
            self._details = [row for row in details if row[0] in self.rows]
        self._replace(RUN_FILE, dumps_json(dict(identity)) + b"\n")
        self._replace(DETAIL_FILE, _text([self._columns[1], *self._details]))
        self._replace(RESULT_FILE, _text([self._columns[0], *self.rows.values()]))

    def _check_identity(self, identity: Mapping[str, Any]) -> None:
        try:
            before = loads_json((self._folder / RUN_FILE).read_bytes())
        except (OSError, ValueError):
            before = None
        if before == dict(identity):
            return
        if not isinstance(before, dict):
            difference = f"{RUN_FILE} cannot be read"
        else:
            keys = [key for key in identity if before.get(key) != identity[key]]
            difference = "; ".join(f"{key} was {before.get(key)!r}, now {identity[key]!r}" for key in keys)
        raise ResultFilesError(f"--resume: the results in {self._folder} are of another check: {difference}")

    def add(self, row: list[str], details: list[list[str]]) -> None:
        """Append a finished call.

        Raises
        ------
        OSError
            The disk is full, or the folder is gone.
        """
        if details:
            self._append(DETAIL_FILE, details)
        self._append(RESULT_FILE, [row])
        self.rows[row[0]] = row
        self._details += details

    def finish(self, order: Iterable[str]) -> None:
        """Write both files again, in the order of the dump.

        Parameters
        ----------
        order
            Names of all calls.
        """
        place = {name: index for index, name in enumerate(order)}
        results = sorted(self.rows.values(), key=lambda row: place.get(row[0], len(place)))
        details = sorted(self._details, key=lambda row: place.get(row[0], len(place)))
        self._replace(DETAIL_FILE, _text([self._columns[1], *details]))
        self._replace(RESULT_FILE, _text([self._columns[0], *results]))

    def _append(self, name: str, rows: list[list[str]]) -> None:
        with (self._folder / name).open("ab") as file:
            file.write(_text(rows))

    def _replace(self, name: str, content: bytes) -> None:
        temporary = self._folder / f".{name}.{os.getpid()}.tmp"
        temporary.write_bytes(content)
        temporary.replace(self._folder / name)


def _text(rows: Iterable[Row]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([cell.replace("\n", " ") for cell in row] for row in rows)
    return text.getvalue().encode("utf-8", "backslashreplace")


def _read(file: Path, columns: int) -> list[list[str]]:
    """Return the complete rows below the header; a kill may have left half of the last one."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return []
    complete = content[: content.rfind(b"\n") + 1].decode("utf-8", "replace")
    return [row for row in csv.reader(io.StringIO(complete)) if len(row) == columns][1:]
