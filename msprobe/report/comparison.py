"""The page of ``msprobe compare --html``: what two dumps have in common, and where they part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msprobe.compare.rows import GRAVITY, ChainLink, Divergence, LeafRow, Metrics, PairSummary, RecordRow, Summary
from msprobe.report.page import write_page
from msprobe.report.page_data import Block, PartColumns, RecordEntry, entry_cells, fx_cells, pack, part_blocks, plain

_STATUSES = sorted(GRAVITY, key=lambda verdict: GRAVITY[verdict])
_TONES = {"pass": "good", "uncompared": "quiet", "warning": "warn", "unmatched": "info", "error": "bad"}
_COLUMNS = [
    {"key": "measure", "kind": "label"},
    {"key": "number", "kind": "number"},
    {"key": "threshold", "kind": "number"},
    {"key": "role", "kind": "label"},
]
_METRICS = (
    "cosine",
    "euclidean",
    "relative_euclidean",
    "max_abs",
    "max_relative",
    "thousandth",
    "five_thousandths",
    "max_ulp",
    "nonfinite_mismatches",
)

Records = Callable[[PairSummary], Iterable[RecordRow]]


def comparison_page(summary: Summary, records: Records, out: Path) -> Path:
    """Write a comparison as one self-contained HTML file.

    Parameters
    ----------
    summary
        Result of the comparison.
    records
        Gives the rows of a pair in execution order; called once per pair, and read row by row.
    out
        The file to write.

    Returns
    -------
    Path
        ``out``.

    Raises
    ------
    ReportError
        jinja2 is not installed.
    OSError
        The file cannot be written.
    """
    return write_page(out, f"{summary.target} against {summary.golden}", _blocks(summary, records))


def _blocks(summary: Summary, records: Records) -> Iterator[Block]:
    parts = []
    for number, pair in enumerate(summary.pairs):
        columns = PartColumns(len(_COLUMNS))
        rows = () if pair.target is None or pair.golden is None else records(pair)
        yield from part_blocks(number, map(_record, rows), columns)
        yield columns.block(number)
        parts.append(_part(pair, len(columns.names)))
    yield pack("page", _page(summary, parts))


def _page(summary: Summary, parts: list[dict[str, Any]]) -> dict[str, Any]:
    first = summary.first_divergence
    return {
        "kind": "comparison",
        "sides": [["target", summary.target], ["golden", summary.golden]],
        "facts": [["tolerance", summary.tolerance], ["rank_only", ", ".join(summary.rank_only)]],
        "notes": list(summary.notes),
        "statuses": [{"key": verdict, "tone": _TONES[verdict]} for verdict in _STATUSES],
        "columns": _COLUMNS,
        "metrics": list(_METRICS),
        "measures": ["ratio"],
        "parts": parts,
        "first": -1 if first is None else _part_of(first, summary.pairs),
    }


def _part_of(first: Divergence, pairs: Iterable[PairSummary]) -> int:
    places = [number for number, pair in enumerate(pairs) if (pair.step, pair.rank) == (first.step, first.rank)]
    return places[0] if places else -1


def _part(pair: PairSummary, records: int) -> dict[str, Any]:
    notes = list(pair.notes)
    for side, path in (("target", pair.target), ("golden", pair.golden)):
        if path is None:
            notes.append(f"{side} has no dump of this step and rank")
    return {
        "run": "",
        "step": pair.step,
        "rank": pair.rank,
        "records": records,
        "mode": pair.mode,
        "paths": [pair.target, pair.golden],
        "notes": notes,
        "series": {module: [plain(ratio)] for module, ratio in pair.trend.items()},
        "finding": None if pair.divergence is None else _finding(pair.divergence),
        "groups": [
            [group.module, group.direction, group.records, group.first, group.last, plain(group.worst_number)]
            for group in pair.inherited
        ],
        "sources": list(pair.sources),
    }


def _finding(found: Divergence) -> dict[str, Any]:
    decision = found.decision
    return {
        "title": found.cause,
        "position": found.position,
        "record": found.record or found.golden_record or "",
        "place": found.leaf,
        "module": found.module,
        "call_site": found.call_site,
        "fx": fx_cells(found.fx),
        "explanation": found.explanation,
        "decision": [decision.measure, plain(decision.number), plain(decision.threshold), decision.source],
        "chain": [_link(link) for link in found.chain],
    }


def _link(link: ChainLink) -> list[Any]:
    return [link.target or link.golden or "", _STATUSES.index(link.verdict), plain(link.number), link.hands_on]


def _record(row: RecordRow) -> RecordEntry:
    worst = row.worst
    other = (row.golden or "") if row.target is not None and row.golden != row.target else ""
    return RecordEntry(
        name=row.name,
        other_name=other,
        module=row.module,
        status=_STATUSES.index(row.verdict),
        cells=(worst.measure or worst.message, worst.number, worst.threshold, row.role),
        detail={
            "sides": [row.target, row.golden],
            "parent": row.parent,
            "site": row.call_site,
            "fx": fx_cells(row.fx),
            "stack": list(row.stack),
            "message": worst.message,
            "source": worst.source,
            "leaves": [_leaf(leaf) for leaf in row.leaves],
        },
    )


def _leaf(leaf: LeafRow) -> dict[str, Any]:
    decision = leaf.decision
    content: dict[str, Any] = {
        "name": leaf.name,
        "status": _STATUSES.index(decision.verdict),
        "sides": [entry_cells(leaf.target), entry_cells(leaf.golden)],
        "decision": [decision.measure, plain(decision.number), plain(decision.threshold), decision.source],
    }
    if leaf.golden_name != leaf.name:
        content["other"] = leaf.golden_name
    if decision.message:
        content["message"] = decision.message
    if leaf.differences is not None:
        found = leaf.differences
        relative = (found.relative_largest, found.relative_smallest, found.relative_mean, found.relative_norm)
        content["relative"] = [plain(value) for value in relative]
    if leaf.metrics is not None:
        content["metrics"] = _metrics(leaf.metrics)
    return content


def _metrics(found: Metrics) -> Mapping[str, Any]:
    return {
        "values": [plain(getattr(found, name)) for name in _METRICS],
        "worst": None if found.worst is None else list(found.worst),
        "pair": [plain(found.worst_target), plain(found.worst_golden)],
    }
