"""A process that has imported torch and forks one child per job: a hundred real processes cost one import.

Reads one JSON list of jobs per line, answers with one JSON list of outcomes. The children end by themselves, are ended
at the moment that their job says, or die with this process.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import pwd
import signal
import sys
import time
import traceback
from collections import deque
from pathlib import Path
from typing import Any

TOGETHER = 6
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
_POLL_SECONDS = 0.002


class Child:
    """A running job."""

    def __init__(self, job: dict[str, Any], pid: int) -> None:
        self.job = job
        self.pid = pid
        self.began = time.monotonic()
        self.signalled: float | None = None
        self.overdue = False
        awaited = job.get("kill_after")
        self.awaited = Path(job["folder"], awaited) if awaited else None
        self.since: float | None = None

    def tend(self) -> int | None:
        """Send the signal when it is due; return the exit status once the child has ended, negative for a signal.

        The signal is due some time after the start, or after a file is there.
        """
        now = time.monotonic()
        kill = self.job.get("kill")
        if self.since is None and (self.awaited is None or self.awaited.exists()):
            self.since = now
        if kill is not None and self.signalled is None and self.since is not None and now - self.since >= kill[0]:
            self.signalled = now
            os.kill(self.pid, kill[1])
        if now - self.began > self.job["limit"] and not self.overdue:
            self.overdue = True
            os.kill(self.pid, signal.SIGKILL)
        ended, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if ended else None

    def outcome(self, code: int) -> dict[str, Any]:
        folder = Path(self.job["folder"])
        return {
            "code": code,
            "signalled": self.signalled,
            "overdue": self.overdue,
            "out": _text(folder / "out.txt"),
            "err": _text(folder / "err.txt"),
        }


def _text(file: Path) -> str:
    """Return what a child has written; nothing if it ended before it had the file."""
    return file.read_text(errors="replace") if file.exists() else ""


def run_all(jobs: list[dict[str, Any]]) -> list[dict[str, Any]] | dict[str, Any]:
    """Run jobs, a few at a time; in a child, return its job."""
    waiting = deque(enumerate(jobs))
    running: dict[int, Child] = {}
    outcomes: dict[int, dict[str, Any]] = {}
    together = max([job.get("together", TOGETHER) for job in jobs])
    while waiting or running:
        while waiting and len(running) < together:
            number, job = waiting.popleft()
            pid = os.fork()
            if pid == 0:
                return job
            running[number] = Child(job, pid)
        for number, child in list(running.items()):
            code = child.tend()
            if code is not None:
                outcomes[number] = child.outcome(code)
                del running[number]
        time.sleep(_POLL_SECONDS)
    return [outcomes[number] for number in range(len(jobs))]


def become(job: dict[str, Any]) -> None:
    """Turn this fork into the process of a job."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    folder = Path(job["folder"])
    for descriptor, name in ((1, "out.txt"), (2, "err.txt")):
        opened = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(opened, descriptor)
        os.close(opened)
    faulthandler.dump_traceback_later(max(job["limit"] - 5.0, 1.0))  # where it hangs, if it does
    os.environ.update(job.get("environment", {}))
    module, _, function = job["work"].partition(":")
    work = getattr(importlib.import_module(module), function)  # before: another user may not read the interpreter
    if job.get("unprivileged") and os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.setgroups([])
        os.setgid(nobody.pw_gid)
        os.setuid(nobody.pw_uid)
    work(folder, **job.get("arguments", {}))


def end_quickly() -> None:
    """End in order as far as programs can tell, without taking all of torch down, which takes a second."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def main() -> None:
    sys.path.append(str(Path(__file__).parent))
    import torch
    import torch._dynamo  # what hooks on a module import when they are first installed

    import msprobe.pytorch  # noqa: F401 - warm

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts jobs in the background with it ignored
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.freeze()  # a child that looks through all of torch when it ends copies every page of it: a second each
    for line in sys.stdin:
        answer = run_all(json.loads(line))
        if isinstance(answer, dict):
            sys.stdin = Path(os.devnull).open()  # noqa: SIM115 - the server's own is not the child's to read
            become(answer)
            if answer.get("quick"):
                end_quickly()
            return
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    try:
        main()
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        raise
