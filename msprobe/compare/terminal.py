"""What a comparison prints: progress, one table, the first divergence, and what to do next."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from msprobe.compare.comparison import Outcome
from msprobe.compare.comparison import Progress as ProgressCall
from msprobe.compare.rows import Divergence, PairSummary, Summary

_WIDTH = 150
_MOST_PAIRS = 20
_MOST_NOTES = 8
_STYLES = {"pass": "green", "warning": "yellow", "error": "bold red", "unmatched": "blue"}


@contextmanager
def progress_bar() -> Iterator[ProgressCall]:
    """Show how many pairs are done, on stderr."""
    console = Console(stderr=True)
    columns = (
        TextColumn("comparing"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[last]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task: TaskID = bar.add_task("", total=None, last="")

        def show(done: int, total: int, newest: PairSummary | None) -> None:
            last = "" if newest is None else "/".join(part for part in (newest.step, newest.rank) if part)
            bar.update(task, completed=done, total=total, last=last)

        yield show


def print_outcome(outcome: Outcome) -> None:
    """Print the result of a comparison on stdout."""
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    summary = outcome.summary
    console.print(_table(summary))
    notes = [f"{_where(pair)}{note}" for pair in summary.pairs for note in pair.notes]
    for note in [*summary.notes, *notes][:_MOST_NOTES]:
        console.print(f"note: {escape(note)}", soft_wrap=True)
    if len(notes) > _MOST_NOTES:
        console.print(f"note: {len(notes) - _MOST_NOTES} more in summary.json")
    console.print()
    _print_divergence(console, summary)
    console.print()
    for file in outcome.files:
        console.print(f"written: {escape(str(file))}", soft_wrap=True)
    for line in next_steps(summary):
        console.print(f"next:    {escape(line)}", soft_wrap=True)


def _table(summary: Summary) -> Table:
    table = Table(title=f"records, tolerance {escape(summary.tolerance)}", title_justify="left")
    table.add_column("step / rank")
    table.add_column("compared by")
    for column in ("pass", "warning", "error"):
        table.add_column(column, justify="right", style=_STYLES[column])
    table.add_column("only target", justify="right", style=_STYLES["unmatched"])
    table.add_column("only golden", justify="right", style=_STYLES["unmatched"])
    table.add_column("first divergence", no_wrap=True)
    for pair in summary.pairs[:_MOST_PAIRS]:
        first = pair.divergence
        name = "" if first is None else (first.record or first.golden_record or "")
        missing = "only golden" if pair.target is None else "only target" if pair.golden is None else name or "none"
        table.add_row(
            _where(pair).removesuffix(": ") or "-",
            pair.mode or "-",
            *[str(pair.records.get(verdict, 0)) for verdict in ("pass", "warning", "error")],
            str(pair.only_target),
            str(pair.only_golden),
            escape(missing),
        )
    if len(summary.pairs) > _MOST_PAIRS:
        table.add_row(f"... {len(summary.pairs) - _MOST_PAIRS} more", *[""] * 7)
    return table


def _print_divergence(console: Console, summary: Summary) -> None:
    first = summary.first_divergence
    if first is None:
        unmatched = summary.only_target + summary.only_golden
        tail = f"; {unmatched} records are on one side only" if unmatched else ""
        console.print(f"No divergence{tail}.", style="yellow" if unmatched else "green")
        return
    console.print(
        f"First divergence: {escape(_name(first))}", style=_STYLES.get(first.decision.verdict, ""), soft_wrap=True
    )
    place = "/".join(part for part in (first.step, first.rank) if part)
    only = f" (only {', '.join(summary.rank_only)})" if summary.rank_only else ""
    for label, text in (
        ("where", place + only),
        ("cause", first.cause),
        ("", first.explanation),
        ("module", first.module),
        ("called at", first.call_site),
        ("compiled", "" if first.fx is None else f"node {first.fx.node} of graph {first.fx.graph}"),
    ):
        if text:
            console.print(f"  {label:10}{escape(text)}", soft_wrap=True)
    for number, link in enumerate(first.chain):
        name = link.target or f"{link.golden} (golden only)"
        style = _STYLES.get(link.verdict, "")
        console.print(
            f"  {'chain' if not number else '':10}[{style}]{link.verdict:10}[/] {escape(name)}", soft_wrap=True
        )
    inherited = sum(group.records for pair in summary.pairs for group in pair.inherited)
    if inherited:
        console.print(f"  {inherited} other records differ only because their inputs do.")


def next_steps(summary: Summary) -> list[str]:
    """Return the commands that are worth trying next."""
    first = summary.first_divergence
    if first is None:
        return []
    pair = next(pair for pair in summary.pairs if (pair.step, pair.rank) == (first.step, first.rank))
    name = first.record or first.golden_record or ""
    one_rank = pair.target is None or pair.rank in {"", Path(pair.target).parent.name}
    if "tensor" in pair.mode and not one_rank:
        return []  # no file of a single rank shows a value that several make
    if "tensor" in pair.mode and first.record and first.golden_record and pair.target and pair.golden:
        files = [
            str(Path(dump).parent / "dump_tensor_data" / f"{record}.{first.leaf}.pt")
            for dump, record in ((pair.target, first.record), (pair.golden, first.golden_record))
        ]
        if all(Path(file).exists() for file in files):
            return [f"msprobe parse {files[0]} {files[1]}"]
    return [f'record its tensors in both runs: "task": "tensor", "tensor": {{"list": ["{name}"]}}, then compare again']


def _name(divergence: Divergence) -> str:
    ours, theirs = divergence.record, divergence.golden_record
    if ours is None:
        return f"{theirs} (only in golden)"
    if theirs is None:
        return f"{ours} (only in the target)"
    leaf = f", {divergence.leaf}" if divergence.leaf else ""
    return f"{ours}{leaf}" if ours == theirs else f"{ours}{leaf} (golden: {theirs})"


def _where(pair: PairSummary) -> str:
    text = "/".join(part for part in (pair.step, pair.rank) if part)
    return f"{text}: " if text else ""
