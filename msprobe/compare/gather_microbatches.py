"""Which micro-batch of a pipeline each record of a stage belongs to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from msprobe.compare.dump_side import DumpSide
from msprobe.core.names import FORWARD, PARAMETERS_GRAD, RecordName, parse_name

FORWARD_PHASE, BACKWARD_PHASE, AFTERWARDS = range(3)
_OF_A_LIST = re.compile(r"(\d+)\.(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class StagePlace:
    """Where a record of one stage belongs: phase, micro-batch, and which model of a list it is of."""

    phase: int
    micro_batch: int = 0
    model: int = 0


def call_id(name: RecordName) -> tuple[str, str, str, int, bool]:
    """Return what all records of a call have in common; gradients of parameters are counted by themselves."""
    return name.prefix, name.path, name.cls, name.index, name.direction == PARAMETERS_GRAD


def split_model(path: str) -> tuple[int, str]:
    """Return which model of a list a module path is of, and its path in it."""
    match = _OF_A_LIST.fullmatch(path)
    return (0, path) if match is None else (int(match.group(1)), match.group(2))


def models_in(side: DumpSide) -> int:
    """Return how many models ``start()`` was given as a list; 1 for a single one.

    Modules of a list are called ``Module.0.path``, and the models themselves have no record: what no module encloses
    has a number and a path. In an ``nn.Sequential`` it has a number only.
    """
    found = set()
    for number in range(len(side)):
        name = side.index.name(number)
        parsed = parse_name(name)
        if parsed is None or not parsed.is_module or parsed.direction != FORWARD or side.surroundings(name)[0]:
            continue
        match = _OF_A_LIST.fullmatch(parsed.path)
        if match is None:
            return 1
        found.add(int(match.group(1)))
    return len(found) if found and max(found) + 1 == len(found) else 1


def micro_batches(side: DumpSide) -> list[StagePlace]:
    """Return where the records of a stage belong, in the order of the file.

    A module that no other one encloses is called once or several times for each micro-batch; which call it is tells
    the micro-batch. Calls outside all modules belong to those around them: as many stand before the first module of a
    micro-batch as before the first module of all. What comes after the last backward pass (the optimiser) comes after
    everything.
    """
    names = [side.index.name(number) for number in range(len(side))]
    parsed = [parse_name(name) for name in names]
    forward = [name is None or (name.direction == FORWARD and not name.tag) for name in parsed]
    tops = _outermost(side, [name if is_forward else "" for name, is_forward in zip(names, forward, strict=True)])
    calls = _OutermostCalls(tops, is_list=models_in(side) > 1)
    walk = _Walk()
    for number, is_forward in enumerate(forward):
        if is_forward:
            top = tops[number]
            walk.forward(number, None if top is None else calls.place(top))
        else:
            walk.backward()
    walk.finish()
    return _with_backward(parsed, walk.places, calls)


def _outermost(side: DumpSide, names: Sequence[str]) -> list[RecordName | None]:
    """Return the outermost module call that each record is or runs in; None outside all modules."""
    known: dict[str, RecordName | None] = {"": None}

    def top(name: str) -> RecordName | None:
        if name not in known:
            parsed = parse_name(name)
            above = top(side.surroundings(name)[0])
            known[name] = above or (parsed if parsed is not None and parsed.is_module else None)
        return known[name]

    found = []
    for name in names:
        parent = side.surroundings(name)[0] if name else ""
        found.append(top(parent) or (top(name) if name.startswith(("Module.", "Cell.")) else None))
    return found


class _OutermostCalls:
    """Calls of modules that no other one encloses."""

    def __init__(self, tops: Sequence[RecordName | None], *, is_list: bool) -> None:
        self._is_list = is_list
        self._calls: dict[str, int] = {}
        self._first: dict[int, str] = {}
        for top in tops:
            if top is not None:
                self._calls[top.path] = max(self._calls.get(top.path, 0), top.index + 1)
                self._first.setdefault(self.model(top.path), top.path)

    def model(self, path: str) -> int:
        """Return which model of a list a module is of."""
        return split_model(path)[0] if self._is_list else 0

    def place(self, top: RecordName) -> StagePlace:
        """Return where the records inside a call belong."""
        model = self.model(top.path)
        number, total = self._calls[self._first[model]], self._calls[top.path]
        each = total // number if total % number == 0 else 1
        return StagePlace(FORWARD_PHASE, top.index // each, model)


class _Walk:
    """One pass over the records of a stage in their order; finds the places of forward records."""

    def __init__(self) -> None:
        self.places: dict[int, StagePlace] = {}
        self._current = StagePlace(FORWARD_PHASE)
        self._before: dict[int, int] = {}
        self._after: dict[int, int] = {}
        self._waiting: list[int] = []
        self._since_backward: int | None = None

    def forward(self, number: int, place: StagePlace | None) -> None:
        """Take a forward record; ``place`` is that of the module around it, None outside all modules."""
        self._waiting.append(number)
        if place is None:
            return
        new, self._waiting = self._waiting, []
        rest = self._of_previous(place, len(new) - 1)
        self._put(new[:rest], self._current)
        self._put(new[rest:], place)
        self._current, self._since_backward = place, None

    def _of_previous(self, place: StagePlace, outside: int) -> int:
        """Return how many of the records outside modules, before the first module of a place, are of the previous one.

        How many stand before and after the modules of a model is learned when its micro-batches follow each other.
        """
        model, previous = place.model, self._current.model
        if place == self._current and self._before:
            return 0
        if not self._before:
            self._before[model] = outside
            return 0
        if model not in self._before:
            known = self._after.get(previous)
            self._before[model] = self._before[previous] if known is None else max(outside - known, 0)
        rest = max(outside - self._before[model], 0)
        if model == previous:
            self._after.setdefault(model, rest)
        return rest

    def backward(self) -> None:
        """Take a backward record."""
        if self._since_backward is None:
            self._since_backward = len(self._waiting)

    def finish(self) -> None:
        """Give places to the records after the last module."""
        kept = len(self._waiting) if self._since_backward is None else self._since_backward
        self._put(self._waiting[:kept], self._current)
        self._put(self._waiting[kept:], StagePlace(AFTERWARDS))

    def _put(self, numbers: Sequence[int], place: StagePlace) -> None:
        for number in numbers:
            self.places[number] = place


def _with_backward(
    parsed: Sequence[RecordName | None], places: dict[int, StagePlace], calls: _OutermostCalls
) -> list[StagePlace]:
    """Return the places of all records: a backward record is of its forward record's micro-batch."""
    of_call = {call_id(name): places[n] for n, name in enumerate(parsed) if name is not None and n in places}
    found: list[StagePlace] = []
    last = StagePlace(BACKWARD_PHASE)
    for number, name in enumerate(parsed):
        if number not in places and name is not None:
            forward = of_call.get(call_id(name))
            if name.direction == PARAMETERS_GRAD:
                last = StagePlace(BACKWARD_PHASE, name.index, calls.model(name.path))
            elif forward is not None:
                last = StagePlace(BACKWARD_PHASE, forward.micro_batch, forward.model)
        found.append(places.get(number, last))
    return found
