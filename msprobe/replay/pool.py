"""Worker processes: calls are handed out one by one, and a process that dies is replaced.

Imports no framework. A call during which a process dies is tried once more, in a fresh process; if that dies too, the
call has failed and the check goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import IO, Any

from msprobe.core.errors import MsprobeError
from msprobe.replay import verdicts
from msprobe.replay.calls import ApiCall
from msprobe.replay.records import CallResult

_TAIL = 4096
_START_TIMEOUT = 600.0  # seconds; importing a framework from a slow disk takes minutes


class WorkerError(MsprobeError, RuntimeError):
    """A worker cannot begin; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Job:
    """What all calls of a check have in common.

    Attributes
    ----------
    device : str
        ``cpu``, ``cuda`` or ``npu``.
    seed : int
        Decides the values of inputs that are made from statistics.
    tensor_folder : str or None
        Of the dump.
    error_data : str
        Folder for reproducer scripts.
    imports : list of str
        Modules that define custom operators.
    threads : int
        Of torch, in each process.
    timeout : float
        Seconds that one call may take.
    """

    device: str
    seed: int
    tensor_folder: str | None
    error_data: str
    imports: list[str]
    threads: int
    timeout: float


class _DiedError(RuntimeError):
    """The process is gone; the text says how."""


class _SlowError(RuntimeError):
    """The process gives no answer in time."""


class Worker:
    """One process, replaced when it dies.

    Parameters
    ----------
    job : Job
    number : int
        Chooses among several devices.
    """

    def __init__(self, job: Job, number: int) -> None:
        self._job = job
        self._number = number
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._rest = b""

    def replay(self, call: ApiCall) -> CallResult:
        """Replay a call, if need be twice.

        Raises
        ------
        WorkerError
            No process can begin.
        """
        deaths: list[str] = []
        while len(deaths) < 2:
            try:
                return self._note_deaths(self._ask(call), deaths)
            except _DiedError as error:  # noqa: PERF203 - each try is a process
                deaths.append(str(error))
                self.close()
            except _SlowError as error:
                self.close()
                return CallResult(call.name, verdicts.ERROR, verdicts.SKIP, str(error))
        return CallResult(call.name, verdicts.ERROR, verdicts.SKIP, f"the process died twice: {deaths[-1]}")

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):  # unsent text of a process that is gone
                        stream.close()
        if self._log is not None:
            self._log.close()
        self._process, self._log, self._rest = None, None, b""

    @staticmethod
    def _note_deaths(result: CallResult, deaths: list[str]) -> CallResult:
        if not deaths:
            return result
        note = f"the process died the first time ({deaths[0]})"
        notes = f"{result.notes}; {note}" if result.notes else note
        return CallResult.from_json({**result.as_json(), "notes": notes})

    def _ask(self, call: ApiCall) -> CallResult:
        if self._process is None:
            self._begin()
        answer = self._exchange(call.as_json(), self._job.timeout)
        if answer.get("broken"):
            self.close()  # a device assert stays with the process; the next call gets a fresh one
        return CallResult.from_json(answer["result"])

    def _begin(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "msprobe.replay.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        try:
            answer = self._exchange({**asdict(self._job), "number": self._number}, _START_TIMEOUT)
        except (_DiedError, _SlowError) as error:
            self.close()
            raise WorkerError(f"acc_check: the process that replays cannot begin: {error}") from error
        if "refused" in answer:
            self.close()
            raise WorkerError(f"acc_check --device {self._job.device}: {answer['refused']}")

    def _exchange(self, content: dict[str, Any], timeout: float) -> dict[str, Any]:
        process = self._process
        if process is None or process.stdin is None:
            raise _DiedError("it was closed")
        try:
            process.stdin.write(json.dumps(content).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise _DiedError(self._how_it_died()) from None
        answer: dict[str, Any] = json.loads(self._line(timeout))
        return answer

    def _line(self, timeout: float) -> bytes:
        process = self._process
        if process is None or process.stdout is None:
            raise _DiedError("it was closed")
        descriptor = process.stdout.fileno()
        while b"\n" not in self._rest:
            if not select.select([descriptor], [], [], timeout)[0]:
                raise _SlowError(f"no answer within {timeout:g} s")
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                raise _DiedError(self._how_it_died())
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _how_it_died(self) -> str:
        code = self._process.wait() if self._process is not None else 0
        how = _signal_name(-code) if code < 0 else f"exit code {code}"
        last = self._last_words()
        return f"{how} ({last})" if last else how

    def _last_words(self) -> str:
        if self._log is None:
            return ""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _TAIL))
        lines = [line.strip() for line in self._log.read().decode("utf-8", "replace").splitlines()]
        return next((line[:200] for line in reversed(lines) if line), "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def replay_all(calls: Iterable[ApiCall], job: Job, processes: int, done: Callable[[CallResult], None]) -> None:
    """Replay calls in several processes.

    Parameters
    ----------
    calls : iterable of ApiCall
    job : Job
    processes : int
    done : callable
        Gets each result as it comes; called by one thread at a time.

    Raises
    ------
    WorkerError
        No process can begin.
    """
    source = iter(calls)
    lock = threading.Lock()
    failures: list[BaseException] = []
    stop = threading.Event()

    def serve(number: int) -> None:
        worker = Worker(job, number)
        try:
            for call in _shared(source, lock, stop):
                result = worker.replay(call)
                with lock:
                    done(result)
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            failures.append(error)
            stop.set()
        finally:
            worker.close()

    threads = [threading.Thread(target=serve, args=(number,), daemon=True) for number in range(processes)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:
        stop.set()
    if failures:
        raise failures[0]


def _shared(source: Iterator[ApiCall], lock: threading.Lock, stop: threading.Event) -> Iterator[ApiCall]:
    """Yield from an iterator that several threads read."""
    while not stop.is_set():
        with lock:
            call = next(source, None)
        if call is None:
            return
        yield call
