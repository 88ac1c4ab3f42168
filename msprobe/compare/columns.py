"""Columns of the result table. The names that mindstudio-probe has, too, are its names."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal

import orjson

from msprobe.compare.judge import NO_DIFFERENCE
from msprobe.compare.rows import Entry, LeafRow, RecordRow

TableKind = Literal["statistics", "tensor", "md5"]
#: Empty text is an empty cell; None is, too, and takes longer.
Cell = str | int | float | bool | None

_BACKSLASH = ord("\\")
_NAMES = ("NPU Name", "Bench Name")
_BASIC = (
    "NPU Dtype", "Bench Dtype", "NPU Tensor Shape", "Bench Tensor Shape", "NPU Requires_grad", "Bench Requires_grad",
)  # fmt: skip
_PLAIN = ("Max diff", "Min diff", "Mean diff", "L2norm diff")
_RELATIVE = ("MaxRelativeErr", "MinRelativeErr", "MeanRelativeErr", "NormRelativeErr")
_ELEMENTS = (
    "Cosine", "EucDist", "MaxAbsErr", "MaxRelativeErr", "One Thousandth Err Ratio", "Five Thousandths Err Ratio",
    "Relative EucDist", "Max ULP", "Worst Element", "Non-finite Mismatches",
)  # fmt: skip
_CHECKSUMS = ("NPU MD5", "BENCH MD5")
_SUMMARY = (
    "NPU max", "NPU min", "NPU mean", "NPU l2norm", "Bench max", "Bench min", "Bench mean", "Bench l2norm",
)  # fmt: skip
_RESULT = ("Requires_grad Consistent", "Result", "Err_message")
_JUDGED = ("Measure", "Number", "Threshold", "Threshold Source")
_ABOUT = ("Role", "Module", "Call Site", "Step", "Rank", "NPU_Stack_Info")


def header(kind: TableKind) -> tuple[str, ...]:
    """Return the names of the columns."""
    return (*_NAMES, *[name for names, _ in _GROUPS[kind] for name in names], *_ABOUT)


def table_lines(kind: TableKind, step: str, rank: str, record: RecordRow) -> list[bytes]:
    """Return the lines of one record, one per value; a record without values has one line."""
    leaves: Sequence[LeafRow] = record.leaves or (LeafRow("", "", None, None, record.worst),)
    groups = _VALUE_CELLS[kind]
    about: list[Cell] = [record.role, record.module, record.call_site, step, rank]
    lines = []
    stack = _quoted(record.stack) if record.stack else b""
    for leaf in leaves:
        t, g = leaf.target, leaf.golden
        row: list[Cell] = [
            _name(record.target, leaf.name, t is None and g is not None),
            _name(record.golden, leaf.golden_name, g is None and t is not None),
        ]
        for cells in groups:
            row += cells(leaf, t, g)
        row += about
        lines.append(csv_line(row) + stack + b"\r\n")
        stack = b""
    return lines


@lru_cache(maxsize=1 << 12)
def _quoted(frames: tuple[str, ...]) -> bytes:
    """Return a stack as the text of one cell: records share few stacks, and line breaks make csv slow."""
    return b'"' + "\n".join(frames).replace('"', '""').encode("utf-8", "backslashreplace") + b'"'


def csv_line(row: list[Cell]) -> bytes:
    """Return a row, whose first cell is not empty, as CSV (RFC 4180) with a comma for one cell more.

    Formatting numbers is most of the work of writing a table; `orjson` does it ten times faster than `repr`. Its text
    of a list is a line of CSV as long as no string has an escape in it, and no number is a NaN or an infinity, for
    which it writes ``null``.
    """
    try:
        text = orjson.dumps(row)
        if b"null" in text:
            text = orjson.dumps([_spelled(cell) for cell in row])
    except TypeError:  # half of a surrogate pair, an integer beyond 64 bits
        return _any_line(row)
    return _any_line(row) if _BACKSLASH in text else text[1:-1] + b","


def _any_line(row: list[Cell]) -> bytes:
    """Do what `csv_line` does, for any text in any cell."""
    stream = io.StringIO(newline="")
    csv.writer(stream).writerow([*row, None])
    return stream.getvalue().removesuffix("\r\n").encode("utf-8", "backslashreplace")


def _spelled(cell: Cell) -> Cell:
    if cell is None:
        return ""
    return str(cell) if cell.__class__ is float and not math.isfinite(cell) else cell


def _name(record: str | None, leaf: str, is_missing: bool) -> str:
    if record is None or is_missing:
        return "N/A"
    return f"{record}.{leaf}" if leaf else record


def _basic(leaf: LeafRow, t: Entry | None, g: Entry | None) -> list[Cell]:
    if t is not None and g is not None and t.kind == "tensor" == g.kind:  # nearly always: not worth four calls
        shape = _shape_text(t.shape)
        other = shape if t.shape == g.shape else _shape_text(g.shape)
        return [t.dtype, g.dtype, shape, other, _YES_NO[t.requires_grad], _YES_NO[g.requires_grad]]
    return [
        _dtype(t),
        _dtype(g),
        _shape(t),
        _shape(g),
        "" if t is None else _YES_NO[t.requires_grad],
        "" if g is None else _YES_NO[g.requires_grad],
    ]


def _dtype(entry: Entry | None) -> str:
    if entry is None:
        return "N/A"
    return entry.dtype if entry.kind == "tensor" else f"<class '{entry.dtype}'>"


def _shape(entry: Entry | None) -> str:
    return "N/A" if entry is None else _shape_text(entry.shape)


@lru_cache(maxsize=4096)
def _shape_text(shape: tuple[int, ...] | None) -> str:
    return str(list(shape)) if shape is not None else "[]"


def _plain(leaf: LeafRow, t: Entry | None, g: Entry | None) -> list[Cell]:
    d = leaf.differences
    return [""] * 4 if d is None else [d.largest, d.smallest, d.mean, d.norm]


def _relative(leaf: LeafRow, t: Entry | None, g: Entry | None) -> list[Cell]:
    d = leaf.differences
    if d is None:
        return [""] * 4
    if d is NO_DIFFERENCE:
        return ["0.0%"] * 4
    return [
        _percent(d.relative_largest),
        _percent(d.relative_smallest),
        _percent(d.relative_mean),
        _percent(d.relative_norm),
    ]


def _relative_without_max(leaf: LeafRow, t: Entry | None, g: Entry | None) -> list[Cell]:
    return _relative(leaf, t, g)[1:]


def _percent(number: float | None) -> str:
    if number is None:
        return ""
    if number == 0:
        return "0.0%"
    return f"{100 * number:.6g}%" if math.isfinite(number) else str(number)


def _elements(leaf: LeafRow, t: Entry | None, g: Entry | None) -> list[Cell]:
    m = leaf.metrics
    if m is None:
        return [""] * len(_ELEMENTS)
    return [
        m.cosine, m.euclidean, m.max_abs, m.max_relative, m.thousandth, m.five_thousandths, m.relative_euclidean,
        m.max_ulp, None if m.worst is None else str(list(m.worst)), m.nonfinite_mismatches,
    ]  # fmt: skip


def _checksums(leaf: LeafRow, t: Entry | None, g: Entry | None) -> list[Cell]:
    return ["" if t is None else t.checksum or "", "" if g is None else g.checksum or ""]


def _end(leaf: LeafRow, t: Entry | None, g: Entry | None) -> list[Cell]:
    d = leaf.decision
    number, threshold = "" if d.number is None else d.number, "" if d.threshold is None else d.threshold
    judged: tuple[Cell, ...] = (d.verdict, d.message, d.measure, number, threshold, d.source)
    if t is not None and g is not None and t.kind == "tensor" == g.kind:  # nearly always: not worth two calls
        return [
            t.largest, t.smallest, t.mean, t.norm, g.largest, g.smallest, g.mean, g.norm,
            _same_gradients(t, g), *judged,
        ]  # fmt: skip
    return [*_numbers(t), *_numbers(g), "" if t is None or g is None else _same_gradients(t, g), *judged]


def _same_gradients(t: Entry, g: Entry) -> str:
    a, b = t.requires_grad, g.requires_grad
    return "" if a is None or b is None else _YES_NO[a == b]


def _numbers(entry: Entry | None) -> list[Cell]:
    if entry is None or entry.kind == "null":
        return [""] * 4
    if entry.kind == "scalar":
        value = entry.value
        if value.__class__ is bool:
            return [str(value)] * 4
        return [value if isinstance(value, (int, float, str)) else ""] * 4
    return [entry.largest, entry.smallest, entry.mean, entry.norm]


def _data_name(leaf: LeafRow, t: Entry | None, g: Entry | None) -> list[Cell]:
    return ["" if t is None else t.data_name or ""]


_Cells = Callable[[LeafRow, Entry | None, Entry | None], list[Cell]]
_Group = tuple[tuple[str, ...], _Cells]
_END: _Group = ((*_SUMMARY, *_RESULT, *_JUDGED), _end)
_YES_NO: dict[bool | None, str] = {True: "True", False: "False", None: ""}
#: What is between the names and what is said of the record.
_GROUPS: dict[TableKind, tuple[_Group, ...]] = {
    "statistics": ((_BASIC, _basic), (_PLAIN, _plain), (_RELATIVE, _relative), _END),
    "md5": ((_BASIC, _basic), (_CHECKSUMS, _checksums), (_PLAIN, _plain), (_RELATIVE, _relative), _END),
    "tensor": (
        (_BASIC, _basic), (_ELEMENTS, _elements), (_PLAIN, _plain), (_RELATIVE[1:], _relative_without_max),
        (_CHECKSUMS, _checksums), _END, (("Data_name",), _data_name),
    ),
}  # fmt: skip
_VALUE_CELLS = {kind: tuple([cells for _, cells in groups]) for kind, groups in _GROUPS.items()}
