"""Stages of a pipeline as one dump, in the order in which one process would run them.

Each rank counts its own calls: ``Functional.linear.0`` is another call on every stage. Put together, forward records
stand micro-batch by micro-batch, within it stage by stage, and every call is numbered anew in this order, as in a run
of the whole model with the same micro-batches. Backward records follow their forward records.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msprobe.compare.dump_side import DumpSide
from msprobe.compare.gather_index import GatheredIndex
from msprobe.compare.gather_microbatches import BACKWARD_PHASE, call_id, micro_batches, models_in, split_model
from msprobe.compare.rows import GatherRule
from msprobe.core.names import PARAMETERS_GRAD, RecordName, parse_name
from msprobe.store.json_bytes import dumps_json
from msprobe.store.members import DumpHead, body_of


@dataclass(frozen=True, slots=True)
class SideLayout:
    """Dump files of the ranks of one side, in their order, and how many stages of a pipeline they are."""

    files: Sequence[Path]
    stages: int = 1


def gathered_sides(target: SideLayout, golden: SideLayout, rule: GatherRule) -> tuple[DumpSide, DumpSide]:
    """Put the ranks of both sides together.

    Parameters
    ----------
    target, golden
        The number of ranks must be a multiple of that of stages.
    rule
        What tensors without placements are, among the ranks of one stage.
    """
    ours, theirs = _stages(target, rule), _stages(golden, rule)
    return _side(ours, _other_models(ours, theirs)), _side(theirs, _other_models(theirs, ours))


def _stages(layout: SideLayout, rule: GatherRule) -> list[DumpSide]:
    count, each = layout.stages, len(layout.files) // layout.stages
    found = []
    for number in range(count):
        files = layout.files[number * each : (number + 1) * each]
        name = f"pipeline {number + 1} of {count}" if count > 1 else ""
        found.append(DumpSide(files[0], GatheredIndex(files, rule, stage=name)))
    return found


def _side(stages: Sequence[DumpSide], other_models: int) -> DumpSide:
    if len(stages) == 1:
        return stages[0]
    return StagedSide(stages, numbered=sum(models_in(stage) for stage in stages) == other_models)


def _other_models(own: Sequence[DumpSide], other: Sequence[DumpSide]) -> int:
    """Return how many models a list on the other side has; 0 if nobody asks, or both sides are pipelines."""
    return models_in(other[0]) if len(own) > 1 and len(other) == 1 else 0


class StagedSide(DumpSide):
    """The stages of a pipeline as one side of a comparison.

    Parameters
    ----------
    stages
        What each stage has recorded, in the order of the stages. Ranks whose models were given to ``start()`` as a
        list have several each: the first models of all ranks come before their second ones.
    numbered
        Name modules with the number of their stage, ``Module.3.path``, as a process does that has all stages as a list.
    """

    def __init__(self, stages: Sequence[DumpSide], *, numbered: bool) -> None:
        self._sides = stages
        self._staged = StagedIndex(stages, numbered=numbered)
        super().__init__(stages[0].index.head.path, self._staged)

    @property
    def stages(self) -> Sequence[DumpSide]:
        """The stages."""
        return self._sides

    @property
    def rank_count(self) -> int:
        """How many ranks share a stage."""
        return self._sides[0].rank_count

    @property
    def has_parents(self) -> bool:
        """Whether anything is known about what encloses the records."""
        return any(side.has_parents for side in self._sides)

    @property
    def has_stacks(self) -> bool:
        """Whether any call stack is known."""
        return any(side.has_stacks for side in self._sides)

    def surroundings(self, name: str) -> tuple[str, str]:
        """Return the enclosing record's name and the path of the module that a record is or runs in."""
        stage, written = self._staged.written_on(name)
        parent, module = self._sides[stage].surroundings(written)
        return self._staged.renamed(stage, parent), self._staged.path(stage, module)

    def stack(self, name: str) -> tuple[str, ...]:
        """Return the frames of a record, innermost first, or those of the forward call of a backward record."""
        stage, written = self._staged.written_on(name)
        return self._sides[stage].stack(written)


class StagedIndex:
    """What `msprobe.compare.gather_index.GatheredIndex` is to the ranks of one stage, for all stages.

    Parameters
    ----------
    sides, numbered
        See `StagedSide`.

    Attributes
    ----------
    head : DumpHead
        Of the first stage.
    complete : bool
        Whether every file is.
    name_hashes : array of int
        Hash of each record's name.
    """

    def __init__(self, sides: Sequence[DumpSide], *, numbered: bool) -> None:
        self._sides = sides
        self._numbered = numbered
        self._lists = [models_in(side) > 1 for side in sides]
        self.head: DumpHead = sides[0].index.head
        self.complete: bool = all(side.index.complete for side in sides)
        self.name_hashes = array("q")
        self._groups, self._places = array("i"), array("q")
        self._indices: dict[tuple[Any, ...], int] = {}
        self._numbers: dict[int, int] = {}
        self._collect()

    def __len__(self) -> int:
        return len(self.name_hashes)

    def close(self) -> None:
        """Close the files."""
        for side in self._sides:
            side.close()

    def name(self, number: int) -> str:
        """Return the name of a record."""
        group = self._groups[number]
        return self.renamed(group, self._sides[group].index.name(self._places[number]))

    def raw(self, number: int) -> bytes:
        """Return the bytes of a record, ``"name":{...}``."""
        group = self._groups[number]
        member = self._sides[group].index.raw(self._places[number])
        return dumps_json(self.name(number)) + b":" + body_of(member)

    def record(self, number: int) -> tuple[str, Any]:
        """Return name and content of a record."""
        group = self._groups[number]
        name, content = self._sides[group].index.record(self._places[number])
        return self.renamed(group, name), content

    def written_on(self, name: str) -> tuple[int, str]:
        """Return the stage that a record is of, and its name there; the first stage for a name that no record has."""
        number = self._numbers.get(hash(name.encode()))
        if number is None:
            return 0, name
        group = self._groups[number]
        return group, self._sides[group].index.name(self._places[number])

    def renamed(self, group: int, name: str) -> str:
        """Return what a record of a stage is called among those of all stages."""
        parsed = parse_name(name)
        if parsed is None:
            return name
        path = self.path(group, parsed.path) if parsed.is_module else parsed.path
        return str(replace(parsed, path=path, index=self._indices.get((group, *call_id(parsed)), parsed.index)))

    def path(self, group: int, path: str) -> str:
        """Return what a module path of a stage is among those of all stages."""
        if not path:
            return path
        model, inner = split_model(path) if self._lists[group] else (0, path)
        return f"{model * len(self._sides) + group}.{inner}" if self._numbered else inner

    def _collect(self) -> None:
        """Sort the records of all stages, and number their calls."""
        places = []
        for group, side in enumerate(self._sides):
            for number, place in enumerate(micro_batches(side)):
                stage = place.model * len(self._sides) + group
                # A backward pass runs through the stages from the last to the first.
                order = -stage if place.phase == BACKWARD_PHASE else stage
                places.append((place.phase, place.micro_batch, order, number, group))
        places.sort()
        counters: Counter[str] = Counter()
        for *_, number, group in places:
            name = self._sides[group].index.name(number)
            parsed = parse_name(name)
            if parsed is not None:
                self._count(group, parsed, counters)
            self._groups.append(group)
            self._places.append(number)
            found = hash(self.renamed(group, name).encode())
            self._numbers[found] = len(self.name_hashes)
            self.name_hashes.append(found)

    def _count(self, group: int, parsed: RecordName, counters: Counter[str]) -> None:
        """Number a call when its first record comes by, which is the forward one if it was recorded."""
        call = (group, *call_id(parsed))
        if call not in self._indices:
            path = self.path(group, parsed.path) if parsed.is_module else parsed.path
            base = f"{parsed.prefix}.{path}.{parsed.cls}.{parsed.direction == PARAMETERS_GRAD}"
            self._indices[call] = counters[base]
            counters[base] += 1
