"""``coverage.json``: what was recorded, what was not and why, and whether the step was finished.

It is created when the step opens, with a note of the writing process and padding up to one disk block, and
overwritten in place at the end. So the reason of a full disk can still be written when the disk is full, and a reader
can tell a step that is open or was killed from a finished one.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from msprobe.store.json_bytes import dumps_json
from msprobe.store.process_start import start_ticks
from msprobe.store.step_folder import ShortWriteError, StepFolder, write_fully

COVERAGE_FILE = "coverage.json"
_BLOCK = 4096
_SURVIVORS = ("records", "bytes", "duplicates", "lost_records")


class CoverageFile:
    """The coverage file of an open step.

    Raises
    ------
    OSError
        It cannot be created.
    """

    __slots__ = ("_folder",)

    def __init__(self, folder: StepFolder) -> None:
        self._folder = folder
        owner = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "start_ticks": start_ticks(os.getpid()),
            "opened": time.time(),
        }
        text = dumps_json({"complete": False, "writer": owner})
        descriptor = folder.create(COVERAGE_FILE)
        try:
            write_fully(descriptor, text.ljust(_BLOCK - 1) + b"\n", 0)
        finally:
            os.close(descriptor)

    def finish(self, coverage: Mapping[str, Any]) -> None:
        """Write the final content.

        Raises
        ------
        OSError
            Not even the short form (counts and failures, cut to one block) could be written.
        """
        text = _encode(dict(coverage) | {"complete": True})
        descriptor = self._folder.open(COVERAGE_FILE)
        try:
            try:
                _overwrite(descriptor, text)
            except ShortWriteError:
                _overwrite(descriptor, _short_form(coverage))
        finally:
            os.close(descriptor)


def _overwrite(descriptor: int, text: bytes) -> None:
    write_fully(descriptor, text, 0)
    os.ftruncate(descriptor, len(text))


def _encode(coverage: Mapping[str, Any]) -> bytes:
    try:
        return dumps_json(coverage) + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        kept = {key: coverage[key] for key in (*_SURVIVORS, "failures") if key in coverage}
        return dumps_json(kept | {"complete": True, "coverage_error": f"{type(error).__name__}: {error}"}) + b"\n"


def _short_form(coverage: Mapping[str, Any]) -> bytes:
    """Render counts and as many failures as fit into the block that is reserved."""
    kept = {key: coverage[key] for key in _SURVIVORS if key in coverage}
    failures = list(coverage.get("failures", ()))
    while True:
        text = dumps_json(kept | {"failures": failures, "complete": True, "shortened": True}) + b"\n"
        if len(text) <= _BLOCK or not failures:
            return text
        failures.pop()
