"""What a replay finds out, as records; files and tables are made from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Detail:
    """One tensor of a replayed call.

    Attributes
    ----------
    api : str
        ``Functional.linear.3``.
    direction : {"forward", "backward"}
    tensor : str
        ``output.0``, ``input.1.written``, or ``gradient.2``: of the third tensor argument.
    dtype, shape
        Of the result on the device.
    verdict, rule : str
        The verdict and what it was judged by, with the numbers.
    ratio : float or None
        Error of the device divided by that of the yardstick; None on a CPU, which is its own yardstick.
    rms_units, max_units, max_ulp, cosine, max_abs, max_rel, rms_rel : float or None
        See :class:`msprobe.replay.errors.Errors`; None where equality is demanded.
    """

    api: str
    direction: str
    tensor: str
    dtype: str
    shape: list[int]
    verdict: str
    rule: str
    ratio: float | None = None
    rms_units: float | None = None
    max_units: float | None = None
    max_ulp: float | None = None
    cosine: float | None = None
    max_abs: float | None = None
    max_rel: float | None = None
    rms_rel: float | None = None


@dataclass(frozen=True, slots=True)
class CallResult:
    """One replayed call.

    Attributes
    ----------
    name : str
        ``Functional.linear.3``.
    forward, backward : str
        Verdicts. ``skip`` for a backward pass that the dump does not have, too: `backward_reason` is empty then.
    reason : str
        Why the call was skipped or what made it fail; empty if nothing did.
    backward_reason : str
        The same of the backward pass alone.
    notes : str
        What was not as recorded.
    details : tuple of Detail
    failure : str
        Folder of the reproducer script; empty if nothing failed.
    """

    name: str
    forward: str
    backward: str
    reason: str = ""
    backward_reason: str = ""
    notes: str = ""
    details: tuple[Detail, ...] = ()
    failure: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the fields as a JSON object; :meth:`from_json` reads it."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> CallResult:
        """Build from what :meth:`as_json` returned."""
        details = tuple(Detail(**detail) for detail in fields["details"])
        return cls(**{**fields, "details": details})
