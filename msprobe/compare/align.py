"""Which record of the target is which record of golden.

Dumps with the same names in the same order are paired as they stand. Otherwise forward records are aligned as a
sequence of calls, by what they do, in which module, on which shapes, from which line of code; backward records follow
their forward records, and gradients of parameters follow their modules. Records with a tag (``#recompute``) are left
out.
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from msprobe.compare.dump_side import DumpSide, site_key
from msprobe.compare.kinds import Kind, Renaming, kind_of
from msprobe.compare.sequences import Gap, align_levels
from msprobe.store.members import name_of

#: Moved calls are looked for this many records around their place.
_WINDOW = 500
_SHAPE = re.compile(rb'"shape":\[([^\]]*)\]')


@dataclass(frozen=True, slots=True)
class Options:
    """How to align.

    Attributes
    ----------
    renaming
        From ``--map``.
    fuzzy
        Pair what is left by the operation alone, whatever its module and shapes.
    """

    renaming: Renaming
    fuzzy: bool = False


@dataclass(frozen=True, slots=True)
class Alignment:
    """Pairs in execution order.

    Attributes
    ----------
    target, golden
        Record numbers; -1 where that side has none.
    replaced
        Places in these lists where another operation stands for the call.
    moved
        Places where a call has another place in the order.
    tagged
        Records that were left out for their tag, on either side.
    partial_sums
        Gradients of parameters that were left out, on either side: the other side has them after all are added up.
    """

    target: Sequence[int]
    golden: Sequence[int]
    replaced: frozenset[int] = frozenset()
    moved: frozenset[int] = frozenset()
    tagged: tuple[int, int] = (0, 0)
    partial_sums: tuple[int, int] = (0, 0)


IN_SEQUENCE, BACKWARD, PARAMETERS_GRAD = 0, 1, 2
_DIRECTIONS = {"backward": BACKWARD, "parameters_grad": PARAMETERS_GRAD}


def _column() -> array[int]:
    return array("q")


@dataclass(frozen=True, slots=True)
class _Calls:
    """What alignment needs to know of the records of one side, by columns: 70 bytes a record.

    Attributes
    ----------
    numbers
        In the file.
    directions
        How they are aligned.
    ids
        Hash of base and index: the same for a forward record and its backward record.
    places
        Hash of where a call runs and what shapes it makes, which it has in common with a call that replaces it; 0 if
        that is unknown.
    keys
        Hashes of what a record is, from strict to weak; the last one, operation alone, is for ``--fuzzy``.
    """

    numbers: array[int] = field(default_factory=_column)
    directions: bytearray = field(default_factory=bytearray)
    ids: array[int] = field(default_factory=_column)
    places: array[int] = field(default_factory=_column)
    keys: tuple[array[int], ...] = field(default_factory=lambda: tuple([array("q") for _ in range(5)]))

    def __len__(self) -> int:
        return len(self.numbers)

    def add(self, number: int, kind: Kind, context: str, shapes: tuple[tuple[bytes, ...], ...], site: str) -> None:
        """Append one record; ``shapes`` are those of inputs and outputs."""
        ins, outs = shapes
        head = (kind.operation, kind.is_module, kind.direction)
        self.numbers.append(number)
        self.directions.append(_DIRECTIONS.get(kind.direction, IN_SEQUENCE))
        base = kind.operation if kind.direction == "parameters_grad" else kind.base
        self.ids.append(hash((base, kind.index)))
        self.places.append(hash((kind.is_module, kind.direction, context, outs)) if any(outs) else 0)
        in_module = hash((head, context))
        exact = hash((head, context, ins, outs))
        self.keys[0].append(hash((exact, site)))
        self.keys[1].append(exact)
        self.keys[2].append(in_module)
        self.keys[3].append(in_module if kind.is_module else hash((head, outs)))
        self.keys[4].append(hash((kind.operation.rpartition(".")[2], kind.direction)))

    def rows(self, direction: int) -> array[int]:
        """Return the rows of one direction."""
        return array("q", [row for row, found in enumerate(self.directions) if found == direction])

    def by_module(self, direction: int) -> dict[int, list[int]]:
        """Return the rows of one direction by the operation or module that they are of."""
        found: dict[int, list[int]] = defaultdict(list)
        for row in self.rows(direction):
            found[self.keys[2][row]].append(row)
        return found

    def levels(self, rows: Sequence[int], *, fuzzy: bool) -> list[array[int]]:
        """Return the keys of some rows, a column per level."""
        return [array("q", [keys[row] for row in rows]) for keys in self.keys[: 5 if fuzzy else 4]]


def align(target: DumpSide, golden: DumpSide, options: Options) -> Alignment:
    """Pair the records of two dumps.

    Returns
    -------
    Alignment
        Every record without a tag is in it exactly once, but for partial sums of gradients.
    """
    if target.index.name_hashes == golden.index.name_hashes and not options.renaming:
        return _as_they_stand(target)
    contexts = target.has_parents and golden.has_parents
    sites = target.has_stacks and golden.has_stacks
    ours, tagged_target = _calls(target, None, contexts=contexts, sites=sites)
    theirs, tagged_golden = _calls(golden, options.renaming, contexts=contexts, sites=sites)
    matching = _Matching(ours, theirs)
    gathered = max(target.rank_count, golden.rank_count) > 1
    matching.match(fuzzy=options.fuzzy, sums_last=gathered)
    rows, partners = matching.in_order()
    return Alignment(
        target=array("q", [-1 if row < 0 else ours.numbers[row] for row in rows]),
        golden=array("q", [-1 if row < 0 else theirs.numbers[row] for row in partners]),
        replaced=frozenset(place for place, row in enumerate(rows) if row in matching.replaced),
        moved=frozenset(place for place, row in enumerate(rows) if row in matching.moved),
        tagged=(tagged_target, tagged_golden),
        partial_sums=matching.partial_sums,
    )


def _as_they_stand(side: DumpSide) -> Alignment:
    plain = array("q", [number for number in range(len(side)) if "#" not in side.index.name(number)])
    tagged = len(side) - len(plain)
    return Alignment(plain, plain, tagged=(tagged, tagged))


def _calls(side: DumpSide, renaming: Renaming | None, *, contexts: bool, sites: bool) -> tuple[_Calls, int]:
    """Return the calls of one side, and how many records have a tag."""
    calls = _Calls()
    tagged = 0
    for number in range(len(side)):
        member = side.index.raw(number)
        name = name_of(member)
        kind = kind_of(name)
        if kind.tag:
            tagged += 1
            continue
        context = side.surroundings(name)[1] if contexts and not kind.is_module else ""
        if renaming:
            context, operation = renaming.module(context), renaming.operation(kind)
            kind = kind if operation == kind.operation else replace(kind, operation=operation)
        calls.add(number, kind, context, _shapes(member), site_key(side.stack(name)) if sites else "")
    return calls, tagged


def _shapes(member: bytes) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Return the shapes of the tensors that go in, and of those that come out, as texts such as ``2,3``.

    Decoding a record takes ten times as long. Parameters are left out: only module records have them.
    """
    text = member.translate(None, b" \r\n\t")
    out = text.rfind(b'"output":')
    if out < 0:
        return (), tuple(_SHAPE.findall(text))
    parameters = text.find(b'"parameters":', 0, out)
    return tuple(_SHAPE.findall(text, 0, out if parameters < 0 else parameters)), tuple(_SHAPE.findall(text, out))


class _Matching:
    """Finds the partners of the calls of two sides.

    Attributes
    ----------
    partner
        Row of golden for each row of target; -1 without one.
    replaced, moved
        Rows of target, see `Alignment`.
    """

    def __init__(self, target: _Calls, golden: _Calls) -> None:
        self._target = target
        self._golden = golden
        self.partner = array("q", [-1]) * len(target)
        self._taken = bytearray(len(golden))
        self.replaced: set[int] = set()
        self.moved: set[int] = set()
        self._partial: tuple[set[int], set[int]] = set(), set()

    @property
    def partial_sums(self) -> tuple[int, int]:
        """How many gradients of either side are left out, since the other side has them added up."""
        return len(self._partial[0]), len(self._partial[1])

    def match(self, *, fuzzy: bool, sums_last: bool) -> None:
        """Find them.

        ``sums_last``: where one side has fewer gradients of a parameter, they are the last ones. FSDP2 reduces them
        after several micro-batches, when they have been added up.
        """
        forward = self._target.rows(IN_SEQUENCE), self._golden.rows(IN_SEQUENCE)
        for gap in self._align(*forward, fuzzy=fuzzy):
            self._match_replaced(gap, *forward)
        self._match_moved(*forward)
        self._follow_forward()
        self._match_gradients(sums_last=sums_last)
        alone = _without_forward(self._target, self._is_free), _without_forward(self._golden, self._is_left)
        if alone[0] and alone[1]:
            self._align(*alone, fuzzy=fuzzy)

    def in_order(self) -> tuple[array[int], array[int]]:
        """Return rows of target and golden in the order of target; -1 where a side has none.

        What only golden has stands before the next pair that comes after it.
        """
        rows, partners = array("q"), array("q")
        alone = iter([row for row, taken in enumerate(self._taken) if not taken and row not in self._partial[1]])
        waiting = next(alone, None)
        for row, partner in enumerate(self.partner):
            while waiting is not None and partner > waiting:
                rows.append(-1)
                partners.append(waiting)
                waiting = next(alone, None)
            if row not in self._partial[0]:
                rows.append(row)
                partners.append(partner)
        while waiting is not None:
            rows.append(-1)
            partners.append(waiting)
            waiting = next(alone, None)
        return rows, partners

    def _pair(self, row: int, partner: int) -> None:
        self.partner[row] = partner
        self._taken[partner] = 1

    def _is_free(self, row: int) -> bool:
        return self.partner[row] < 0

    def _is_left(self, row: int) -> bool:
        return not self._taken[row]

    def _align(self, rows: Sequence[int], partners: Sequence[int], *, fuzzy: bool) -> list[Gap]:
        """Align some rows of both sides by their order; return what is left between them."""
        levels = self._target.levels(rows, fuzzy=fuzzy), self._golden.levels(partners, fuzzy=fuzzy)
        pairs, gaps = align_levels(*levels)
        for place, other in pairs:
            self._pair(rows[place], partners[other])
        return gaps

    def _match_replaced(self, gap: Gap, rows: Sequence[int], partners: Sequence[int]) -> None:
        """Pair calls of one gap that stand in the same place and make the same shapes, the last ones first.

        The last call of a replaced stretch (an attention implementation, a fused operation) makes what both go on with.
        """
        spots: dict[int, list[int]] = defaultdict(list)
        for other in range(gap.golden, gap.golden_end):
            spots[self._golden.places[partners[other]]].append(other)
        end = gap.golden_end
        for place in range(gap.target_end - 1, gap.target - 1, -1):
            spot = self._target.places[rows[place]]
            free = spots.get(spot, []) if spot else []
            while free and free[-1] >= end:
                free.pop()
            if free:
                end = free.pop()
                self._pair(rows[place], partners[end])
                self.replaced.add(rows[place])

    def _match_moved(self, rows: Sequence[int], partners: Sequence[int]) -> None:
        """Pair what is left over with the same call at another place nearby."""
        strict, exact = self._golden.keys[0], self._golden.keys[1]
        left: dict[int, list[int]] = defaultdict(list)
        for place, row in enumerate(partners):
            if self._is_left(row):
                left[exact[row]].append(place)
        for place, row in enumerate(rows):
            waiting = left.get(self._target.keys[1][row]) if self._is_free(row) else None
            near = [other for other in waiting or () if abs(other - place) <= _WINDOW]
            if near and waiting:
                site = self._target.keys[0][row]
                best = min(near, key=lambda other: (strict[partners[other]] != site, abs(other - place)))
                waiting.remove(best)
                self._pair(row, partners[best])
                self.moved.add(row)

    def _follow_forward(self) -> None:
        """Pair backward records as their forward records are."""
        target, golden = self._target, self._golden
        backward = {golden.ids[row]: row for row in golden.rows(BACKWARD)}
        other_id = {
            target.ids[row]: golden.ids[self.partner[row]] for row in target.rows(IN_SEQUENCE) if self.partner[row] >= 0
        }
        replaced = {target.ids[row] for row in self.replaced}
        for row in target.rows(BACKWARD):
            partner = backward.get(other_id.get(target.ids[row], 0))
            if partner is not None:
                self._pair(row, partner)
                if target.ids[row] in replaced:
                    self.replaced.add(row)

    def _match_gradients(self, *, sums_last: bool) -> None:
        """Pair gradients of parameters by module and count."""
        target, golden = self._target, self._golden
        if sums_last:
            ours, theirs = target.by_module(PARAMETERS_GRAD), golden.by_module(PARAMETERS_GRAD)
            for module in ours.keys() & theirs.keys():
                count = min(len(ours[module]), len(theirs[module]))
                for row, other in zip(ours[module][-count:], theirs[module][-count:], strict=True):
                    self._pair(row, other)
                self._partial[0].update(ours[module][:-count])
                self._partial[1].update(theirs[module][:-count])
            return
        gradients = {golden.ids[row]: row for row in golden.rows(PARAMETERS_GRAD)}
        for row in target.rows(PARAMETERS_GRAD):
            partner = gradients.get(target.ids[row])
            if partner is not None:
                self._pair(row, partner)


def _without_forward(calls: _Calls, is_free: Callable[[int], bool]) -> array[int]:
    """Return backward records whose forward record is not in the dump, so that nothing says whose partners they are."""
    known = {calls.ids[row] for row in calls.rows(IN_SEQUENCE)}
    return array("q", [row for row in calls.rows(BACKWARD) if is_free(row) and calls.ids[row] not in known])
