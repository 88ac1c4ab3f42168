"""Compare what two tools have written for the same script, record by record."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parity_gradients import compare_api_gradients, compare_module_gradients
from parity_names import Counterparts, Name, counterparts
from parity_values import OTHER_ROUNDING, SAME_RUN, Finding, Tolerance, compare_value


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


def compare_dumps(ours: Dump, peer: Dump, *, perturbed: bool = False, peer_l1: Dump | None = None) -> Comparison:
    """Compare everything that the peer has written with what we have written.

    Parameters
    ----------
    ours, peer
    perturbed
        The peer's run did not end with the parameters of the run without a tool, ours did.
    peer_l1
        What the peer has written for the same step at level L1, where it changes no gradient.
    """
    pairs = counterparts(ours.data or ours.construct, [*peer.data, *peer.construct])
    result = Comparison(len(peer.data), len(ours.data))
    for name, written in peer.data.items():
        mine = ours.data.get(pairs.ours.get(name, name))
        if mine is None:
            result.findings.append(Finding("missing", "dump", name))
            continue
        stopped = pairs.reasons.get(name) == "recompute"  # a recomputation is left in the middle of its last call
        record = {key: value for key, value in written.items() if key in mine or not stopped}
        if name in pairs.reasons:
            result.findings.append(
                Finding("documented", "dump", name, ours=pairs.ours[name], reason=pairs.reasons[name])
            )
        forward = _forward_of(pairs.ours.get(name, name), ours.data)
        found = list(_compare_record(name, record, mine, forward, SAME_RUN))
        if any(finding.kind == "different" for finding in found) and (
            (perturbed and _agrees(name, record, mine, forward, OTHER_ROUNDING))
            or (peer_l1 and name in peer_l1.data and _agrees(name, peer_l1.data[name], mine, forward, SAME_RUN))
        ):
            found = [Finding("documented", "dump", name, reason="peer-perturbs")]
        result.findings += found
    result.findings += _compare_construct(ours.construct, peer.construct, pairs)
    result.findings += _compare_stacks(ours.stacks, peer.stacks, pairs)
    paired = {pairs.ours.get(name, name) for name in peer.data}
    result.extra = Counter(_kind_of(name) for name in ours.data if name not in paired)
    return result


def _agrees(name: str, *compared: Any) -> bool:
    return all(finding.kind == "documented" for finding in _compare_record(name, *compared))


def _forward_of(name: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The forward record that belongs to a backward record of ours, empty if there is none."""
    found: Mapping[str, Any] = data.get(_forward_name(name), {})
    return found


def _forward_name(backward: str) -> str:
    return backward.partition("#")[0].replace(".backward", ".forward")


def _kind_of(text: str) -> str:
    name = Name.parse(text)
    return text if name is None else f"{name.base} {name.side}{name.tag}"


# -- records


def _compare_record(
    name: str, peer: Mapping[str, Any], ours: Mapping[str, Any], forward: Mapping[str, Any], tolerance: Tolerance
) -> Iterator[Finding]:
    parsed = Name.parse(name)
    backward = parsed is not None and parsed.side == "backward"
    for key, value in peer.items():
        if key not in ours:
            yield Finding("different", "dump", name, key, value, "absent")
        elif not backward:
            yield from compare_value(name, key, value, ours[key], tolerance)
        elif name.startswith("Module."):
            yield from compare_module_gradients(name, key, value, ours, forward, tolerance)
        else:
            yield from compare_api_gradients(name, key, value, ours, forward, tolerance)


# -- hierarchy and stacks


def _compare_construct(ours: Mapping[str, Any], peer: Mapping[str, Any], pairs: Counterparts) -> Iterator[Finding]:
    to_peer = pairs.to_peer()
    for child, parent in peer.items():
        mine = pairs.ours.get(child, child)
        if mine not in ours:
            yield Finding("missing", "construct", child, peer=parent)
            continue
        above = ours[mine]
        if to_peer.get(above, above) == parent:
            continue
        if "#recompute" in mine:
            yield Finding("documented", "construct", child, peer=parent, ours=above, reason="recompute")
        elif _mirrors_forward(mine, above, ours):
            yield Finding("documented", "construct", child, peer=parent, ours=above, reason="backward-parent")
        else:
            yield Finding("different", "construct", child, peer=parent, ours=above)


def _mirrors_forward(child: str, parent: str | None, ours: Mapping[str, Any]) -> bool:
    """Whether a backward record's parent is the backward of its forward record's parent."""
    name = Name.parse(child)
    if name is None or name.side != "backward":
        return False
    above = ours.get(_forward_name(child))
    return parent == (above and above.replace(".forward", ".backward"))


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
    """A frame without the place of the environment; "" for torch's own, which depend on hooks and modes."""
    text = frame.replace("\\", "/").split("site-packages/")[-1].strip()
    of_wrapper = text.startswith("torch/_tensor.py,") and "in wrapped," in text
    return "" if of_wrapper or text.startswith("torch/nn/modules/module.py,") else text
