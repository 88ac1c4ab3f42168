"""Compare what two tools have written for the same script, record by record."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parity_names import Counterparts, Name, counterparts
from parity_rules import COMPOSED, NULL_AT_PEER

STATISTICS = ("Max", "Min", "Mean", "Norm")
RELATIVE = {"torch.float16": 1e-2, "torch.bfloat16": 2e-2}
DEFAULT_RELATIVE = 1e-4
# A mean of values that cancel is known only relative to their size.
MEAN_ABSOLUTE = 1e-6


@dataclass(frozen=True, slots=True)
class Dump:
    """The three files of one step and rank."""

    data: dict[str, Any]
    construct: dict[str, Any]
    stacks: dict[str, list[str]]

    @classmethod
    def read(cls, folder: Path) -> Dump:
        """Read a ``step{N}/rank{R}`` or ``proc{pid}`` folder."""
        files = {
            name: json.loads((folder / f"{name}.json").read_text("utf-8")) for name in ("dump", "construct", "stack")
        }
        stacks = {name: frames for names, frames in files["stack"].values() for name in names}
        return cls(files["dump"]["data"], files["construct"], stacks)


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


@dataclass(slots=True)
class Comparison:
    """Result of comparing the dumps of one scenario, level and step."""

    peer_records: int = 0
    our_records: int = 0
    findings: list[Finding] = field(default_factory=list)
    extra: Counter[str] = field(default_factory=Counter)

    def of_kind(self, kind: str) -> list[Finding]:
        """Findings of one kind."""
        return [finding for finding in self.findings if finding.kind == kind]


def compare_dumps(ours: Dump, peer: Dump) -> Comparison:
    """Compare everything that the peer has written with what we have written."""
    pairs = counterparts(ours.data or ours.construct, [*peer.data, *peer.construct])
    result = Comparison(len(peer.data), len(ours.data))
    for name, record in peer.data.items():
        mine = ours.data.get(pairs.ours.get(name, name))
        if mine is None:
            result.findings.append(Finding("missing", "dump", name))
            continue
        if name in pairs.reasons:
            result.findings.append(
                Finding("documented", "dump", name, ours=pairs.ours[name], reason=pairs.reasons[name])
            )
        result.findings += _compare_record(name, record, mine)
    result.findings += _compare_construct(ours.construct, peer.construct, pairs)
    result.findings += _compare_stacks(ours.stacks, peer.stacks, pairs)
    paired = {pairs.ours.get(name, name) for name in peer.data}
    result.extra = Counter(_kind_of(name) for name in ours.data if name not in paired)
    return result


def _kind_of(text: str) -> str:
    name = Name.parse(text)
    return text if name is None else f"{name.base} {name.side}{name.tag}"


# -- records


def _compare_record(name: str, peer: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[Finding]:
    parsed = Name.parse(name)
    assert parsed is not None
    for key, value in peer.items():
        if key not in ours:
            yield Finding("different", "dump", name, key, value, "absent")
        elif parsed.side != "backward":
            yield from _compare_value(name, key, value, ours[key])
        elif parsed.module:
            yield from _compare_module_gradients(name, key, value, ours[key])
        else:
            yield from _compare_gradients(name, key, value, ours[key], parsed.base in COMPOSED)


def _compare_module_gradients(name: str, key: str, peer: list[Any], ours: list[Any]) -> Iterator[Finding]:
    theirs, mine = [[value for value in side if value is not None] for side in (peer, ours)]
    if len(peer) != len(ours) and len(theirs) == len(mine):
        yield Finding("documented", "dump", name, key, len(peer), len(ours), "null-positions")
    yield from _compare_value(name, key, theirs, mine)


def _compare_gradients(name: str, key: str, peer: list[Any], ours: list[Any], composed: bool) -> Iterator[Finding]:
    """Each gradient of the peer has to be among ours."""
    in_place = list(_compare_value(name, key, peer, ours))
    if all(finding.kind == "documented" for finding in in_place):
        yield from in_place
        return
    free = [value for value in ours if value is not None]
    lost = []
    for value in (value for value in peer if value is not None):
        match = next((mine for mine in free if _same_gradient(name, value, mine)), None)
        if match is None:
            lost.append(value)
        else:
            free.remove(match)
    if not lost:
        yield Finding("documented", "dump", name, key, reason="argument-order")
    elif composed:
        yield Finding("documented", "dump", name, key, peer, ours, "last-node")
    else:
        yield Finding("different", "dump", name, key, peer, ours)


def _same_gradient(name: str, peer: Any, ours: Any) -> bool:
    """Whether two gradients agree; the peer's of a matrix may be the transpose of the argument's."""
    if isinstance(peer, dict) and isinstance(ours, dict) and ours.get("shape", [])[::-1] == peer.get("shape"):
        ours = {**ours, "shape": peer["shape"]}
    return all(finding.kind == "documented" for finding in _compare_value(name, "", peer, ours))


# -- values


def _compare_value(name: str, path: str, peer: Any, ours: Any) -> Iterator[Finding]:
    if isinstance(peer, list) and isinstance(ours, list) and len(peer) == len(ours):
        for index, (theirs, mine) in enumerate(zip(peer, ours, strict=True)):
            yield from _compare_value(name, f"{path}.{index}", theirs, mine)
    elif peer == {} and isinstance(ours, dict) and str(ours.get("type", "")).startswith("torch."):
        yield Finding("documented", "dump", name, path, peer, ours, "positional-type")
    elif isinstance(peer, dict) and isinstance(ours, dict):
        for key, value in peer.items():
            if key not in ours:
                yield Finding("different", "dump", name, f"{path}.{key}", value, "absent")
            elif key in STATISTICS and "dtype" in peer:
                yield from _compare_statistic(name, path, key, peer, ours)
            else:
                yield from _compare_value(name, f"{path}.{key}", value, ours[key])
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


# -- hierarchy and stacks


def _compare_construct(ours: Mapping[str, Any], peer: Mapping[str, Any], pairs: Counterparts) -> Iterator[Finding]:
    to_peer = pairs.to_peer()
    for child, parent in peer.items():
        mine = pairs.ours.get(child, child)
        if mine not in ours:
            yield Finding("missing", "construct", child, peer=parent)
            continue
        above = ours[mine]
        if to_peer.get(above, above) != parent:
            yield Finding("different", "construct", child, peer=parent, ours=above)


def _compare_stacks(
    ours: Mapping[str, list[str]], peer: Mapping[str, list[str]], pairs: Counterparts
) -> Iterator[Finding]:
    for name, frames in peer.items():
        mine = ours.get(pairs.ours.get(name, name))
        if mine is None:
            yield Finding("missing", "stack", name)
            continue
        theirs, mine = [[text for frame in side if (text := _portable(frame))] for side in (frames, mine)]
        if theirs != mine:
            at = next((i for i, (a, b) in enumerate(zip(theirs, mine, strict=False)) if a != b), -1)
            yield Finding("different", "stack", name, f"frame {at} of {len(theirs)}/{len(mine)}", theirs, mine)


def _portable(frame: str) -> str:
    """A frame without the place of the environment; "" for how ``nn.Module`` calls a forward with or without hooks."""
    text = frame.replace("\\", "/").split("site-packages/")[-1].strip()
    return "" if text.startswith("torch/nn/modules/module.py,") else text
