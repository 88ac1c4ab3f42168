"""How ``msprobe parse`` shows tensors, dumps and differences in a terminal."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from msprobe.measure.records import Statistics
from msprobe.report.dump_summary import DumpSummary
from msprobe.report.element_differences import ElementDifference, TensorDifferences
from msprobe.report.tensor_summary import Histogram, TensorSummary, Value
from msprobe.store.tensor_reader import ReadTensor

_BAR = 40


def show_tensor(console: Console, path: Path, summary: TensorSummary) -> None:
    """Print one tensor: statistics, histogram, elements that stand out."""
    found = summary.statistics
    console.print(f"[bold]{escape(str(path))}[/bold]", soft_wrap=True)
    console.print(f"  shape {list(summary.shape)}   dtype {summary.dtype}", markup=False)
    if found.reason:
        console.print(f"  no statistics: {found.reason}", markup=False)
    else:
        console.print(f"  {_statistics(found)}", markup=False, soft_wrap=True)
    if summary.histogram is not None:
        for line in histogram_lines(summary.histogram):
            console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    if summary.worst:
        table = Table("index", "value", title="Elements that stand out", title_justify="left")
        for element in summary.worst:
            table.add_row(escape(str(list(element.index))), _exact(element.value, summary.dtype))
        console.print(table)


def _statistics(found: Statistics) -> str:
    return (
        f"Max {found.max!s}   Min {found.min!s}   Mean {found.mean!s}   Norm {found.norm!s}   "
        f"NaN {found.nan}   Inf {found.inf}   zeros {found.zero}"
    )


def histogram_lines(histogram: Histogram) -> list[str]:
    """Return one line per bin: its lower border, a bar, and the count."""
    width = histogram.high / len(histogram.counts) - histogram.low / len(histogram.counts)
    most = max(histogram.counts)
    lines = []
    for number, count in enumerate(histogram.counts):
        bar = "█" * round(_BAR * count / most) if most else ""
        lines.append(f"{histogram.low + number * width:>12.4g}  {bar or ('▏' if count else ''):{_BAR}}  {count}")
    return [*lines, f"{histogram.high:>12.4g}"]


def show_tensors(console: Console, folder: Path, summaries: list[tuple[str, TensorSummary]]) -> None:
    """Print a folder of tensor files, one per line."""
    table = Table(title=escape(f"{folder}: {len(summaries)} tensors"), title_justify="left", title_style="bold")
    for column in ("file", "shape", "dtype", "Max", "Min", "Mean", "Norm", "NaN", "Inf", "first that stands out"):
        table.add_column(column, overflow="fold")
    for name, summary in summaries:
        found = summary.statistics
        numbers = [_short(value) for value in (found.max, found.min, found.mean, found.norm)]
        first = summary.worst[0] if summary.worst else None
        stands_out = "" if first is None else f"{list(first.index)} = {_exact(first.value, summary.dtype)}"
        cells = [name, str(list(summary.shape)), summary.dtype, *numbers, str(found.nan), str(found.inf), stands_out]
        table.add_row(*(escape(cell) for cell in cells))
    console.print(table)


def show_dump(console: Console, summary: DumpSummary) -> None:
    """Print what is in a dump file."""
    console.print(f"[bold]{escape(str(summary.path))}[/bold]", soft_wrap=True)
    state = "complete" if summary.complete else "cut off: `msprobe recover` closes it"
    lines = [
        f"task {summary.task or '?'}   level {summary.level or '?'}   framework {summary.framework or '?'}   {state}",
        f"{sum(summary.records.values())} records: {_counts(summary.records) or 'none'}",
        f"{sum(summary.dtypes.values())} tensors: {_counts(summary.dtypes) or 'none'}; {summary.files} with a file",
        f"{summary.nonfinite} values with NaN or infinity",
    ]
    if summary.unmeasured:
        lines.append(f"without statistics: {_counts(summary.unmeasured)}")
    for line in lines:
        console.print(f"  {line}", markup=False, soft_wrap=True)
    if summary.worst:
        table = Table(title="Values that stand out", title_justify="left")
        for column in ("value", "shape", "dtype", "Max", "Min", "Norm", "NaN", "Inf"):
            table.add_column(column, overflow="fold")
        for value in summary.worst:
            entry = value.entry
            numbers = [_short(number) for number in (entry.largest, entry.smallest, entry.norm)]
            shape = "" if entry.shape is None else str(list(entry.shape))
            cells = [f"{value.record}.{value.place}", shape, entry.dtype, *numbers, str(entry.nan), str(entry.inf)]
            table.add_row(*(escape(cell) for cell in cells))
        console.print(table)


def show_differences(console: Console, tensors: tuple[ReadTensor, ReadTensor], found: TensorDifferences) -> None:
    """Print where two tensors differ."""
    first, second = tensors
    console.print(f"  shape {list(first.array.shape)}   dtype {first.dtype} and {second.dtype}", markup=False)
    console.print(f"  {found.different} of {found.size} elements differ", markup=False)
    metrics = found.metrics
    named = {
        "cosine": metrics.cosine,
        "max |difference|": metrics.max_abs,
        "max relative": metrics.max_relative,
        "max ULP": metrics.max_ulp,
        "not finite on one side": metrics.nonfinite_mismatches or None,
    }
    known = [f"{name} {_short(value)}" for name, value in named.items() if value is not None]
    if known:
        console.print(f"  {'   '.join(known)}", markup=False, soft_wrap=True)
    if found.worst:
        console.print(_difference_table(found.worst, (first.dtype, second.dtype)))


def _difference_table(worst: tuple[ElementDifference, ...], dtypes: tuple[str, str]) -> Table:
    table = Table(title="Largest differences", title_justify="left")
    for column in ("index", "first", "second", "difference", "ULP"):
        table.add_column(column, justify="left" if column == "index" else "right")
    for element in worst:
        table.add_row(
            escape(str(list(element.index))),
            _exact(element.first, dtypes[0]),
            _exact(element.second, dtypes[1]),
            _short(element.difference),
            _short(element.ulp),
        )
    return table


def _exact(value: Value, dtype: str) -> str:
    """Return as many digits as tell the values of a dtype apart: 9 for float32 and smaller."""
    return f"{value:.9g}" if isinstance(value, float) and dtype != "float64" else str(value)


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counter.most_common())


def _short(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
