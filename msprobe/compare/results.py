"""The result files: ``compare_result.csv``, ``summary.json``, and on request ``compare_result.xlsx``."""

from __future__ import annotations

import csv
import dataclasses
import math
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from msprobe.compare.columns import TableKind, header
from msprobe.compare.jobs import CompareError
from msprobe.compare.rows import Summary
from msprobe.store.json_bytes import dumps_json

CSV_NAME = "compare_result.csv"
XLSX_NAME = "compare_result.xlsx"
HTML_NAME = "compare_result.html"
SUMMARY_NAME = "summary.json"

#: Rows of an Excel sheet, the header among them.
SHEET_ROWS = 1_048_576
_COLOURS = {"error": "#F4B6B6", "warning": "#FCE7A8", "unmatched": "#CFE0F7"}
_LONGEST_CELL = 32_767


def write_csv(out: Path, kind: TableKind, parts: Iterable[Path]) -> Path:
    """Join the tables of all pairs under one header; bytes are copied, nothing is held."""
    file = out / CSV_NAME
    with file.open("wb") as stream:
        stream.write((",".join(header(kind)) + "\r\n").encode())
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, stream, 1 << 20)
    return file


def write_summary(out: Path, summary: Summary) -> Path:
    """Write ``summary.json``: strict JSON, with ``"NaN"`` and ``"Infinity"`` as strings."""
    file = out / SUMMARY_NAME
    content = {
        "version": 1,
        **_plain(summary),
        "unmatched": {"target": summary.only_target, "golden": summary.only_golden},
        "exit_code": summary.exit_code,
    }
    file.write_bytes(dumps_json(content) + b"\n")
    return file


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def write_xlsx(out: Path, table: Path) -> Path:
    """Write the table as a workbook, row by row; a sheet that is full is continued on another one.

    Raises
    ------
    CompareError
        xlsxwriter is not installed.
    """
    try:
        import xlsxwriter  # noqa: PLC0415 - optional
    except ImportError as error:
        raise CompareError("--xlsx needs xlsxwriter: pip install 'msprobe[xlsx]'") from error
    file = out / XLSX_NAME
    options = {
        "constant_memory": True,
        "strings_to_formulas": False,
        "strings_to_urls": False,
        "nan_inf_to_errors": True,
    }
    with xlsxwriter.Workbook(str(file), options) as book, table.open(newline="", encoding="utf-8") as stream:
        formats = {verdict: book.add_format({"bg_color": colour}) for verdict, colour in _COLOURS.items()}
        rows = csv.reader(stream)
        names = next(rows)
        result = names.index("Result")
        for number, sheet_rows in enumerate(_sheets(rows, SHEET_ROWS - 1), start=1):
            sheet = book.add_worksheet("result" if number == 1 else f"result_{number}")
            sheet.freeze_panes(1, 2)
            sheet.write_row(0, 0, names)
            for place, row in enumerate(sheet_rows, start=1):
                sheet.set_row(place, None, formats.get(row[result]))
                sheet.write_row(place, 0, [_cell(text) for text in row])
    return file


def _sheets(rows: Iterator[list[str]], size: int) -> Iterator[Iterator[list[str]]]:
    """Split rows into runs of one sheet each; at least one, which may be empty."""
    first = next(rows, None)
    yield _sheet(first, rows, size)
    while (first := next(rows, None)) is not None:
        yield _sheet(first, rows, size)


def _sheet(first: list[str] | None, rows: Iterator[list[str]], size: int) -> Iterator[list[str]]:
    if first is None:
        return
    yield first
    for _ in range(size - 1):
        row = next(rows, None)
        if row is None:
            return
        yield row


def _cell(text: str) -> str | float:
    """Return a number where a cell is one; eight hexadecimal digits that look like a number are a checksum."""
    if text[:1].isdigit() or text[:1] == "-":
        try:
            number = float(text)
        except ValueError:
            return text[:_LONGEST_CELL]
        if math.isfinite(number) and not (len(text) == 8 and text.isalnum()):
            return number
    return text[:_LONGEST_CELL]
