"""Compare what two tools have written for the same script, record by record."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity_dump import Dump
from parity_gradients import Call, compare_api_gradients, compare_module_gradients
from parity_names import MODULES, Counterparts, Name, counterparts
from parity_values import OTHER_ROUNDING, SAME_RUN, Finding, Tolerance, compare_value

CALLERS = ("torch/nn/modules/module.py,", "mindspore/nn/cell.py,", "mindspore/graph/")  # of modules and Cells
COMPILER = "torch/_dynamo/"
RUNNING_STATISTICS = ("input_args.1.md5", "input_args.2.md5")  # updated by the call
WHOLE = {"input_args", "output"}  # of a forward record


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


@dataclass(frozen=True, slots=True)
class Context:
    """What is known of the two runs.

    Attributes
    ----------
    perturbed : bool
        The peer's run did not end with the parameters of the run without a tool, ours did.
    peer_l1 : Dump or None
        What the peer has written for the same step at level L1, where it changes no gradient.
    complete : Dump or None
        What we have written for the same step with nothing left out.
    setting : str
        Key of ``parity_cases.SETTINGS``.
    listed : tuple of str
        ``list`` of the config.
    checksums : frozenset of str
        What we have written in other steps.
    """

    perturbed: bool = False
    peer_l1: Dump | None = None
    complete: Dump | None = None
    setting: str = "default"
    listed: tuple[str, ...] = ()
    checksums: frozenset[str] = frozenset()


def compare_dumps(ours: Dump, peer: Dump, context: Context | None = None) -> Comparison:
    """Compare everything that the peer has written with what we have written."""
    context = context or Context()
    everything = context.complete or ours
    pairs = counterparts(everything.data or ours.construct, [*peer.data, *peer.construct])
    result = Comparison(len(peer.data), len(ours.data))
    if context.setting == "high":
        peer = dataclasses.replace(peer, data=_without_nulls(peer.data))
        result.findings.append(Finding("documented", "dump", "(all)", reason="high-precision"))
    checksums = context.checksums | checksums_in(ours.data)
    for name, written in peer.data.items():
        mine = ours.data.get(pairs.ours.get(name, name))
        if mine is None:
            result.findings.append(_absent("dump", name, context, cut=not written.keys() >= WHOLE))
            continue
        if name in pairs.reasons:
            result.findings.append(
                Finding("documented", "dump", name, ours=pairs.ours[name], reason=pairs.reasons[name])
            )
        call = _call_of(pairs.ours.get(name, name), everything.data)
        found = _compare_pair(name, written, mine, call, pairs.reasons.get(name), context)
        result.findings += [_late_checksum(finding, checksums) for finding in found]
    result.findings += _compare_construct(ours, peer, pairs, context)
    result.findings += _compare_stacks(ours.stacks, peer.stacks, pairs, context)
    result.findings += [Finding("missing", "file", name) for name in sorted(peer.unnamed - ours.unnamed)]
    paired = {pairs.ours.get(name, name) for name in peer.data}
    result.extra = Counter(_kind_of(name) for name in ours.data if name not in paired)
    return result


def _absent(where: str, name: str, context: Context, *, cut: bool = False) -> Finding:
    """What it means that the peer has written ``name`` and we have not; ``cut`` if its record has one side only."""
    reason = ""
    if "scope" in context.setting and cut:
        reason = "cut-by-scope"
    elif context.listed and context.complete and not _is_listed(name, context.listed, context.complete.construct):
        reason = "open-range"
    return Finding("documented" if reason else "missing", where, name, reason=reason)


def _is_listed(name: str, listed: Sequence[str], construct: Mapping[str, str | None]) -> bool:
    """Whether the list names a record, or a module around it."""
    around: str | None = name
    while around is not None:
        if any(part in around for part in listed):
            return True
        around = construct.get(around)
    return False


def _compare_pair(
    name: str,
    written: Mapping[str, Any],
    mine: Mapping[str, Any],
    call: Call,
    renamed: str | None,
    context: Context,
) -> list[Finding]:
    """Differences of the peer's record ``written`` and ours; ``renamed`` says why ours has another name."""
    stopped = renamed == "recompute"  # a recomputation is left in the middle of its last call
    record = {key: value for key, value in written.items() if key in mine or not stopped}
    found = list(_compare_record(name, record, mine, call, SAME_RUN))
    if all(finding.kind == "documented" for finding in found):
        return found
    at_l1 = context.peer_l1.data.get(name) if context.peer_l1 else None
    if (context.perturbed and _agrees(name, record, mine, call, OTHER_ROUNDING)) or (
        at_l1 and _agrees(name, at_l1, mine, call, SAME_RUN)
    ):
        return [Finding("documented", "dump", name, reason="peer-perturbs")]
    return found


def _without_nulls(value: Any) -> Any:
    """The value without a Mean or Norm that is null."""
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if item is not None or key not in ("Mean", "Norm")}
        return {key: _without_nulls(item) for key, item in kept.items()}
    return value


def checksums_in(value: Any) -> set[str]:
    """Every checksum in the value."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = {value["md5"]} if isinstance(value, dict) and isinstance(value.get("md5"), str) else set()
    return own.union(*map(checksums_in, inside))


def _late_checksum(finding: Finding, checksums: set[str]) -> Finding:
    """The finding, excused if the peer has the checksum of what the same memory held at another time."""
    if finding.kind != "different" or not finding.path.endswith(".md5"):
        return finding
    updated = finding.record.startswith("Functional.batch_norm.") and finding.path in RUNNING_STATISTICS
    if updated or finding.peer in checksums:
        return dataclasses.replace(finding, kind="documented", reason="late-checksum")
    return finding


def _agrees(name: str, *compared: Any) -> bool:
    return all(finding.kind == "documented" for finding in _compare_record(name, *compared))


def _call_of(name: str, data: Mapping[str, Any]) -> Call:
    """The records of the call to which a record of ours belongs."""
    return Call(data.get(_forward_name(name), {}), data.get(name, {}))


def _forward_name(backward: str) -> str:
    return backward.partition("#")[0].replace(".backward", ".forward")


def _kind_of(text: str) -> str:
    name = Name.parse(text)
    return text if name is None else f"{name.base} {name.side}{name.tag}"


# -- records


def _compare_record(
    name: str, peer: Mapping[str, Any], ours: Mapping[str, Any], call: Call, tolerance: Tolerance
) -> Iterator[Finding]:
    parsed = Name.parse(name)
    backward = parsed is not None and parsed.side == "backward"
    for key, value in peer.items():
        if key not in ours:
            yield Finding("different", "dump", name, key, value, "absent")
        elif not backward:
            yield from compare_value(name, key, value, ours[key], tolerance)
        elif name.startswith(MODULES):
            yield from compare_module_gradients(name, key, value, ours, call, tolerance)
        else:
            yield from compare_api_gradients(name, key, value, ours, call, tolerance)


# -- hierarchy and stacks


def _compare_construct(our_dump: Dump, peer_dump: Dump, pairs: Counterparts, context: Context) -> Iterator[Finding]:
    to_peer = pairs.to_peer()
    ours = our_dump.construct
    for child, parent in peer_dump.construct.items():
        mine = pairs.ours.get(child, child)
        if mine not in ours:
            left_out = peer_dump.data and not {child, mine} & {*peer_dump.data, *our_dump.data}
            if left_out:
                yield Finding("documented", "construct", child, peer=parent, reason="filtered-hierarchy")
            else:
                yield _absent("construct", child, context)
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
    ours: Mapping[str, list[str]], peer: Mapping[str, list[str]], pairs: Counterparts, context: Context
) -> Iterator[Finding]:
    for name, frames in peer.items():
        mine = ours.get(pairs.ours.get(name, name))
        if mine is None:
            yield _absent("stack", name, context)
            continue
        theirs, mine = [[text for frame in side if (text := _portable(frame))] for side in (frames, mine)]
        if theirs == mine:
            continue
        if [text for text in theirs if not text.startswith(COMPILER)] == mine:
            yield Finding("documented", "stack", name, peer=theirs, ours=mine, reason="compiler-frames")
        else:
            at = next((i for i, (a, b) in enumerate(zip(theirs, mine, strict=False)) if a != b), -1)
            yield Finding("different", "stack", name, f"frame {at} of {len(theirs)}/{len(mine)}", theirs, mine)


def _portable(frame: str) -> str:
    """A frame without the place of the environment; "" for the framework's own, which depend on hooks and modes."""
    text = frame.replace("\\", "/").split("site-packages/")[-1].strip()
    of_wrapper = text.startswith("torch/_tensor.py,") and "in wrapped," in text
    return "" if of_wrapper or text.startswith(CALLERS) else text
