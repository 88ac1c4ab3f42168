"""Compare backward records. Here the two tools differ most: see ``parity_rules.DOCUMENTED``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from parity_names import Name
from parity_rules import COMPOSED, COMPOSED_ELEMENTWISE, RETURN_WHAT_THEY_USE
from parity_values import EXACT, OTHER_ROUNDING, SAME_RUN, Finding, Tolerance, compare_value

MATRIX = 2


@dataclass(frozen=True, slots=True)
class Call:
    """Our records of one call in a run that records everything.

    Attributes
    ----------
    forward, backward : mapping
        Empty if there is none.
    """

    forward: Mapping[str, Any] = field(default_factory=dict)
    backward: Mapping[str, Any] = field(default_factory=dict)


def compare_module_gradients(
    name: str, key: str, peer: list[Any], record: Mapping[str, Any], call: Call, tolerance: Tolerance
) -> Iterator[Finding]:
    """Compare ``input`` or ``output`` of a module's backward record: in order, without the nulls.

    Parameters
    ----------
    name, key
        Name of the peer's record, and which of its lists.
    peer
        That list.
    record
        Our backward record.
    call
        What we know of the call.
    tolerance
    """
    ours = record[key]
    if key == "output" and _tensors(call.forward.get("input_kwargs")):
        ours = ours[: len(_tensors(call.forward.get("input_args")))]
        yield Finding("documented", "dump", name, key, reason="keyword-arguments")
    theirs, mine = (_present(side) for side in (peer, ours))
    if len(peer) != len(ours) and len(theirs) == len(mine):
        yield Finding("documented", "dump", name, key, len(peer), len(ours), "null-positions")
    found = list(compare_value(name, key, theirs, _named_alike(theirs, mine), tolerance))
    reason = ""
    if len(mine) == 1 < len(theirs) and _adds_up(theirs, mine[0]):
        reason = "repeated-argument"
    elif any(part in name for part in RETURN_WHAT_THEY_USE):  # one gradient at least is of a tensor used once
        pairs = zip(theirs, mine, strict=False)
        reason = "used-inside" if any(_same(*pair, tolerance) for pair in pairs) else ""
    if reason and any(finding.kind == "different" for finding in found):
        found = [Finding("documented", "dump", name, key, peer, ours, reason)]
    yield from found


def compare_api_gradients(
    name: str, key: str, peer: list[Any], record: Mapping[str, Any], call: Call, tolerance: Tolerance
) -> Iterator[Finding]:
    """Compare ``input`` or ``output`` of an API's backward record: each gradient of the peer has to be among ours.

    Parameters
    ----------
    name, key
        Name of the peer's record, and which of its lists.
    peer
        That list.
    record
        Our backward record.
    call
        What we know of the call.
    tolerance
    """
    ours = record[key]
    in_place = list(compare_value(name, key, peer, ours, tolerance))
    if all(finding.kind == "documented" for finding in in_place):
        yield from in_place
    elif not _lost(peer, ours, tolerance):
        yield Finding("documented", "dump", name, key, reason="argument-order")
    else:
        reason = _explanation(name, key, peer, record, call)
        yield Finding("documented" if reason else "different", "dump", name, key, peer, ours, reason)


def _explanation(name: str, key: str, peer: list[Any], record: Mapping[str, Any], call: Call) -> str:
    """Which documented difference a list of other gradients is an instance of; "" for none.

    Whatever the peer has, ours must be gradients of the call's arguments: of their shapes and dtypes.
    """
    if not _fits(call.backward.get("output", []), call.forward):
        return ""
    arguments, results = _tensors(call.forward.get("input_args")), _tensors(call.forward.get("output"))
    if _same(arguments[0], results[0]) and _same(call.backward["output"][0], call.backward["input"][0]):
        return "returned-input"
    if key != "output":
        return ""
    parsed = Name.parse(name)
    base = parsed.base if parsed else ""
    mine, theirs = _present(record["output"]), _present(peer)
    if base.endswith("_") and len(mine) == len(theirs) == 1 and _close(theirs[0].get("Norm"), mine[0].get("Norm")):
        return "view-of-base"
    kinds = [(argument["shape"], argument["dtype"]) for argument in arguments]
    lost = _lost(peer, record["output"], OTHER_ROUNDING)
    foreign = bool(lost) and all((value["shape"], value["dtype"]) not in kinds for value in lost)
    return "last-node" if base in COMPOSED_ELEMENTWISE or (base in COMPOSED and foreign) else ""


def _lost(peer: list[Any], ours: list[Any], tolerance: Tolerance) -> list[Any]:
    """Gradients of the peer that are not among ours; those of empty tensors say nothing."""
    free = _present(ours)
    lost = []
    for value in _present(peer):
        if 0 in value["shape"]:
            continue
        match = next((mine for mine in free if _same(value, mine, tolerance)), None)
        if match is None:
            lost.append(value)
        else:
            free.remove(match)
    return lost


def _same(peer: Any, ours: Any, tolerance: Tolerance = SAME_RUN) -> bool:
    """Whether two tensors agree; the peer's gradient of a matrix may be the transpose of the argument's."""
    if isinstance(peer, dict) and isinstance(ours, dict):
        (ours,) = _named_alike([peer], [{**ours, "requires_grad": peer.get("requires_grad")}])
        if len(peer.get("shape", ())) == MATRIX and ours.get("shape", [])[::-1] == peer["shape"]:
            # A transpose has the same statistics, but other bytes.
            of_elements = {key: peer[key] for key in EXACT if key in peer and ("Max" in peer or _turned(peer, ours))}
            ours = {**ours, "shape": peer["shape"], **of_elements}
    return all(finding.kind == "documented" for finding in compare_value("", "", peer, ours, tolerance))


def _turned(peer: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    """Whether a matrix of the peer is certainly a transpose of ours: without statistics a square one may be or not."""
    return bool(peer["shape"] != ours["shape"])


def _named_alike(peer: list[Any], ours: list[Any]) -> list[Any]:
    """Our tensors with the peer's file names: those hold positions in the list, which are not the same."""
    if len(peer) != len(ours):
        return ours
    return [
        {**mine, "data_name": theirs["data_name"]}
        if isinstance(theirs, dict) and isinstance(mine, dict) and "data_name" in theirs and "data_name" in mine
        else mine
        for theirs, mine in zip(peer, ours, strict=True)
    ]


def _fits(gradients: list[Any], forward: Mapping[str, Any]) -> bool:
    """Whether every gradient has the shape and dtype of the argument at its position."""
    arguments = [*_tensors(forward.get("input_args")), *_tensors(forward.get("input_kwargs"))]
    return len(arguments) == len(gradients) and all(
        gradient is None or (gradient["shape"], gradient["dtype"]) == (argument["shape"], argument["dtype"])
        for gradient, argument in zip(gradients, arguments, strict=True)
    )


def _tensors(value: Any) -> list[dict[str, Any]]:
    """Tensor leaves of an encoded value, in order."""
    if isinstance(value, dict) and "shape" in value:
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [leaf for item in inside for leaf in _tensors(item)]


def _present(values: list[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _close(peer: float | None, ours: float | None) -> bool:
    return peer is not None and ours is not None and math.isclose(peer, ours, rel_tol=SAME_RUN.relative)


def _adds_up(parts: list[Any], total: Any) -> bool:
    """Whether gradients of one tensor at several positions can add up to the one gradient that we have."""
    means = [part.get("Mean") for part in parts if part["shape"] == total["shape"]]
    if len(means) != len(parts) or None in means:
        return False
    size = max(abs(value) for value in (total["Max"], total["Min"]))
    return math.isclose(math.fsum(means), total["Mean"], rel_tol=SAME_RUN.relative, abs_tol=1e-5 * size)
