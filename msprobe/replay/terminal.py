"""Progress and summary of a check on the terminal."""

from __future__ import annotations

import shlex
import sys
from types import TracebackType

from rich import box, progress
from rich.console import Console
from rich.table import Table
from rich.text import Text

from msprobe.replay import verdicts
from msprobe.replay.check import Begun, Summary
from msprobe.replay.records import CallResult
from msprobe.store.acc_check_files import DETAIL_FILE, RESULT_FILE

_SHOWN = 10
_STYLES = {verdicts.PASS: "green", verdicts.WARNING: "yellow", verdicts.ERROR: "red", verdicts.SKIP: "dim"}


class Progress:
    """A bar on stderr while calls are replayed; nothing where stderr is no terminal."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task: progress.TaskID | None = None

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begun(self, what: Begun) -> None:
        """Show how much there is to do."""
        self._task = self._bar.add_task("replaying", total=what.total, completed=what.total - what.left)

    def done(self, result: CallResult) -> None:
        """Show that a call is finished."""
        if self._task is not None:
            self._bar.update(self._task, advance=1, description=result.name[:40])


def show_summary(summary: Summary) -> None:
    """Print counts, what failed, what was skipped, and what to do next."""
    console = Console(file=sys.stdout, soft_wrap=True)
    for warning in summary.warnings:
        console.print(Text(f"warning: {warning}"))
    counts = summary.counts()
    total = len(summary.rows)
    line = Text(f"{total} API calls: ")
    for index, (verdict, style) in enumerate(_STYLES.items()):
        line.append(f"{', ' if index else ''}{counts[verdict]} {verdict}", style if counts[verdict] else "")
    console.print(line)
    if summary.kept:
        console.print(f"{summary.kept} of them were finished before")
    found = summary.found()
    if found:
        console.print(_found_table(found))
    for reason, count in summary.skipped().most_common(_SHOWN):
        console.print(Text(f"skipped {count}: {reason}", "dim"))
    console.print(Text(f"tables: {summary.out / RESULT_FILE}, {summary.out / DETAIL_FILE}"))
    console.print(Text(f"next: {_next_command(found, summary)}"))


def _found_table(found: list[list[str]]) -> Table:
    table = Table(box=box.SIMPLE)
    for column in ("API", "forward", "backward", "why"):
        table.add_column(column, overflow="fold")
    for row in found[:_SHOWN]:
        table.add_row(row[0], *(Text(verdict, _STYLES.get(verdict, "")) for verdict in row[1:3]), Text(row[3]))
    if len(found) > _SHOWN:
        table.add_row(f"... {len(found) - _SHOWN} more", "", "", "")
    return table


def _next_command(found: list[list[str]], summary: Summary) -> str:
    scripts = [row[5] for row in found if row[5]]
    if scripts:
        return f"python {shlex.quote(scripts[0] + '/reproduce.py')}"
    if found:
        return f"look at the rows of {found[0][0]} in {summary.out / DETAIL_FILE}"
    return "nothing to do on this device; --device cuda or npu checks another"
