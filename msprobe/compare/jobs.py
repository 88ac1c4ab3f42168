"""Running the comparisons of many ranks and steps: here, in local processes, or on a Dask cluster."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace

from msprobe.compare.pair import PairJob, compare_pair
from msprobe.compare.rows import PairSummary
from msprobe.core.errors import MsprobeError
from msprobe.store.reader import DumpReadError

#: Below this many bytes of dump files another process takes longer to start than it saves.
_WORTH_A_PROCESS = 20 << 20
_MOST_PROCESSES = 8
_PATIENCE = "20s"


class CompareError(MsprobeError, ValueError):
    """A comparison that cannot be made: wrong options or paths."""


def run_jobs(
    jobs: Sequence[PairJob], *, processes: int, scheduler: str | None, done: Callable[[PairSummary], None]
) -> list[PairSummary]:
    """Make every comparison.

    Parameters
    ----------
    jobs
        In the order that the results are wanted in.
    processes
        How many local processes; 0 chooses by the number of jobs, their size and the processors.
    scheduler
        Address of a Dask scheduler (``tcp://host:port``) whose workers see the same files; None for local processes.
    done
        Called with each result as it comes.

    Raises
    ------
    CompareError
        The scheduler cannot be reached, or dask is not installed.
    DumpReadError
        No pair could be read. If only some cannot, their summaries say so.
    """
    count = processes or _processes_for(jobs)
    if scheduler is None and min(count, len(jobs)) <= 1:
        results = []
        for job in jobs:
            results.append(_attempt(job))
            done(results[-1])
    else:
        with _executor(min(count, len(jobs)), scheduler) as executor:
            futures = {executor.submit(_attempt, job): place for place, job in enumerate(jobs)}
            by_place: dict[int, PairSummary] = {}
            for future in as_completed(futures):
                by_place[futures[future]] = future.result()
                done(by_place[futures[future]])
        results = [by_place[place] for place in range(len(jobs))]
    failed = [result for result in results if result.mode == _FAILED]
    if failed and len(failed) == len(results):
        raise DumpReadError(failed[0].notes[0])
    return [replace(result, mode="") if result.mode == _FAILED else result for result in results]


_FAILED = "failed"


def _attempt(job: PairJob) -> PairSummary:
    """Compare one pair; a dump that cannot be read does not take the other ranks with it."""
    try:
        return compare_pair(job)
    except DumpReadError as error:
        job.table.touch()
        return PairSummary(job.step, job.rank, str(job.target), None, {}, {}, mode=_FAILED, notes=(str(error),))


def _processes_for(jobs: Sequence[PairJob]) -> int:
    size = sum(path.stat().st_size for job in jobs for path in (job.target, job.golden) if path is not None)
    if size < _WORTH_A_PROCESS and not any(job.kind == "tensor" for job in jobs):
        return 1
    return min(len(os.sched_getaffinity(0)), _MOST_PROCESSES)


@contextmanager
def _executor(processes: int, scheduler: str | None) -> Iterator[Executor]:
    if scheduler is None:
        # Forked children inherit locks of threads that they do not have; spawned ones start clean.
        with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield pool
        return
    try:
        from distributed import Client  # noqa: PLC0415 - optional
    except ImportError as error:
        raise CompareError("--scheduler needs dask: pip install 'msprobe[cluster]'") from error
    try:
        client = Client(scheduler, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise CompareError(f"--scheduler {scheduler}: {error}; give the address that dask-scheduler prints") from error
    with client, client.get_executor() as pool:
        yield pool
