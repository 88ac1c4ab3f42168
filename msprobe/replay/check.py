"""acc_check from a dump to its tables: what to replay, in which processes, what came out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from msprobe.core.api_lists import ApiLists, unknown_entries
from msprobe.core.config_load import load_config
from msprobe.core.errors import ConfigError, MsprobeError, Problem
from msprobe.replay import verdicts
from msprobe.replay.calls import ApiCall, calls_of
from msprobe.replay.pool import Job, replay_all
from msprobe.replay.records import CallResult
from msprobe.replay.tables import DETAIL_COLUMNS, RESULT_COLUMNS, detail_rows, result_row
from msprobe.store.acc_check_files import ResultFiles
from msprobe.store.error_data import error_data_problem
from msprobe.store.reader import Dump, read_dump

_ERROR_DATA = "acc_check_error_data"
_CALLS_PER_PROCESS = 200
DEVICES = ("cpu", "cuda", "npu")


class AccCheckError(MsprobeError, ValueError):
    """A dump or a request that cannot be checked; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asks for.

    Attributes
    ----------
    dump : Path
        A ``dump.json`` or the folder that holds it.
    out : Path
        Folder of the tables.
    config : Path or None
        A config.json: its section ``acc_check`` is used, whatever its task.
    device : str
        One of :data:`DEVICES`.
    jobs : int
        Processes; 0 chooses.
    resume, force : bool
        Continue or replace the results in `out`.
    seed : int
    imports : tuple of str
        Modules that define custom operators.
    timeout : float
        Seconds that one call may take.
    """

    dump: Path
    out: Path
    config: Path | None = None
    device: str = "cpu"
    jobs: int = 0
    resume: bool = False
    force: bool = False
    seed: int = 0
    imports: tuple[str, ...] = ()
    timeout: float = 600.0


@dataclass(frozen=True, slots=True)
class Summary:
    """What a check found.

    Attributes
    ----------
    rows : dict
        Name of a call to its row, see :data:`~msprobe.replay.tables.RESULT_COLUMNS`.
    out : Path
    kept : int
        Rows of an earlier run that was continued.
    warnings : list of str
    """

    rows: dict[str, list[str]]
    out: Path
    kept: int
    warnings: list[str] = field(default_factory=list)

    def counts(self) -> Counter[str]:
        """Return the number of calls by verdict: the worse of forward and backward."""
        return Counter(_verdict(row) for row in self.rows.values())

    def skipped(self) -> Counter[str]:
        """Return the number of calls that were not replayed by reason."""
        reasons = (row[3].removeprefix("forward: ") for row in self.rows.values() if row[1] == verdicts.SKIP)
        return Counter(reasons)

    def found(self) -> list[list[str]]:
        """Return the rows with an error, then those with a warning."""
        order = {verdicts.ERROR: 0, verdicts.WARNING: 1}
        rows = [row for row in self.rows.values() if _verdict(row) in order]
        return sorted(rows, key=lambda row: order[_verdict(row)])


@dataclass(frozen=True, slots=True)
class Begun:
    """Told when the calls are known: how many there are, and how many of them are left to replay."""

    total: int
    left: int


def _verdict(row: list[str]) -> str:
    return verdicts.worst([verdict for verdict in row[1:3] if verdict])


def check(
    request: Request,
    begun: Callable[[Begun], None] = lambda _begun: None,
    done: Callable[[CallResult], None] = lambda _result: None,
) -> Summary:
    """Replay the API calls of a dump and write ``acc_check_result.csv`` and ``acc_check_details.csv``.

    Parameters
    ----------
    request : Request
    begun, done : callable
        Told when the replay begins, and of each call.

    Raises
    ------
    AccCheckError, ConfigError, DumpReadError, ResultFilesError, WorkerError
        Nothing can be checked; the text says why.
    """
    if request.device not in DEVICES:
        raise AccCheckError(f'--device "{request.device}": one of {", ".join(DEVICES)}')
    dump = read_dump(request.dump)
    calls, warnings, error_data = _selected(request, _api_calls(dump))
    if not dump.complete:
        warnings.append(f"{dump.path} is of a step that was not finished: what it holds is checked")
    files = ResultFiles(
        request.out,
        {"dump": str(dump.path.resolve()), "device": request.device, "seed": request.seed},
        (RESULT_COLUMNS, DETAIL_COLUMNS),
        resume=request.resume,
        force=request.force,
    )
    kept = len(files.rows)
    left = [call for call in calls if call.name not in files.rows]
    begun(Begun(len(calls), len(left)))

    def add(result: CallResult) -> None:
        files.add(result_row(result), detail_rows(result))
        done(result)

    processes = _processes(request, len(left))
    try:
        replay_all(left, _job(request, dump, error_data, processes), processes, add)
    finally:
        files.finish(call.name for call in calls)
    return Summary(files.rows, request.out, kept, warnings)


def _api_calls(dump: Dump) -> list[ApiCall]:
    if dump.framework not in ("", "pytorch"):
        raise AccCheckError(f"{dump.path}: a dump of {dump.framework}; acc_check replays PyTorch APIs only")
    if dump.task == "structure":
        raise AccCheckError(f'{dump.path}: task "structure" holds no inputs; record with task "acc_check" or "tensor"')
    calls = calls_of(dump.data)
    if not calls:
        level = f" (level {dump.level})" if dump.level else ""
        raise AccCheckError(
            f"{dump.path}: no API records among its {len(dump.data)} records{level}; record at level L1 or mix"
        )
    return calls


def _selected(request: Request, calls: list[ApiCall]) -> tuple[list[ApiCall], list[str], Path]:
    """Return the calls that the lists of the configuration leave, warnings, and where failures are kept."""
    if request.config is None:
        return calls, [], request.out / _ERROR_DATA
    config = load_config(request.config, task="acc_check", level="L1", dump_path=request.out)
    problem = error_data_problem(config.error_data_path)
    if problem is not None:
        allowed = "a folder, or a path where one can be made"
        raise ConfigError(
            [Problem("acc_check.error_data_path", str(config.error_data_path), allowed, problem)], str(request.config)
        )
    lists = ApiLists(config.white_list, config.black_list)
    bases = {call.base for call in calls}
    warnings = []
    for key, entries in (("white_list", config.white_list), ("black_list", config.black_list)):
        for entry, closest in unknown_entries(entries, bases):
            guess = f'; did you mean "{closest}"?' if closest else ""
            warnings.append(f'acc_check.{key}: no API of this dump is called "{entry}"{guess}')
    selected = [call for call in calls if lists.allow(call.base)]
    if not selected:
        raise AccCheckError(
            f"{request.config}: white_list and black_list leave none of the {len(calls)} API calls of the dump"
            + "".join(f"\n{warning}" for warning in warnings)
        )
    return selected, warnings, config.error_data_path / _ERROR_DATA


def _processes(request: Request, left: int) -> int:
    """One process per device, unless the user asks for more; on a CPU as many as are worth their start."""
    if request.jobs:
        return max(1, min(request.jobs, left))
    if request.device != "cpu":
        return 1
    return max(1, min(_cpus(), -(-left // _CALLS_PER_PROCESS)))


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _job(request: Request, dump: Dump, error_data: Path, processes: int) -> Job:
    return Job(
        request.device,
        request.seed,
        None if dump.tensor_folder is None else str(dump.tensor_folder),
        str(error_data),
        list(request.imports),
        max(1, _cpus() // processes),
        request.timeout,
    )
