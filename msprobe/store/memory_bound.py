"""How much host memory may wait to be written: read from the environment or taken from what is free."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

VARIABLE = "MSPROBE_BUFFER_MB"
_BACKGROUND = 256 << 20
_FREE_SHARE = 4
_UNKNOWN_FREE = 4 << 30
_PROCESSES_HERE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def memory_bound(environment: Mapping[str, str], *, asynchronous: bool, free: int | None = None) -> int:
    """Return the bound in bytes for one process.

    Parameters
    ----------
    environment
        `VARIABLE` is the bound in MiB, if it is a whole number above 0. Launchers say in their variables how many
        processes share the machine.
    asynchronous
        A whole step waits: a quarter of the free memory, divided by the processes of this machine. Otherwise files are
        written all the time, and 256 MiB are enough.
    free
        Free memory of the machine in bytes; None: ask the system.
    """
    wanted = environment.get(VARIABLE, "")
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted) << 20
    share = (free_memory() if free is None else free) // _FREE_SHARE // _processes(environment)
    return share if asynchronous else min(share, _BACKGROUND)


def free_memory(table: Path = Path("/proc/meminfo")) -> int:
    """Return the memory in bytes that programs can still take, 4 GiB where the system does not say."""
    try:
        for line in table.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        return _UNKNOWN_FREE
    return _UNKNOWN_FREE


def _processes(environment: Mapping[str, str]) -> int:
    counts = [environment.get(name, "") for name in _PROCESSES_HERE]
    return max([int(count) for count in counts if count.isdecimal()] + [1])
