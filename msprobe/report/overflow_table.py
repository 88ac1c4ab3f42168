"""How the result of ``msprobe overflow_check`` looks in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from msprobe.compare.pairing import first_of
from msprobe.report.nonfinite import Place
from msprobe.report.overflow import Anomaly, OverflowResult

_ROWS = 20
_PLACES = 2
_KINDS = {
    "source": "outputs are not finite, inputs are",
    "entered": "came in from outside the dump",
    "received": "received from another rank",
}


def show_overflow(console: Console, result: OverflowResult) -> None:
    """Print a table of where NaN and infinity begin, and the first one in full."""
    ranks = result.ranks
    total = sum(rank.records for rank in ranks)
    console.print(f"{total} records in {len(ranks)} dump(s), {result.nonfinite} with NaN or infinity")
    for rank in ranks:
        if not rank.complete:
            console.print(f"note: {rank.step}/{rank.rank} is cut off; `msprobe recover` closes it", markup=False)
    if any(rank.by_flag for rank in ranks):
        console.print(
            "note: records of nan_check do not tell whether inputs were finite: the first one of a rank counts"
        )
    first = result.first
    if first is None:
        console.print("No record makes NaN or infinity.")
        return
    anomalies = [anomaly for rank in ranks for anomaly in rank.anomalies]
    console.print(_table(anomalies))
    if len(anomalies) > _ROWS:
        console.print(f"... and {len(anomalies) - _ROWS} more in the result file")
    _show_first(console, first)


def _table(anomalies: list[Anomaly]) -> Table:
    table = Table(title="Where NaN or infinity begins", title_justify="left", title_style="bold")
    for column in ("step", "rank", "record", "what", "value"):
        table.add_column(column, overflow="fold")
    for anomaly in anomalies[:_ROWS]:
        kind = f"received from {anomaly.from_rank}" if anomaly.from_rank else _KINDS[anomaly.kind]
        cells = (anomaly.step, anomaly.rank, anomaly.record, kind, _values(anomaly))
        table.add_row(*(escape(cell) for cell in cells))
    return table


def _show_first(console: Console, first: Anomaly) -> None:
    console.print("[bold]First one[/bold]")
    console.print(f"  {first.step}/{first.rank}  {first.record}", markup=False, soft_wrap=True)
    console.print(f"  {_KINDS[first.kind]}: {_values(first)}", markup=False, soft_wrap=True)
    for depth, module in enumerate(first.modules):
        console.print(f"  {'  ' * depth}in {module}", markup=False, soft_wrap=True)
    if first.call_site:
        console.print(f"  called at {first.call_site}", markup=False, soft_wrap=True)


def _values(anomaly: Anomaly) -> str:
    places = (anomaly.inputs if anomaly.kind == "entered" else anomaly.outputs) or anomaly.inputs
    return first_of([describe_place(place) for place in places], _PLACES)


def describe_place(place: Place) -> str:
    """Return ``output.0 float32 (3, 4): 12 NaN, 1 Inf`` or what else is known."""
    entry = place.entry
    counts = [f"{count} {name}" for count, name in ((entry.nan, "NaN"), (entry.inf, "Inf")) if count]
    if not counts and entry.largest is not None:
        counts = [f"Max {entry.largest}, Min {entry.smallest}"]
    elif not counts:
        counts = [str(entry.value)] if entry.kind == "scalar" else ["NaN or Inf"]
    shape = "" if entry.shape is None else f" {entry.shape}"
    return f"{place.name} {entry.dtype}{shape}: {', '.join(counts)}"
