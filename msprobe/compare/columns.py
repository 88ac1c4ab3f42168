"""Columns of the result table. The names that mindstudio-probe has, too, are its names."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal

import orjson

from msprobe.compare.rows import Entry, LeafRow, RecordRow

TableKind = Literal["statistics", "tensor", "md5"]
Cell = str | int | float | bool | None


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
    about: list[Cell] = [record.role, record.module or None, record.call_site or None, step, rank]
    lines = []
    stack: Cell = "\n".join(record.stack) or None
    for leaf in leaves:
        t, g = leaf.target, leaf.golden
        row: list[Cell] = [
            _name(record.target, leaf.name, t is None and g is not None),
            _name(record.golden, leaf.golden_name, g is None and t is not None),
        ]
        for cells in groups:
            row += cells(leaf, t, g)
        row += about
        row.append(stack)
        lines.append(csv_line(row))
        stack = None
    return lines


def csv_line(row: list[Cell]) -> bytes:
    """Return a row, whose first cell is not empty, as a line of CSV (RFC 4180).

    Formatting numbers is most of the work of writing a table; `orjson` does it ten times faster than `repr`. Its text
    of a list is a line of CSV as long as no string has an escape in it and every ``null`` is an empty cell, not a NaN
    or an infinity.
    """
    try:
        text = orjson.dumps(row)[1:-1]
    except TypeError:  # text that is no Unicode, or an integer of more than 64 bits
        text = b"\\"
    nulls = text.count(b"null")
    if b"\\" in text or nulls != row.count(None):
        stream = io.StringIO(newline="")
        csv.writer(stream).writerow(row)
        return stream.getvalue().encode("utf-8", "backslashreplace")
    return (text.replace(b",null", b",") if nulls else text) + b"\r\n"


def _name(record: str | None, leaf: str, is_missing: bool) -> str:
    if record is None or is_missing:
        return "N/A"
    return f"{record}.{leaf}" if leaf else record


def _basic(leaf: LeafRow, t: Entry | None, g: Entry | None) -> list[Cell]:
    return [
        _dtype(t),
        _dtype(g),
        _shape(t),
        _shape(g),
        None if t is None else _YES_NO[t.requires_grad],
        None if g is None else _YES_NO[g.requires_grad],
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
    return [None] * 4 if d is None else [d.largest, d.smallest, d.mean, d.norm]


def _relative(leaf: LeafRow, t: Entry | None, g: Entry | None) -> list[Cell]:
    d = leaf.differences
    if d is None:
        return [None] * 4
    return [
        _percent(d.relative_largest),
        _percent(d.relative_smallest),
        _percent(d.relative_mean),
        _percent(d.relative_norm),
    ]


def _relative_without_max(leaf: LeafRow, t: Entry | None, g: Entry | None) -> list[Cell]:
    return _relative(leaf, t, g)[1:]


def _percent(number: float | None) -> str | None:
    if number is None:
        return None
    if number == 0:
        return "0.0%"
    return f"{100 * number:.6g}%" if math.isfinite(number) else str(number)


def _elements(leaf: LeafRow, t: Entry | None, g: Entry | None) -> list[Cell]:
    m = leaf.metrics
    if m is None:
        return [None] * len(_ELEMENTS)
    return [
        m.cosine, m.euclidean, m.max_abs, m.max_relative, m.thousandth, m.five_thousandths, m.relative_euclidean,
        m.max_ulp, None if m.worst is None else str(list(m.worst)), m.nonfinite_mismatches,
    ]  # fmt: skip


def _checksums(leaf: LeafRow, t: Entry | None, g: Entry | None) -> list[Cell]:
    return [None if t is None else t.checksum, None if g is None else g.checksum]


def _summary(leaf: LeafRow, t: Entry | None, g: Entry | None) -> list[Cell]:
    return [*_numbers(t), *_numbers(g)]


def _numbers(entry: Entry | None) -> list[Cell]:
    if entry is None:
        return [None] * 4
    if entry.kind == "scalar":
        value = entry.value
        if value.__class__ is bool:
            return [str(value)] * 4
        return [value if isinstance(value, (int, float, str)) else None] * 4
    return [entry.largest, entry.smallest, entry.mean, entry.norm]


def _result(leaf: LeafRow, t: Entry | None, g: Entry | None) -> list[Cell]:
    both = t is not None and g is not None and t.requires_grad is not None and g.requires_grad is not None
    same = t.requires_grad == g.requires_grad if both and t is not None and g is not None else None
    return [_YES_NO[same], leaf.decision.verdict, leaf.decision.message or None]


def _judged(leaf: LeafRow, t: Entry | None, g: Entry | None) -> list[Cell]:
    d = leaf.decision
    return [d.measure or None, d.number, d.threshold, d.source or None]


def _data_name(leaf: LeafRow, t: Entry | None, g: Entry | None) -> list[Cell]:
    return [None if t is None else t.data_name]


_Cells = Callable[[LeafRow, Entry | None, Entry | None], list[Cell]]
_Group = tuple[tuple[str, ...], _Cells]
_END: tuple[_Group, ...] = ((_SUMMARY, _summary), (_RESULT, _result), (_JUDGED, _judged))
_YES_NO: dict[bool | None, str | None] = {True: "True", False: "False", None: None}
#: What is between the names and what is said of the record.
_GROUPS: dict[TableKind, tuple[_Group, ...]] = {
    "statistics": ((_BASIC, _basic), (_PLAIN, _plain), (_RELATIVE, _relative), *_END),
    "md5": ((_BASIC, _basic), (_CHECKSUMS, _checksums), (_PLAIN, _plain), (_RELATIVE, _relative), *_END),
    "tensor": (
        (_BASIC, _basic), (_ELEMENTS, _elements), (_PLAIN, _plain), (_RELATIVE[1:], _relative_without_max),
        (_CHECKSUMS, _checksums), *_END, (("Data_name",), _data_name),
    ),
}  # fmt: skip
_VALUE_CELLS = {kind: tuple([cells for _, cells in groups]) for kind, groups in _GROUPS.items()}
