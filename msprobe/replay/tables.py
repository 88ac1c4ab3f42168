"""Results as rows of the two tables. The first columns of ``acc_check_result.csv`` are those of mindstudio-probe."""

from __future__ import annotations

from dataclasses import fields

from msprobe.replay import verdicts
from msprobe.replay.records import CallResult, Detail

RESULT_COLUMNS = (
    "API Name",
    "Forward Test Success",
    "Backward Test Success",
    "Message",
    "Notes",
    "Reproducer",
)
_DETAIL_FIELDS = tuple(field.name for field in fields(Detail))
DETAIL_COLUMNS = (
    "API Name",
    "Direction",
    "Tensor",
    "DType",
    "Shape",
    "Verdict",
    "Rule",
    "Error Ratio",
    "RMS Units",
    "Max Units",
    "Max ULP",
    "Cosine",
    "Max Abs Error",
    "Max Rel Error",
    "RMS Rel Error",
)


def result_row(result: CallResult) -> list[str]:
    """Return the row of a call. A backward pass that the dump does not have is an empty cell."""
    none = result.backward == verdicts.SKIP and not result.backward_reason and result.forward != verdicts.SKIP
    message = [
        f"{direction}: {reason}"
        for direction, reason in (("forward", result.reason), ("backward", result.backward_reason))
        if reason
    ]
    return [
        result.name,
        result.forward,
        "" if none else result.backward,
        "; ".join(message),
        result.notes,
        result.failure,
    ]


def detail_rows(result: CallResult) -> list[list[str]]:
    """Return the rows of a call's tensors."""
    return [[_cell(getattr(detail, name)) for name in _DETAIL_FIELDS] for detail in result.details]


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
