"""Jobs of the training scripts: each a process of its own, forked after the imports, which take longer than a job."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any


def run_jobs(jobs: str, work: Callable[[dict[str, Any]], None], limit_s: int) -> int:
    """Run every job of a JSON list, one at a time; returns the exit code. A job that failed has left no result.

    Parameters
    ----------
    jobs
        File with a list of mappings. A job works in its ``"folder"``; what it says goes to ``log.txt`` there.
    work
        Called with a job in its process.
    limit_s
        Seconds after which a job is ended.
    """
    for job in json.loads(Path(jobs).read_text("utf-8")):
        child = os.fork()
        if child == 0:
            _enter(Path(job["folder"]), limit_s)
            work(job)
            return 0  # an ordinary exit: what the tool does at exit is part of the run
        os.waitpid(child, 0)
    return 0


def _enter(folder: Path, limit_s: int) -> None:
    signal.alarm(limit_s)
    os.chdir(folder)
    log = os.open("log.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
