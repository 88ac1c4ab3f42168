"""What could not be written: counted, kept for coverage.json, logged once."""

from __future__ import annotations

import errno
import logging
import os
import threading
from datetime import datetime, timezone

from msprobe.store.step_folder import StepFolder

ERROR_LOG = "dump_error_info.log"
_MOST_REASONS = 100
_MOST_LOG_LINES = 1000
_ADVICE = {
    errno.ENOSPC: "Free space, or set dump_path to a larger disk.",
    errno.EDQUOT: "The disk quota is used up; set dump_path to another disk.",
    errno.EFBIG: "The file size limit of this process (ulimit -f) is reached.",
    errno.EACCES: "Give the current user write permission, or choose another dump_path.",
    errno.EPERM: "Give the current user write permission, or choose another dump_path.",
    errno.EROFS: "The file system is read-only; choose another dump_path.",
    errno.ENOENT: "The folder was removed while the run was writing to it.",
    errno.ESTALE: "The file was replaced or shortened while the run was writing to it.",
    errno.EEXIST: "There is a dump at this place already; nothing is overwritten. Choose another dump_path.",
    errno.ELOOP: "Symbolic links are not followed here; name the real folder as dump_path.",
    errno.ENOTDIR: "A folder is needed there: choose another dump_path. Links are not followed below it.",
}


class Announcer:
    """Says each kind of trouble once on the ``msprobe`` logger, however many steps or files it concerns."""

    __slots__ = ("_lock", "_said")

    def __init__(self) -> None:
        self._said: set[object] = set()
        self._lock = threading.Lock()

    def warn(self, kind: object, text: str) -> None:
        """Log a warning unless one of this kind was logged before."""
        with self._lock:
            if kind in self._said:
                return
            self._said.add(kind)
        logging.getLogger("msprobe").warning(text)


class FailureNotes:
    """Failures of one open step: a bounded list of reasons and ``dump_error_info.log``."""

    __slots__ = ("_announcer", "_folder", "_lines", "_seen", "reasons")

    def __init__(self, folder: StepFolder | None, announcer: Announcer, before: FailureNotes | None = None) -> None:
        self.reasons: list[str] = []
        self._seen: set[str] = set()
        self._folder = folder
        self._announcer = announcer
        self._lines = 0
        for text in before.reasons if before is not None else ():  # noted while there was no folder
            self.note(text)

    def note(self, text: str, *, kind: str | None = None) -> None:
        """Keep a reason and append it to the error log, which is created by the first one.

        Of several with the same ``kind`` only the first is kept; the log has them all.
        """
        kind = text if kind is None else kind
        if kind not in self._seen and len(self.reasons) < _MOST_REASONS:
            self._seen.add(kind)
            self.reasons.append(text)
        self._lines += 1
        if self._folder is not None and self._lines <= _MOST_LOG_LINES:
            self._write_line(self._folder, text)

    def warn(self, kind: object, text: str) -> None:
        """Keep a reason and log it, once per kind."""
        self.note(text)
        self._announcer.warn(kind, f"msprobe: {text}")

    def note_os_error(self, where: str, error: OSError, consequence: str, *, file_name: str = "") -> None:
        """Keep the reason of a refused write and warn once per kind of refusal.

        With a file in the folder ``where``, the reason names the first one that was refused for this cause.
        """
        code = error.errno or 0
        cause = f"{error.strerror or type(error).__name__} (errno {code})"
        reason = f"{where}: {cause}"
        self.note(f"{reason}: {file_name}" if file_name else reason, kind=reason)
        advice = _ADVICE.get(code, "Check the disk behind dump_path.")
        self._announcer.warn(
            ("write", code), f"msprobe cannot write {where}: {cause}. Training goes on; {consequence} {advice}"
        )

    def note_lost_file(self, folder: str, file_name: str, error: BaseException) -> None:
        """Keep why a tensor file was not written; a refusal of the disk is logged once per kind."""
        refusal = _os_error_behind(error)
        if isinstance(refusal, OSError):
            self.note_os_error(folder, refusal, "the tensor is not stored, its record is.", file_name=file_name)
        else:
            self.note(f"tensor file {file_name}: {type(refusal).__name__}: {refusal}")

    def _write_line(self, folder: StepFolder, text: str) -> None:
        stamp = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        last = " (further lines are left out)" if self._lines == _MOST_LOG_LINES else ""
        line = f"{stamp} {text}{last}\n".encode("utf-8", "backslashreplace")
        try:
            descriptor = folder.open(ERROR_LOG, os.O_CREAT | os.O_APPEND)
        except OSError:
            return  # a place that cannot be written cannot hold its error log either; the reason stays in the list
        try:
            os.write(descriptor, line)
        except OSError:
            self._lines = _MOST_LOG_LINES  # full disk: do not try again for every line
        finally:
            os.close(descriptor)


def _os_error_behind(error: BaseException) -> BaseException:
    """Return the refusal of the disk that another error was raised from, or the error itself."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError):
            return seen
        seen = seen.__cause__ or seen.__context__
    return error
