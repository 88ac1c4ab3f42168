"""What a module is given or returns on one side only, or in another form, although it computes the same.

Attention implementations differ in this: one is given no mask and returns its weights, one is given a mask of numbers,
one a mask of booleans. The outputs that both have decide whether that matters.
"""

from __future__ import annotations

from collections.abc import Sequence

from msprobe.compare.entries import INPUT, PARAMETERS
from msprobe.compare.rows import GRAVITY, Decision, LeafRow

_AGREES = "on one side only; the outputs that both have agree"
_OTHER_FORM = "booleans on one side only; the outputs agree"


def pardon_optional(rows: Sequence[LeafRow], direction: str) -> tuple[LeafRow, ...] | None:
    """Return the values of a module's record with optional ones as ``uncompared``.

    Of a backward record only gradients that come in are optional, those of results that one side does not have: a
    gradient that a module does not hand on is a fault.

    Parameters
    ----------
    rows
        All values of the record, judged.
    direction
        ``forward`` or ``backward``.

    Returns
    -------
    tuple of LeafRow or None
        None if no output agrees, or if anything else than optional values differs.
    """
    judged: list[LeafRow] = []
    agrees = False
    for row in rows:
        why = _why_optional(row, direction)
        if why:
            judged.append(row._replace(decision=Decision("uncompared", message=why)))
            continue
        if GRAVITY[row.decision.verdict] > GRAVITY["uncompared"]:
            return None
        agrees = agrees or (
            _is_output(row)
            and row.golden is not None
            and row.golden.kind == "tensor"
            and row.decision.verdict == "pass"
        )
        judged.append(row)
    return tuple(judged) if agrees else None


def _why_optional(row: LeafRow, direction: str) -> str:
    if row.decision.verdict == "pass" or row.name.startswith(f"{PARAMETERS}."):
        return ""
    if direction == "backward" and _is_output(row):
        return ""
    kinds = [entry.kind for entry in (row.target, row.golden) if entry is not None and entry.kind != "null"]
    if kinds == ["tensor"]:
        return _AGREES
    if kinds == ["tensor", "tensor"] and not _is_output(row) and row.decision.measure == "dtype":
        return _OTHER_FORM if "bool" in {row.target and row.target.dtype, row.golden and row.golden.dtype} else ""
    return ""


def _is_output(row: LeafRow) -> bool:
    return not row.name.startswith((f"{INPUT}.", f"{PARAMETERS}."))
