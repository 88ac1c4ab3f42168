"""The first place where two runs part, and why there."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from msprobe.compare.align import Alignment
from msprobe.compare.dump_side import DumpSide
from msprobe.compare.entries import INPUT, OUTPUT, PARAMETERS, entry_of, leaves_of, tensors_of
from msprobe.compare.judge import is_nan, statistics_number
from msprobe.compare.kinds import Kind, api_table, kind_of
from msprobe.compare.producers import Fingerprint, Producer, find_producers, fingerprint
from msprobe.compare.records import RecordComparer
from msprobe.compare.rows import CauseKind, ChainLink, Decision, Divergence, Entry, LeafRow, RecordRow

_LONGEST_CHAIN = 12
_GRAVE = frozenset({"warning", "error", "unmatched"})


@dataclass(frozen=True, slots=True)
class Finding:
    """What is said of a divergence before it is written down."""

    position: int
    cause: CauseKind
    explanation: str
    leaf: str = ""
    decision: Decision | None = None


class Locator:
    """Explains divergences of one pair of dumps.

    Parameters
    ----------
    target, golden, alignment, comparer
        What the comparison was made from.
    """

    def __init__(self, target: DumpSide, golden: DumpSide, alignment: Alignment, comparer: RecordComparer) -> None:
        self._target = target
        self._golden = golden
        self._alignment = alignment
        self._comparer = comparer
        self._target_places = _places(alignment.target, len(target))
        self._golden_places = _places(alignment.golden, len(golden))

    def explain(self, position: int, step: str, rank: str) -> Divergence:
        """Return the divergence that shows first in the record at a place of the alignment."""
        row = self._row(position)
        finding = self._finding(row)
        found = row if finding.position == position else self._row(finding.position)
        chain = self._chain(position)
        if finding.position != position:
            link = ChainLink(found.target, found.golden, found.module, found.verdict, found.worst.number)
            chain = [
                *[other for other in chain if other.target != link.target or other.golden != link.golden][:-1],
                link,
                chain[-1],
            ]
        return Divergence(
            step=step,
            rank=rank,
            position=finding.position,
            record=found.target,
            golden_record=found.golden,
            leaf=finding.leaf,
            cause=finding.cause,
            explanation=finding.explanation,
            module=found.module,
            parent=found.parent,
            call_site=found.call_site,
            stack=found.stack,
            decision=finding.decision or found.worst,
            chain=tuple(chain),
            fx=found.fx,
        )

    def _row(self, position: int) -> RecordRow:
        alignment = self._alignment
        return self._comparer.compare(
            position,
            alignment.target[position],
            alignment.golden[position],
            replaced=position in alignment.replaced,
            moved=position in alignment.moved,
        )

    def _finding(self, row: RecordRow) -> Finding:
        if row.golden is None:
            return _extra_nonfinite(row)
        bad = [leaf for leaf in row.leaves if leaf.decision.verdict in _GRAVE]
        inputs = [leaf for leaf in bad if _section(leaf) == INPUT]
        parameters = [leaf for leaf in bad if _section(leaf) == PARAMETERS]
        if not inputs:
            return self._own_fault(row, bad, parameters)
        return self._inherited(row, inputs, bad)

    def _own_fault(self, row: RecordRow, bad: Sequence[LeafRow], parameters: Sequence[LeafRow]) -> Finding:
        """The inputs of the record agree."""
        kind, golden_kind = kind_of(row.target or ""), kind_of(row.golden or "")
        one_sided = all(leaf.target is None or leaf.golden is None for leaf in parameters)
        if one_sided and _is_another_class(kind, golden_kind):
            leaf = _gravest([leaf for leaf in bad if leaf not in parameters] or bad)
            text = f"{row.module} is a {kind.cls} where golden has a {golden_kind.cls}; the inputs agree, {leaf.name} "
            return _finding(row, "operation differs", leaf, f"{text}differs{_by(leaf)}.")
        if parameters:
            leaf = _gravest(parameters)
            name = f"{row.module}.{leaf.name.partition('.')[2]}".strip(".")
            return _finding(
                row, "a parameter differs", leaf, f"The parameter {name} differs{_by(leaf)}; the inputs agree."
            )
        leaf = _gravest(bad)
        if kind.operation != golden_kind.operation:
            text = (
                f"{row.target} runs where golden runs {row.golden}; the inputs agree, {leaf.name} differs{_by(leaf)}."
            )
            return _finding(row, "operation differs", leaf, text)
        if kind.is_communication:
            text = f"{row.target} returns something else although this rank sent the same: look at the other ranks."
            return _finding(row, "received from another rank", leaf, text)
        text = f"The inputs of {row.target} agree, {leaf.name} differs{_by(leaf)}.{_hint(kind, leaf)}"
        if kind.direction == "parameters_grad":
            text = f"The gradient {leaf.name} of {row.module} differs{_by(leaf)}; no record before it differs."
        return _finding(row, "outputs differ from equal inputs", leaf, text)

    def _inherited(self, row: RecordRow, inputs: Sequence[LeafRow], bad: Sequence[LeafRow]) -> Finding:
        """Inputs of the record differ, although no earlier record does."""
        scalar = next((leaf for leaf in inputs if leaf.target is not None and leaf.target.kind != "tensor"), None)
        leaf = _gravest(inputs)
        if scalar is not None and len(inputs) == 1:
            text = f"The argument {scalar.name} of {row.target} differs: {scalar.decision.message}."
            return _finding(row, "an argument differs", scalar, text)
        if _is_permutation(row, inputs):
            places = ", ".join(one.name for one in inputs)
            text = f"{row.target} gets the arguments of {row.golden} in another order ({places})."
            return _finding(row, "arguments in another order", leaf, text)
        parameter = self._parameter(row, inputs)
        if parameter is not None:
            return parameter
        by_origin = self._by_origin(row, leaf)
        if by_origin is not None:
            return by_origin
        return self._from_outside(row, leaf)

    def _from_outside(self, row: RecordRow, leaf: LeafRow) -> Finding:
        """No record of the capture made the input: say where it comes in."""
        inside = self._maker(row.parent, leaf.target)
        origin = "it comes from outside the capture"
        if inside:
            origin = f"it is made inside {inside} by code that is not recorded"
        text = f"{leaf.name} of {row.target} differs{_by(leaf)}, and no earlier record made it: {origin}."
        return _finding(row, "an input from outside the capture differs", leaf, text)

    def _maker(self, parent: str, entry: Entry | None) -> str:
        """Return the innermost enclosing module that does not itself get the value; empty if all of them do."""
        print_ = fingerprint(entry) if entry is not None else None
        while parent:
            number = _find(self._target, parent)
            if number < 0:
                return ""
            _, record = self._target.index.record(number)
            if print_ not in {fingerprint(given) for given in tensors_of(record, INPUT)}:
                return parent
            parent = self._target.surroundings(parent)[0]
        return ""

    def _parameter(self, row: RecordRow, inputs: Sequence[LeafRow]) -> Finding | None:
        """Tell whether what differs is a parameter: of the enclosing module, or at the place where APIs take them."""
        kind = kind_of(row.target or "")
        named = self._parameters_of(row.parent)
        places = {f"input.{place}" for place in api_table().parameters.get(kind.operation, ())} | {
            "input.weight",
            "input.bias",
        }
        for leaf in sorted(inputs, key=lambda leaf: leaf.name):
            entry = leaf.target
            if entry is None or entry.kind != "tensor" or kind.direction != "forward":
                continue
            name = named.get(fingerprint(entry) or ())
            if (
                name is None
                and not kind.is_module
                and leaf.name in places
                and self._origin(row, entry, golden=False) is None
            ):
                name = f"{leaf.name} of {row.target}"
            if name is not None:
                return _finding(row, "a parameter differs", leaf, f"The parameter {name} differs{_by(leaf)}.")
        return None

    def _parameters_of(self, parent: str) -> dict[Fingerprint, str]:
        """Fingerprints of a module's own parameters -> their names; the module's record comes after what runs in it."""
        number = _find(self._target, parent) if parent else -1
        if number < 0:
            return {}
        _, record = self._target.index.record(number)
        path = kind_of(parent).operation
        named: dict[Fingerprint, str] = {}
        for leaf in leaves_of(record):
            print_ = fingerprint(entry_of(leaf.raw)) if leaf.section == PARAMETERS else None
            if print_ is not None:
                named[print_] = f"{path}.{leaf.name.partition('.')[2]}"
        return named

    def _by_origin(self, row: RecordRow, leaf: LeafRow) -> Finding | None:
        """Ask what made the input on either side."""
        if leaf.target is None or leaf.golden is None:
            return None
        ours, theirs = self._origin(row, leaf.target, golden=False), self._origin(row, leaf.golden, golden=True)
        place = self._target_places[ours.number] if ours else None
        golden_place = self._golden_places[theirs.number] if theirs else None
        extra = place is not None and self._alignment.golden[place] < 0
        missing = golden_place is not None and self._alignment.target[golden_place] < 0
        what = f"{leaf.name} of {row.target} differs{_by(leaf)}"
        found: Finding | None = None
        if missing and theirs and golden_place is not None:
            instead = f"what {ours.name} made" if ours else "something no record made"
            text = f"{theirs.name} of golden has no counterpart: {what}, since it is {instead}."
            found = Finding(golden_place, "a missing call", text, leaf.name, leaf.decision)
        elif extra and ours and place is not None:
            text = f"{ours.name} has no counterpart in golden: {what}, which that call made."
            found = Finding(place, "an extra call", text, leaf.name, leaf.decision)
        elif ours and theirs and (place, ours.leaf) != (golden_place, theirs.leaf):
            other = theirs.leaf if place == golden_place else f"what {theirs.name} made"
            text = f"{what}: it is {ours.leaf} of {ours.name}; golden takes {other}."
            found = _finding(row, "an input comes from another record", leaf, text)
        elif ours:
            text = f"{what}. It was made by {ours.name}, where the difference was still below the limit."
            found = _finding(row, "a difference that has grown", leaf, text)
        return found

    def _origin(self, row: RecordRow, entry: Entry, *, golden: bool) -> Producer | None:
        side, numbers = (self._golden, self._alignment.golden) if golden else (self._target, self._alignment.target)
        print_ = fingerprint(entry)
        if print_ is None:
            return None
        return find_producers(side, numbers[row.position], {print_}).get(print_)

    def _chain(self, position: int) -> list[ChainLink]:
        """Follow the worst input back from producer to producer; the earliest first."""
        links: list[ChainLink] = []
        place: int | None = position
        hands_on = ""
        while place is not None and len(links) < _LONGEST_CHAIN:
            row = self._row(place)
            links.append(ChainLink(row.target, row.golden, row.module, row.verdict, row.worst.number, hands_on))
            if self._alignment.target[place] < 0:
                break
            candidates = [leaf for leaf in row.leaves if _section(leaf) == INPUT and leaf.target is not None]
            candidates.sort(key=lambda leaf: -(leaf.decision.number or 0.0) - (leaf.decision.verdict in _GRAVE))
            place = None
            for leaf in candidates[:3]:
                producer = self._origin(row, leaf.target, golden=False) if leaf.target else None
                if producer is not None:
                    place, hands_on = self._target_places[producer.number], producer.leaf
                    break
        return links[::-1]


def _is_another_class(kind: Kind, golden: Kind) -> bool:
    """Tell whether a module was replaced. Frameworks name classes differently, and wrappers (FSDPLinear) longer."""
    if not kind.is_module or kind.base.partition(".")[0] != golden.base.partition(".")[0]:
        return False
    return not (kind.cls.endswith(golden.cls) or golden.cls.endswith(kind.cls))


def _places(numbers: Sequence[int], count: int) -> array[int]:
    """Record number -> its place in the alignment. Records with a tag have none, and no one asks for it."""
    places = array("q", [0]) * count
    for place, number in enumerate(numbers):
        if number >= 0:
            places[number] = place
    return places


def _finding(row: RecordRow, cause: CauseKind, leaf: LeafRow, text: str) -> Finding:
    return Finding(row.position, cause, text, leaf.name, leaf.decision)


def _extra_nonfinite(row: RecordRow) -> Finding:
    leaf = next(
        (leaf for leaf in row.leaves if _section(leaf) == OUTPUT and leaf.target and has_nonfinite(leaf.target)), None
    )
    name = "" if leaf is None else leaf.name
    what = f"its {name or 'output'} holds NaN or infinity although its inputs are finite"
    text = f"{row.target} has no counterpart in golden, and {what}."
    decision = Decision("error", "non-finite elements", None, 0.0, "exact", "an extra call with a non-finite output")
    return Finding(row.position, "an extra call with a non-finite output", text, name, decision)


def is_nonfinite_source(row: RecordRow) -> bool:
    """Tell whether an unmatched record makes NaN or infinity out of finite inputs.

    Infinities are no fault where masks are made, or where the caller gave one as an argument.
    """
    outputs = [leaf.target for leaf in row.leaves if _section(leaf) == OUTPUT and leaf.target is not None]
    bad = [entry for entry in outputs if has_nonfinite(entry)]
    inputs = [leaf.target for leaf in row.leaves if _section(leaf) != OUTPUT and leaf.target is not None]
    if not bad or any(has_nonfinite(entry) for entry in inputs):
        return False
    kind = kind_of(row.target or "")
    if kind.is_uninitialised:
        return False
    if kind.is_module or kind.operation not in api_table().masks:
        return True
    return any(is_nan(entry.norm) or is_nan(entry.largest) or entry.nan for entry in bad)


def has_nonfinite(entry: Entry) -> bool:
    """Tell whether a value holds NaN or infinity."""
    if entry.kind == "scalar":
        return isinstance(entry.value, float) and not math.isfinite(entry.value)
    numbers = (entry.largest, entry.smallest)
    return bool(entry.nan or entry.inf) or any(n is not None and not math.isfinite(n) for n in numbers)


def _section(leaf: LeafRow) -> str:
    head = leaf.name.partition(".")[0]
    return head if head in {INPUT, PARAMETERS} else OUTPUT


def _gravest(leaves: Sequence[LeafRow]) -> LeafRow:
    return max(leaves, key=lambda leaf: (leaf.decision.verdict == "error", leaf.decision.number or 0.0))


def _by(leaf: LeafRow) -> str:
    decision = leaf.decision
    if decision.number is None or decision.threshold is None:
        return f" ({decision.message})" if decision.message else ""
    detail = f"; {decision.message}" if decision.message else ""
    return f" ({decision.measure} {decision.number:.3g}, limit {decision.threshold:.3g} {decision.source}{detail})"


def _hint(kind: Kind, leaf: LeafRow) -> str:
    if kind.is_random:
        return " It draws random numbers: seed both runs alike."
    if (
        leaf.target is not None
        and leaf.golden is not None
        and has_nonfinite(leaf.target)
        and not has_nonfinite(leaf.golden)
    ):
        return " NaN or infinity begins here."
    return ""


def _is_permutation(row: RecordRow, inputs: Sequence[LeafRow]) -> bool:
    """Tell whether the differing inputs are those of golden at other places."""
    pairs = [(leaf.target, leaf.golden) for leaf in inputs]
    ours = [t for t, g in pairs if t is not None and g is not None and t.kind == "tensor" == g.kind]
    theirs = [g for t, g in pairs if t is not None and g is not None and t.kind == "tensor" == g.kind]
    if len(ours) < 2 or len(ours) != len(pairs):
        return False
    left = list(theirs)
    for entry in ours:
        partner = next((g for g in left if _same(entry, g)), None)
        if partner is None:
            return False
        left.remove(partner)
    return True


def _same(target: Entry, golden: Entry) -> bool:
    if target.checksum is not None and golden.checksum is not None:
        return target.checksum == golden.checksum
    return target.shape == golden.shape and target.dtype == golden.dtype and statistics_number(target, golden)[1] < 1e-4


def _find(side: DumpSide, name: str) -> int:
    """Number of the last record of a name; -1 without one."""
    wanted = hash(name.encode("utf-8", "surrogatepass"))
    hashes = side.index.name_hashes
    for number in range(len(hashes) - 1, -1, -1):
        if hashes[number] == wanted and side.index.name(number) == name:
            return number
    return -1
