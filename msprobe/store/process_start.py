"""When this run started, so that folders of an earlier run can be told from those of a sibling rank."""

from __future__ import annotations

import os
import time
from collections.abc import MutableMapping
from pathlib import Path

RUN_STARTED = "MSPROBE_RUN_STARTED"
_START_FIELD = 19  # field 22 of proc(5) stat, counted after the closing parenthesis of the command name


def start_ticks(pid: int) -> int | None:
    """Return when a process of this machine started, in clock ticks since boot; None if there is no such process.

    Unlike a time of day this does not change when the clock is set, so together with the process number it is the
    identity of a process.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
        return int(text.rpartition(b")")[2].split()[_START_FIELD])
    except (OSError, ValueError, IndexError):
        return None


def process_start() -> float:
    """Return when this process started, in seconds since the epoch.

    Exact to the clock tick (10 ms), rounded down. On a system without ``/proc`` the current time.
    """
    now = time.time()
    ticks = start_ticks(os.getpid())
    if ticks is None:
        return now
    return now - max(time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"), 0.0)


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
