"""How the result of ``msprobe replicas`` looks in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from msprobe.compare.gather_pieces import Part
from msprobe.compare.pairing import first_of
from msprobe.compare.replicas import PartedReplica, ReplicaResult

_ROWS = 20
_RANKS = 8


def show_replicas(console: Console, result: ReplicaResult) -> None:
    """Print what was looked at, and a table of the values whose replicas part, the first one first."""
    console.print(f"{result.checked} values that are replicas, on {len(result.ranks)} rank(s)")
    if result.unchecked:
        console.print(f"note: {result.unchecked} values were not looked at: not every rank of their mesh has a dump")
    if len(result.ranks) < 2 or not result.checked:
        console.print("Nothing to check: it takes two ranks, and parameters (level L0 or mix) or DTensors.")
        return
    if not result.parted:
        console.print("All replicas are equal.")
        return
    table = Table(title="Where replicas part", title_justify="left", title_style="bold")
    for column in ("step", "record", "value", "ranks apart", "their Norm", "Norm of the others"):
        table.add_column(column, overflow="fold")
    for one in result.parted[:_ROWS]:
        table.add_row(one.step, one.record, one.value, _ranks(one), _norms(one), _norm(one.others))
    console.print(table)
    if len(result.parted) > _ROWS:
        console.print(f"... and {len(result.parted) - _ROWS} more in the result file")


def _ranks(one: PartedReplica) -> str:
    return first_of(one.ranks, _RANKS)


def _norms(one: PartedReplica) -> str:
    return ", ".join(_norm(part) for part in one.apart[:_RANKS])


def _norm(part: Part | None) -> str:
    return "-" if part is None or part.entry.norm is None else f"{part.entry.norm:.6g}"
