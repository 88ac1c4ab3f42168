"""``msprobe report``: a page that shows dumps as they are, with the way that NaN and infinity take through them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msprobe.compare.dump_side import DumpSide, call_site
from msprobe.compare.entries import OUTPUT, Leaf, entry_of, fx_of, leaves_of
from msprobe.compare.pairing import find_dumps
from msprobe.compare.rows import Entry, Number
from msprobe.core.names import BACKWARD, FORWARD, parse_name
from msprobe.report.coverage_table import coverage_notes
from msprobe.report.nonfinite import NonfiniteTracker, Seen, look_at_leaves
from msprobe.report.overflow_table import describe_place
from msprobe.report.page import write_page
from msprobe.report.page_data import Block, PartColumns, RecordEntry, entry_cells, fx_cells, pack, part_blocks, plain
from msprobe.report.rank_coverage import merge_coverage
from msprobe.report.step_order import in_order

#: From harmless to grave.
_STATUSES = {
    "finite": "good",
    "unmeasured": "quiet",
    "inherits": "warn",
    "encloses": "warn",
    "entered": "bad",
    "source": "bad",
}
_CODES = {state: code for code, state in enumerate(_STATUSES)}
_COLUMNS = [
    {"key": "dtype", "kind": "text"},
    {"key": "shape", "kind": "text"},
    {"key": "max", "kind": "number"},
    {"key": "min", "kind": "number"},
    {"key": "mean", "kind": "number"},
    {"key": "norm", "kind": "number"},
]
_MEASURES = ("norm", "max", "min", "mean", "gradient")
_PATH_LENGTH = 40
#: Curves are drawn of modules; of a dump that has none, of this many API calls.
_API_SERIES = 2000


@dataclass(frozen=True, slots=True)
class _Source:
    """One dump file, and where it belongs."""

    run: str
    step: str
    rank: str
    file: Path


@dataclass(slots=True)
class _Part:
    """What is found out about one dump file while its records go by."""

    source: _Source
    columns: PartColumns = field(default_factory=lambda: PartColumns(len(_COLUMNS)))
    modules: dict[str, list[Any]] = field(default_factory=dict)
    apis: dict[str, list[Any]] = field(default_factory=dict)
    nonfinite: list[str] = field(default_factory=list)
    begins: dict[str, tuple[int, Seen]] = field(default_factory=dict)


def dump_page(paths: list[Path], out: Path, progress: Callable[[str], object] = str) -> Path:
    """Write dumps as one self-contained HTML file.

    Parameters
    ----------
    paths
        Runs, steps, rank folders or dump files; of msprobe or mindstudio-probe.
    out
        The file to write.
    progress
        Called with ``step/rank`` before each dump file is read.

    Returns
    -------
    Path
        ``out``.

    Raises
    ------
    DumpReadError
        A path has no dump.
    ReportError
        jinja2 is not installed.
    OSError
        The file cannot be written.
    """
    sources = [
        _Source("" if len(paths) == 1 else str(path), step, rank, file)
        for path in paths
        for step, ranks in in_order(find_dumps(path))
        for rank, file in ranks
    ]
    return write_page(out, ", ".join(map(str, paths)), _blocks(paths, sources, progress))


def _blocks(paths: list[Path], sources: list[_Source], progress: Callable[[str], object]) -> Iterator[Block]:
    parts = []
    for number, source in enumerate(sources):
        progress(f"{source.step}/{source.rank}")
        side = DumpSide(source.file)
        try:
            tracker = NonfiniteTracker(side.parents)
            part = _Part(source)
            yield from part_blocks(number, _records(side, tracker, part), part.columns)
            for place, name in enumerate(part.columns.names):
                state = tracker.states.get(name)
                if state is not None:
                    part.columns.status[place] = _CODES[state]
            yield part.columns.block(number)
            parts.append(_part_content(side, tracker, part))
        finally:
            side.close()
    first = next((number for number, part in enumerate(parts) if part["finding"] is not None), -1)
    yield pack("page", _page(paths, parts, first))


def _page(paths: list[Path], parts: list[dict[str, Any]], first: int) -> dict[str, Any]:
    return {
        "kind": "report",
        "sides": [["dump", str(path)] for path in paths],
        "facts": [],
        "notes": coverage_notes(merge_coverage(paths)),
        "statuses": [{"key": state, "tone": tone} for state, tone in _STATUSES.items()],
        "columns": _COLUMNS,
        "metrics": [],
        "measures": list(_MEASURES),
        "parts": parts,
        "first": first,
    }


def _records(side: DumpSide, tracker: NonfiniteTracker, part: _Part) -> Iterator[RecordEntry]:
    for number in range(len(side)):
        name, content = side.index.record(number)
        leaves = [(leaf, entry_of(leaf.raw)) for leaf in leaves_of(content)]
        seen = look_at_leaves(leaves, content)
        state = tracker.see(name, seen)
        if state not in {"finite", "unmeasured"}:
            part.nonfinite.append(name)
            if state in {"source", "entered"}:
                part.begins[name] = (number, seen)
        parent, module = side.surroundings(name)
        shown = _shown(leaves)
        _collect_series(part, name, shown)
        stack = side.stack(name)
        yield RecordEntry(
            name=name,
            other_name="",
            module=module,
            status=_CODES[state],
            cells=_cells(shown),
            detail={
                "sides": [name],
                "parent": parent,
                "site": call_site(stack),
                "stack": stack,
                "fx": fx_cells(fx_of(content)),
                "leaves": [{"name": leaf.name, "sides": [entry_cells(entry)]} for leaf, entry in leaves],
            },
        )


def _shown(leaves: list[tuple[Leaf, Entry]]) -> Entry | None:
    """Return the value that stands for a record in the list: its first output tensor, or else any tensor."""
    tensors = [(leaf.section, entry) for leaf, entry in leaves if entry.kind == "tensor"]
    outputs = [entry for section, entry in tensors if section == OUTPUT]
    return outputs[0] if outputs else tensors[0][1] if tensors else None


def _cells(shown: Entry | None) -> tuple[str | Number | None, ...]:
    if shown is None:
        return (None,) * len(_COLUMNS)
    shape = None if shown.shape is None else "x".join(map(str, shown.shape)) or "scalar"
    return (shown.dtype, shape, shown.largest, shown.smallest, shown.mean, shown.norm)


def _collect_series(part: _Part, name: str, shown: Entry | None) -> None:
    """Keep the numbers of the first call of each module: what curves and heat maps are drawn of."""
    parsed = parse_name(name)
    if shown is None or parsed is None or parsed.index or parsed.tag:
        return
    if parsed.is_module:
        key, series = parsed.path, part.modules
    elif part.modules or len(part.apis) >= _API_SERIES:
        return
    else:
        key, series = f"{parsed.prefix}.{parsed.path}", part.apis
    values = series.setdefault(key, [None] * len(_MEASURES))
    if parsed.direction == FORWARD:
        values[:4] = [plain(value) for value in (shown.norm, shown.largest, shown.smallest, shown.mean)]
    elif parsed.direction == BACKWARD:
        values[4] = plain(shown.norm)


def _part_content(side: DumpSide, tracker: NonfiniteTracker, part: _Part) -> dict[str, Any]:
    head = side.index.head
    source = part.source
    return {
        "run": source.run,
        "step": source.step,
        "rank": source.rank,
        "records": len(part.columns.names),
        "mode": " ".join(text for text in (head.task, head.level, head.framework) if text),
        "paths": [str(source.file)],
        "notes": [] if side.index.complete else ["the dump is cut off; `msprobe recover` closes it"],
        "series": part.modules or part.apis,
        "finding": _finding(side, tracker, part),
        "groups": [],
        "sources": [name for name in part.begins if tracker.states[name] in {"source", "entered"}],
    }


def _finding(side: DumpSide, tracker: NonfiniteTracker, part: _Part) -> dict[str, Any] | None:
    """Return where NaN or infinity begins in this part, and the records that it goes through."""
    begin = next((name for name in part.begins if tracker.states[name] in {"source", "entered"}), None)
    if begin is None:
        return None
    position, seen = part.begins[begin]
    state = tracker.states[begin]
    places = (seen.inputs if state == "entered" else seen.outputs) or seen.inputs
    after = part.nonfinite[part.nonfinite.index(begin) :]
    path = [name for name in after if name in tracker.states][:_PATH_LENGTH]
    return {
        "title": "NaN or Inf begins" if state == "source" else "NaN or Inf came in",
        "position": position,
        "record": begin,
        "place": places[0].name,
        "module": side.surroundings(begin)[1],
        "call_site": call_site(side.stack(begin)),
        "explanation": "; ".join(describe_place(place) for place in places[:4]),
        "decision": ["", None, None, ""],
        "chain": [[name, _CODES[tracker.states[name]], None, ""] for name in path],
    }
