"""A whole comparison: pairs of folders in, result files and a summary out."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from msprobe.compare.align import Options
from msprobe.compare.columns import TableKind
from msprobe.compare.entries import data_name_of, leaves_of
from msprobe.compare.gather_sides import gathered_pair
from msprobe.compare.jobs import CompareError, run_jobs
from msprobe.compare.kinds import Renaming
from msprobe.compare.pair import PairJob, read_rows
from msprobe.compare.pairing import FolderPair, StepPair, pair_folders, pair_steps
from msprobe.compare.records import Tolerance
from msprobe.compare.results import HTML_NAME, write_csv, write_summary, write_xlsx
from msprobe.compare.rows import Divergence, GatherRule, PairSummary, RecordRow, Summary
from msprobe.store.members import first_records
from msprobe.store.tensor_files import TENSOR_FOLDER

#: Records that are looked at to choose the columns.
_LOOKED_AT = 50
_RECEIVED = "received from another rank"
_FROM_OUTSIDE = "an input from outside the capture differs"


@dataclass(frozen=True, slots=True)
class Request:
    """What to compare, and how.

    Attributes
    ----------
    target, golden
        Rank, step or run folders, or dump files.
    out
        Folder for the results; made if it is not there.
    reference
        Run that limits are measured from: a second golden run, or one in float64. None for the table's limits.
    exact
        Every difference is an error.
    any_dtype
        Values of different dtypes may be equal.
    renaming, fuzzy
        See `msprobe.compare.align.Options`.
    gather
        Put the ranks of each side together, and what tensors without placements are; None compares rank by rank.
    stages, golden_stages
        With ``gather``: how many stages of a pipeline the ranks of either side are, each of as many consecutive ranks.
    xlsx, html
        Write these, too.
    processes, scheduler
        See `msprobe.compare.jobs.run_jobs`.
    """

    target: Path
    golden: Path
    out: Path
    reference: Path | None = None
    exact: bool = False
    any_dtype: bool = False
    renaming: Renaming = field(default_factory=Renaming)
    fuzzy: bool = False
    gather: GatherRule | None = None
    stages: int = 1
    golden_stages: int = 1
    xlsx: bool = False
    html: bool = False
    processes: int = 0
    scheduler: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a comparison has come to.

    Attributes
    ----------
    summary
        The result.
    files
        What was written, the table first.
    """

    summary: Summary
    files: tuple[Path, ...]


Progress = Callable[[int, int, PairSummary | None], None]


def compare_dumps(request: Request, progress: Progress | None = None) -> Outcome:
    """Compare two dumps and write the results.

    Parameters
    ----------
    request
        What to compare.
    progress
        Called with how many pairs are done, how many there are, and the newest result.

    Raises
    ------
    DumpReadError
        A path holds no dump, or none of the dumps can be read.
    CompareError
        Options that do not fit, or an optional package that is missing.
    OSError
        The results cannot be written.
    """
    pairs, ranks = _pairs(request)
    references = _references(request, pairs)
    kind = _table_kind(pairs)
    page = _page_writer() if request.html else None
    try:
        request.out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise CompareError(f"{request.out}: a file is in the way; give a folder for the results") from error
    work = Path(tempfile.mkdtemp(prefix=".compare_", dir=request.out))
    try:
        jobs = [
            _job(request, pair, reference, kind, work / str(number))
            for number, (pair, reference) in enumerate(zip(pairs, references, strict=True))
        ]
        if request.gather is not None:
            jobs = [
                replace(
                    job,
                    target_ranks=step.target,
                    golden_ranks=step.golden,
                    stages=request.stages,
                    golden_stages=request.golden_stages,
                )
                for job, step in zip(jobs, ranks, strict=True)
            ]
        count = 0

        def done(result: PairSummary) -> None:
            nonlocal count
            count += 1
            if progress is not None:
                progress(count, len(jobs), result)

        if progress is not None:
            progress(0, len(jobs), None)
        results = run_jobs(jobs, processes=request.processes, scheduler=request.scheduler, done=done)
        summary = summarise(request, results)
        return Outcome(summary, _write(request, summary, jobs, kind, page))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def summarise(request: Request, pairs: Sequence[PairSummary]) -> Summary:
    """Return the summary over all steps and ranks."""
    records: Counter[str] = Counter()
    values: Counter[str] = Counter()
    for pair in pairs:
        records.update(pair.records)
        values.update(pair.values)
    first = first_divergence(pairs)
    notes = (
        []
        if records["pass"] + records["warning"] + records["error"]
        else ["no record of one side was found on the other"]
    )
    tolerance = "exact" if request.exact else "default"
    return Summary(
        target=str(request.target),
        golden=str(request.golden),
        tolerance=f"measured from {request.reference}" if request.reference else tolerance,
        first_divergence=first,
        rank_only=_rank_only(first, pairs),
        records=dict(records),
        values=dict(values),
        only_target=sum(pair.only_target for pair in pairs),
        only_golden=sum(pair.only_golden for pair in pairs),
        pairs=tuple(pairs),
        notes=tuple(notes),
    )


def first_divergence(pairs: Sequence[PairSummary]) -> Divergence | None:
    """Return the first divergence of all: by step, errors before warnings, then by execution order.

    What a rank has received from another one begins there, not here; so does what one part of a MindSpore run
    (``graph/step0``, ``pynative/step0``) has received from the other.
    """
    found = [pair.divergence for pair in pairs if pair.divergence is not None]
    if not found:
        return None
    steps = [_without_part(pair.step) for pair in pairs]
    return min(
        found,
        key=lambda d: (
            d.decision.verdict != "error" and d.cause not in {"an extra call", "a missing call"},
            steps.index(_without_part(d.step)),
            d.cause == _RECEIVED or ("/" in d.step and d.cause == _FROM_OUTSIDE),
            d.position,
        ),
    )


def _without_part(step: str) -> str:
    return step.rpartition("/")[2]


def _rank_only(first: Divergence | None, pairs: Sequence[PairSummary]) -> tuple[str, ...]:
    if first is None:
        return ()
    if first.decision.parts:
        return tuple(dict.fromkeys(part.rank for part in first.decision.parts))
    same_step = [pair for pair in pairs if pair.step == first.step]
    ranks = tuple(
        pair.rank for pair in same_step if pair.divergence is not None and pair.divergence.record == first.record
    )
    return ranks if len(ranks) < len(same_step) else ()


def _pairs(request: Request) -> tuple[list[FolderPair], list[StepPair]]:
    """Return what is compared with what; with ``gather`` each pair has all ranks of a step."""
    if request.gather is None:
        if request.stages > 1 or request.golden_stages > 1:
            raise CompareError("--stages and --golden-stages need --gather, which says what the ranks of a stage share")
        return pair_folders(request.target, request.golden), []
    if request.reference is not None:
        raise CompareError("--gather and --reference exclude each other: limits are measured rank by rank")
    steps = pair_steps(request.target, request.golden)
    for step in steps:
        _check_stages("--stages", request.stages, step.target, step.step)
        _check_stages("--golden-stages", request.golden_stages, step.golden, step.step)
    return [gathered_pair(step) for step in steps], steps


def _check_stages(option: str, stages: int, ranks: Sequence[Path], step: str) -> None:
    if ranks and len(ranks) % stages:
        raise CompareError(
            f"{option} {stages}: {len(ranks)} ranks in {step or 'that folder'} are no multiple of it; "
            "each stage has as many ranks, and all of them must be there"
        )


def _job(request: Request, pair: FolderPair, reference: Path | None, kind: TableKind, stem: Path) -> PairJob:
    return PairJob(
        step=pair.step,
        rank=pair.rank,
        target=pair.target,
        golden=pair.golden,
        reference=reference,
        table=stem.with_suffix(".csv"),
        rows=stem.with_suffix(".rows") if request.html else None,
        kind=kind,
        options=Options(request.renaming, request.fuzzy),
        tolerance=Tolerance(
            "measured" if request.reference else "exact" if request.exact else "default",
            any_dtype=request.any_dtype,
            reference=str(request.reference or ""),
            gather=request.gather,
        ),
    )


def _references(request: Request, pairs: Sequence[FolderPair]) -> list[Path | None]:
    """Return the dump of the reference run for each pair, by golden's step and rank."""
    if request.reference is None:
        return [None] * len(pairs)
    if request.exact:
        raise CompareError("--tolerance exact and --reference exclude each other")
    partner = {str(found.target): found.golden for found in pair_folders(request.golden, request.reference)}
    found = [partner.get(str(pair.golden)) for pair in pairs]
    if not any(found):
        raise CompareError(
            f"{request.reference}: no step and rank of {request.golden} is in it; record them there, too"
        )
    return found


def _write(
    request: Request, summary: Summary, jobs: Sequence[PairJob], kind: TableKind, page: _PageWriter | None
) -> tuple[Path, ...]:
    table = write_csv(request.out, kind, [job.table for job in jobs])
    files = [table, write_summary(request.out, summary)]
    if request.xlsx:
        files.append(write_xlsx(request.out, table))
    if page is not None:
        by_pair = {(job.step, job.rank): job.rows for job in jobs}

        def records(pair: PairSummary) -> Iterable[RecordRow]:
            file = by_pair.get((pair.step, pair.rank))
            return read_rows(file) if file is not None and file.exists() else iter(())

        files.append(page(summary, records, request.out / HTML_NAME))
    return tuple(files)


_PageWriter = Callable[[Summary, Callable[[PairSummary], Iterable[RecordRow]], Path], Path]


def _page_writer() -> _PageWriter:
    try:
        from msprobe import report  # noqa: PLC0415 - needs jinja2

        writer: _PageWriter | None = getattr(report, "comparison_page", None)
    except ImportError as error:
        raise CompareError(f"--html needs the report extra ({error}): pip install 'msprobe[report]'") from error
    if writer is None:
        raise CompareError("--html: this msprobe has no report pages; leave --html out, the csv has the same rows")
    return writer


def _table_kind(pairs: Sequence[FolderPair]) -> TableKind:
    """Choose the columns by what the first records of the dumps hold."""
    for pair in pairs:
        if pair.target is None or pair.golden is None:
            continue
        kinds = {_kind_of_dump(pair.target), _kind_of_dump(pair.golden)}
        if "tensor" in kinds and all(_has_files(path) for path in (pair.target, pair.golden)):
            return "tensor"
        return "md5" if "md5" in kinds else "statistics"
    return "statistics"


def _has_files(dump: Path) -> bool:
    return (dump.parent / TENSOR_FOLDER).is_dir()


def _kind_of_dump(dump: Path) -> TableKind:
    found: TableKind = "statistics"
    for _, record in first_records(dump, _LOOKED_AT):
        for leaf in leaves_of(record):
            if not isinstance(leaf.raw, Mapping):
                continue
            if data_name_of(leaf.raw):
                return "tensor"
            if leaf.raw.get("md5") is not None:
                found = "md5"
    return "tensor" if found == "statistics" and _has_files(dump) else found
