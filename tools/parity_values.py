"""Compare two encoded values: tensors by their statistics, everything else exactly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from parity_rules import NULL_AT_PEER

STATISTICS = ("Max", "Min", "Mean", "Norm")
RELATIVE = {"torch.float16": 1e-2, "torch.bfloat16": 2e-2}
DEFAULT_RELATIVE = 1e-4
# A mean of values that cancel is known only relative to their size.
MEAN_ABSOLUTE = 1e-6


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference.

    Attributes
    ----------
    kind : str
        ``missing`` (the peer wrote it, we did not), ``different`` or ``documented``.
    where : str
        ``dump``, ``construct`` or ``stack``.
    record, path : str
        The peer's record name, and the place inside.
    peer, ours : Any
        The two values.
    reason : str
        Key in ``DOCUMENTED``.
    """

    kind: str
    where: str
    record: str
    path: str = ""
    peer: Any = None
    ours: Any = None
    reason: str = ""


def compare_value(name: str, path: str, peer: Any, ours: Any) -> Iterator[Finding]:
    """Differences of what is at ``path`` of the record ``name``."""
    if isinstance(peer, list) and isinstance(ours, list) and len(peer) == len(ours):
        for index, (theirs, mine) in enumerate(zip(peer, ours, strict=True)):
            yield from compare_value(name, f"{path}.{index}", theirs, mine)
    elif peer == {} and isinstance(ours, dict) and str(ours.get("type", "")).startswith("torch."):
        yield Finding("documented", "dump", name, path, peer, ours, "positional-type")
    elif isinstance(peer, dict) and isinstance(ours, dict):
        for key, value in peer.items():
            if key not in ours:
                yield Finding("different", "dump", name, f"{path}.{key}", value, "absent")
            elif key in STATISTICS and "dtype" in peer:
                yield from _compare_statistic(name, path, key, peer, ours)
            else:
                yield from compare_value(name, f"{path}.{key}", value, ours[key])
        if "dtype" not in peer:
            for key in ours.keys() - peer.keys():
                yield Finding("different", "dump", name, f"{path}.{key}", "absent", ours[key])
    elif not _equal(peer, ours):
        yield Finding("different", "dump", name, path, peer, ours)


def _equal(peer: Any, ours: Any) -> bool:
    both_nan = isinstance(peer, float) and isinstance(ours, float) and math.isnan(peer) and math.isnan(ours)
    return both_nan or (type(peer) is type(ours) and peer == ours)


def _compare_statistic(
    name: str, path: str, key: str, peer: Mapping[str, Any], ours: Mapping[str, Any]
) -> Iterator[Finding]:
    theirs, mine = peer[key], ours[key]
    place = f"{path}.{key}"
    if _equal(theirs, mine):
        return
    dtype = str(peer["dtype"])
    if theirs is None and key in ("Mean", "Norm") and dtype.removeprefix("torch.").startswith(NULL_AT_PEER):
        yield Finding("documented", "dump", name, place, theirs, mine, "null-statistics")
        return
    if isinstance(theirs, bool) or isinstance(mine, bool) or not _numbers(theirs, mine):
        yield Finding("different", "dump", name, place, theirs, mine)
        return
    if key == "Norm" and peer["shape"] == [] and theirs < 0 and math.isclose(-theirs, mine, rel_tol=DEFAULT_RELATIVE):
        yield Finding("documented", "dump", name, place, theirs, mine, "signed-norm")
        return
    size = max(abs(value) for value in (peer["Max"], peer["Min"])) if key == "Mean" else 0.0
    relative = RELATIVE.get(dtype, DEFAULT_RELATIVE)
    if not math.isclose(theirs, mine, rel_tol=relative, abs_tol=MEAN_ABSOLUTE * size):
        yield Finding("different", "dump", name, place, theirs, mine)


def _numbers(*values: Any) -> bool:
    return all(isinstance(value, (int, float)) for value in values)
