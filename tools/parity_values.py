"""Compare two encoded values: tensors by their statistics, everything else exactly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from parity_rules import NULL_AT_PEER

STATISTICS = ("Max", "Min", "Mean", "Norm")
EXACT = ("md5", "contents")  # of the elements: they say nothing about two runs with different rounding
FLOAT32_MIN, FLOAT32_MAX = 1.2e-38, 3.4e38


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far two statistics may be apart.

    Attributes
    ----------
    relative : float
        Of the statistic itself.
    of_size : float
        Of the larger of |Max| and |Min|: values that cancel are known only relative to what they come from.
    absolute : float
    """

    relative: float
    of_size: float
    absolute: float


# The two runs compute bitwise the same; only how the statistics are reduced differs.
SAME_RUN = Tolerance(1e-4, 1e-6, 0.0)
# The peer's hooks have changed the order in which gradients are added up, and with it the rounding of everything after.
OTHER_ROUNDING = Tolerance(1e-3, 1e-5, 1e-7)
# Rounding of the dtype itself.
OF_DTYPE = {"float16": 1e-2, "bfloat16": 2e-2}


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


def compare_value(name: str, path: str, peer: Any, ours: Any, tolerance: Tolerance = SAME_RUN) -> Iterator[Finding]:
    """Differences of what is at ``path`` of the record ``name``."""
    if isinstance(peer, list) and isinstance(ours, list) and len(peer) == len(ours):
        for index, (theirs, mine) in enumerate(zip(peer, ours, strict=True)):
            yield from compare_value(name, f"{path}.{index}", theirs, mine, tolerance)
    elif peer == {} and isinstance(ours, dict) and str(ours.get("type", "")).startswith("torch."):
        yield Finding("documented", "dump", name, path, peer, ours, "positional-type")
    elif isinstance(peer, dict) and isinstance(ours, dict):
        for key, value in peer.items():
            if key not in ours:
                yield Finding("different", "dump", name, f"{path}.{key}", value, "absent")
            elif key in STATISTICS and "dtype" in peer:
                yield from _compare_statistic(name, path, key, peer, ours, tolerance)
            elif key in EXACT and "dtype" in peer:
                yield from _compare_exact(name, path, key, peer, ours, tolerance)
            else:
                yield from compare_value(name, f"{path}.{key}", value, ours[key], tolerance)
        if "dtype" not in peer:
            for key in ours.keys() - peer.keys():
                yield Finding("different", "dump", name, f"{path}.{key}", "absent", ours[key])
    elif not _equal(peer, ours):
        yield Finding("different", "dump", name, path, peer, ours)


def _dtype(entry: Mapping[str, Any]) -> str:
    """``float32`` of PyTorch's ``torch.float32`` and MindSpore's ``Float32``."""
    return str(entry["dtype"]).removeprefix("torch.").lower()


def _equal(peer: Any, ours: Any) -> bool:
    both_nan = isinstance(peer, float) and isinstance(ours, float) and math.isnan(peer) and math.isnan(ours)
    return both_nan or (type(peer) is type(ours) and peer == ours)


def _compare_statistic(
    name: str, path: str, key: str, peer: Mapping[str, Any], ours: Mapping[str, Any], tolerance: Tolerance
) -> Iterator[Finding]:
    theirs, mine = peer[key], ours[key]
    if _equal(theirs, mine):
        return
    kind, reason = "different", ""
    if theirs is None and key in ("Mean", "Norm") and _dtype(peer).startswith(NULL_AT_PEER):
        reason = "null-statistics"
    elif _numbers(theirs, mine):
        if _close(key, peer, ours, tolerance):
            return
        if key == "Norm" and peer["shape"] == [] and math.isclose(-theirs, mine, rel_tol=tolerance.relative):
            reason = "signed-norm"
        elif _out_of_range(key, peer, mine):
            reason = "accumulation"
    yield Finding("documented" if reason else kind, "dump", name, f"{path}.{key}", theirs, mine, reason)


def _compare_exact(
    name: str, path: str, key: str, peer: Mapping[str, Any], ours: Mapping[str, Any], tolerance: Tolerance
) -> Iterator[Finding]:
    """A checksum, or the contents of a tensor file."""
    if tolerance is not SAME_RUN or _equal(peer[key], ours[key]):
        return
    reason = ""
    if key == "md5" and "Max" not in peer:  # summary_mode xor
        reason = "scalar-checksum" if peer["shape"] == [] else "empty-checksum" if 0 in peer["shape"] else ""
    kind = "documented" if reason else "different"
    yield Finding(kind, "dump", name, f"{path}.{key}", peer[key], ours[key], reason)


def _close(key: str, peer: Mapping[str, Any], ours: Mapping[str, Any], tolerance: Tolerance) -> bool:
    relative = max(tolerance.relative, OF_DTYPE.get(_dtype(peer), 0.0))
    of_size = tolerance.of_size if key == "Mean" or tolerance is not SAME_RUN else 0.0
    size = max(abs(value) for value in (peer["Max"], peer["Min"]))
    absolute = tolerance.absolute + (of_size * size if math.isfinite(size) else 0.0)
    return math.isclose(peer[key], ours[key], rel_tol=relative, abs_tol=absolute)


def _out_of_range(key: str, peer: Mapping[str, Any], ours: float) -> bool:
    """Whether the peer has infinity or zero because float32 cannot hold a sum on the way to what we have."""
    total = ours * ours if key == "Norm" else abs(ours) * math.prod(peer["shape"])
    if peer[key] == 0.0:
        return 0.0 < total < FLOAT32_MIN
    return math.isinf(peer[key]) and math.isfinite(ours) and total > FLOAT32_MAX


def _numbers(*values: Any) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
