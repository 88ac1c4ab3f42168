"""When this run started, so that folders of an earlier run can be told from those of a sibling rank."""

from __future__ import annotations

import os
import time
from collections.abc import MutableMapping
from pathlib import Path

RUN_STARTED = "MSPROBE_RUN_STARTED"
_START_FIELD = 19  # field 22 of proc(5) stat, counted after the closing parenthesis of the command name


def process_start(pid: int | None = None) -> float:
    """Return when a process of this machine started, in seconds since the epoch.

    Parameters
    ----------
    pid
        The process; None for this one.

    Returns
    -------
    float
        Exact to the clock tick (10 ms), rounded down. On a system without ``/proc`` the current time.

    Raises
    ------
    ProcessLookupError
        There is no such process.
    """
    try:
        text = Path(f"/proc/{pid or 'self'}/stat").read_text(encoding="ascii", errors="replace")
        ticks = int(text.rpartition(")")[2].split()[_START_FIELD])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except FileNotFoundError as error:
        if pid is not None:
            raise ProcessLookupError(f"no process {pid}") from error
        return time.time()
    except (OSError, ValueError, IndexError, AttributeError):
        return time.time()
    return time.time() - max(age, 0.0)


def run_start(environment: MutableMapping[str, str]) -> float:
    """Return when the run began and hand it on to child processes.

    The first process of a run stores its own start time in the environment; processes it spawns find it there and
    count as the same run.

    Parameters
    ----------
    environment
        ``os.environ``.
    """
    own = process_start()
    try:
        inherited = float(environment[RUN_STARTED])
    except (KeyError, ValueError):
        inherited = own
    started = inherited if 0.0 < inherited < own else own
    environment[RUN_STARTED] = repr(started)
    return started
