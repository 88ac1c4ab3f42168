"""When this run started, so that folders of an earlier run can be told from those of a sibling rank."""

from __future__ import annotations

import os
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

RUN_STARTED = "MSPROBE_RUN_STARTED"
_START_FIELD = 19  # field 22 of proc(5) stat, counted after the closing parenthesis of the command name
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class RunStart:
    """A moment on two clocks.

    Attributes
    ----------
    epoch
        Seconds since the epoch, by the clock of that moment; that clock may be set at any time.
    boot
        Identity of the boot of the machine; empty where the system does not tell.
    uptime
        Seconds since that boot. Never jumps; comparable only under the same `boot`.
    """

    epoch: float
    boot: str
    uptime: float

    def text(self) -> str:
        """Render for the environment; see `from_text`."""
        return f"{self.epoch!r} {self.uptime!r} {self.boot}".rstrip()

    @classmethod
    def from_text(cls, text: str) -> RunStart:
        """Read what `text` made.

        Raises
        ------
        ValueError
            It is something else.
        """
        epoch, uptime, *boot = text.split()
        return cls(float(epoch), "".join(boot), float(uptime))

    def after(self, other: RunStart) -> bool:
        """Tell whether this moment is later: by the clock that nobody can set, where both have the same."""
        if self.boot and self.boot == other.boot:
            return self.uptime > other.uptime
        return self.epoch > other.epoch


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


def moment_now() -> RunStart:
    """Return the current moment."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    try:
        boot = _BOOT_ID.read_bytes().decode().strip()
    except (OSError, ValueError):
        boot = ""
    return RunStart(time.time(), boot, time.clock_gettime(clock))


def process_start() -> RunStart:
    """Return when this process started.

    Exact to the clock tick (10 ms), rounded down. On a system without ``/proc`` the current time.
    """
    now = moment_now()
    ticks = start_ticks(os.getpid())
    if ticks is None:
        return now
    age = max(now.uptime - ticks / os.sysconf("SC_CLK_TCK"), 0.0)
    return RunStart(now.epoch - age, now.boot, now.uptime - age)


def run_start(environment: MutableMapping[str, str]) -> RunStart:
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
        inherited = RunStart.from_text(environment[RUN_STARTED])
    except (KeyError, ValueError):
        inherited = own
    started = inherited if inherited.epoch > 0.0 < inherited.uptime and own.after(inherited) else own
    environment[RUN_STARTED] = started.text()
    return started
