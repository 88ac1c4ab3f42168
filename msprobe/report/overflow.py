"""``msprobe overflow_check``: the records in which NaN or infinity begins, over all steps and ranks of a dump."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from msprobe.compare.dump_side import DumpSide, call_site
from msprobe.compare.kinds import kind_of
from msprobe.compare.pairing import find_dumps
from msprobe.report.nonfinite import NonfiniteTracker, Place, Seen, look_at
from msprobe.report.page_data import plain
from msprobe.report.step_order import in_order
from msprobe.store.members import name_of

Kind = Literal["source", "entered", "received"]

#: A record without any of these words is finite: it need not be decoded.
_SUSPICIOUS = re.compile(rb'NaN|Inf|"is_nan"\s*:\s*(?:1|true)|\d[eE]\+?[34]\d\d')


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A record in which something not finite begins.

    Attributes
    ----------
    step, rank
        Folder names.
    position
        0-based place in the dump file.
    record
        Full name.
    kind
        ``source``: outputs are not finite, inputs are. ``entered``: an input or parameter is not finite, and nothing
        in the dump has made it. ``received``: a communication that brought it from another rank.
    outputs, inputs
        The values that are not finite.
    modules
        Names of the enclosing records, the outermost first.
    call_site
        ``file, line N, in function`` of the user's code; empty if unknown.
    stack
        Frames, innermost first.
    from_rank
        Where a received value was not finite already; empty else.
    """

    step: str
    rank: str
    position: int
    record: str
    kind: Kind
    outputs: tuple[Place, ...]
    inputs: tuple[Place, ...]
    modules: tuple[str, ...]
    call_site: str
    stack: tuple[str, ...]
    from_rank: str = ""


@dataclass(frozen=True, slots=True)
class RankResult:
    """What one rank of one step says.

    ``nonfinite`` counts records with a value that is not finite, ``by_flag`` those of the task nan_check.
    """

    step: str
    rank: str
    records: int
    nonfinite: int
    by_flag: int
    complete: bool
    anomalies: tuple[Anomaly, ...]


@dataclass(frozen=True, slots=True)
class OverflowResult:
    """What a whole dump says."""

    path: Path
    ranks: tuple[RankResult, ...]

    @property
    def first(self) -> Anomaly | None:
        """The first one: of the earliest step, one that was not received, at the earliest place."""
        found = [anomaly for rank in self.ranks for anomaly in rank.anomalies]
        steps = {step: number for number, step in enumerate(dict.fromkeys(rank.step for rank in self.ranks))}
        return min(found, key=lambda a: (steps[a.step], a.kind == "received", a.position), default=None)

    @property
    def nonfinite(self) -> int:
        """Number of records with a value that is not finite."""
        return sum(rank.nonfinite for rank in self.ranks)

    @property
    def exit_code(self) -> int:
        """0 if everything is finite, 1 if not."""
        return int(any(rank.anomalies for rank in self.ranks))


@dataclass(slots=True)
class _Read:
    """One rank while its step is put together; ``talks`` says of each communication whether its inputs were finite."""

    result: RankResult
    talks: dict[str, bool]


def check_overflow(path: str | Path, progress: Callable[[str], object] = str) -> OverflowResult:
    """Find where NaN and infinity begin.

    Parameters
    ----------
    path
        A dump file, a rank folder, a step folder or the folder of a run; of msprobe or mindstudio-probe.
    progress
        Called with ``step/rank`` before each dump file is read.

    Raises
    ------
    DumpReadError
        There is no dump.
    """
    results: list[RankResult] = []
    for step, ranks in in_order(find_dumps(path)):
        reads = []
        for rank, file in ranks:
            progress(f"{step}/{rank}")
            reads.append(_read_rank(step, rank, file))
        results += [_with_senders(read, reads) for read in reads]
    return OverflowResult(Path(path), tuple(results))


def _read_rank(step: str, rank: str, file: Path) -> _Read:
    side = DumpSide(file)
    try:
        tracker = NonfiniteTracker(side.parents)
        found: dict[str, tuple[int, Seen]] = {}
        talks: dict[str, bool] = {}
        nonfinite = by_flag = 0
        for number in range(len(side)):
            raw = side.index.raw(number)
            if _SUSPICIOUS.search(raw) is None:
                if b"istributed." in raw[:32]:
                    talks[name_of(raw)] = True
                continue
            name, content = side.index.record(number)
            seen = look_at(content)
            state = tracker.see(name, seen)
            if state in {"finite", "unmeasured"}:
                continue
            nonfinite += 1
            by_flag += not seen.exact_inputs
            if kind_of(name).is_communication:
                talks[name] = not seen.inputs
            if state in {"source", "entered"}:
                found[name] = (number, seen)
        anomalies = [
            _anomaly(side, tracker, (step, rank), name, *found[name])
            for name in found
            if tracker.states[name] in {"source", "entered"}
        ]
        result = RankResult(step, rank, len(side), nonfinite, by_flag, side.index.complete, tuple(anomalies))
        return _Read(result, talks)
    finally:
        side.close()


def _anomaly(  # noqa: PLR0913, PLR0917 - the parts of one record
    side: DumpSide, tracker: NonfiniteTracker, where: tuple[str, str], name: str, position: int, seen: Seen
) -> Anomaly:
    stack = side.stack(name)
    return Anomaly(
        step=where[0],
        rank=where[1],
        position=position,
        record=name,
        kind="entered" if tracker.states[name] == "entered" else "source",
        outputs=seen.outputs,
        inputs=seen.inputs,
        modules=tuple(reversed(tracker.enclosing(name))),
        call_site=call_site(stack),
        stack=tuple(stack),
    )


def _with_senders(read: _Read, reads: list[_Read]) -> RankResult:
    """Mark what a communication has brought from a rank where its input was not finite already."""
    anomalies = []
    for anomaly in read.result.anomalies:
        sender = "" if anomaly.record not in read.talks else _sender(anomaly.record, read, reads)
        anomalies.append(replace(anomaly, kind="received", from_rank=sender) if sender else anomaly)
    return replace(read.result, anomalies=tuple(anomalies))


def _sender(record: str, read: _Read, reads: list[_Read]) -> str:
    """Return the rank whose input to the same call was not finite; empty if there is none."""
    return next((other.result.rank for other in reads if other is not read and not other.talks.get(record, True)), "")


def as_json(result: OverflowResult) -> dict[str, Any]:
    """Return the content of ``overflow_check.json``."""
    first = result.first
    return {
        "version": 1,
        "input": str(result.path),
        "first": None if first is None else _anomaly_json(first),
        "nonfinite_records": result.nonfinite,
        "ranks": [
            {
                "step": rank.step,
                "rank": rank.rank,
                "records": rank.records,
                "nonfinite": rank.nonfinite,
                "complete": rank.complete,
                "judged_by": "is_nan" if rank.by_flag else "statistics",
                "anomalies": [_anomaly_json(anomaly) for anomaly in rank.anomalies],
            }
            for rank in result.ranks
        ],
    }


def _anomaly_json(anomaly: Anomaly) -> dict[str, Any]:
    return {
        "step": anomaly.step,
        "rank": anomaly.rank,
        "position": anomaly.position,
        "record": anomaly.record,
        "kind": anomaly.kind,
        "from_rank": anomaly.from_rank or None,
        "outputs": [_place_json(place) for place in anomaly.outputs],
        "inputs": [_place_json(place) for place in anomaly.inputs],
        "modules": list(anomaly.modules),
        "call_site": anomaly.call_site,
        "stack": list(anomaly.stack),
    }


def _place_json(place: Place) -> dict[str, Any]:
    entry = place.entry
    statistics = {"Max": entry.largest, "Min": entry.smallest, "Mean": entry.mean, "Norm": entry.norm}
    return {
        "name": place.name,
        "dtype": entry.dtype,
        "shape": None if entry.shape is None else list(entry.shape),
        **{key: plain(value) for key, value in statistics.items()},
        "NaN": entry.nan,
        "Inf": entry.inf,
    }
