"""Where NaN and infinity come from in the records of one rank, told while they go by in the order of the file.

A record whose outputs have NaN or an infinity although its inputs are finite is a *source*. What follows inherits. A
module that merely encloses a source is none itself, and a value that nothing in the dump has made has *entered*.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from msprobe.compare.entries import INPUT, OUTPUT, PARAMETERS, Leaf, entry_of, leaves_of
from msprobe.compare.kinds import kind_of
from msprobe.compare.rows import Entry
from msprobe.core.names import BACKWARD, PARAMETERS_GRAD, RecordName, parse_name

State = Literal["finite", "source", "entered", "inherits", "encloses", "unmeasured"]

#: Operations that return memory as they find it.
_UNINITIALISED = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
_INPUTS = frozenset({INPUT, PARAMETERS})


@dataclass(frozen=True, slots=True)
class Place:
    """A value of a record that is not finite.

    Attributes
    ----------
    name
        Where it is in the record: ``output.0``, ``input.1``, ``parameters.weight``.
    entry
        What the dump says about it.
    """

    name: str
    entry: Entry


@dataclass(frozen=True, slots=True)
class Seen:
    """What one record says about NaN and infinity.

    ``exact_inputs`` is False for records of the task nan_check: they do not say whether inputs were finite.
    """

    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]
    measured: bool
    exact_inputs: bool = True


def is_nonfinite(entry: Entry) -> bool:
    """Tell whether a value has NaN or an infinity.

    Mean and norm are not asked: they overflow in a small dtype although every element is finite.
    """
    if entry.kind == "tensor":
        return bool(entry.nan or entry.inf or _special(entry.largest) or _special(entry.smallest))
    return _special(entry.value)


def look_at(record: Any) -> Seen:
    """Return the places of a record's JSON that are not finite."""
    return look_at_leaves([(leaf, entry_of(leaf.raw)) for leaf in leaves_of(record)], record)


def look_at_leaves(leaves: list[tuple[Leaf, Entry]], record: Any) -> Seen:
    """Do the same for a record whose values are typed already."""
    inputs: list[Place] = []
    outputs: list[Place] = []
    measured = False
    for leaf, entry in leaves:
        measured = measured or entry.largest is not None
        if leaf.name != "is_nan" and is_nonfinite(entry):
            (inputs if leaf.section in _INPUTS else outputs).append(Place(leaf.name, entry))
    flag = record.get("is_nan") if isinstance(record, Mapping) else None
    if flag is None:
        return Seen(tuple(inputs), tuple(outputs), measured)
    if flag and not outputs:
        outputs = [
            Place(leaf.name, entry) for leaf, entry in leaves if leaf.section == OUTPUT and entry.kind == "tensor"
        ] or [Place("output", Entry("null", "None"))]
    return Seen(tuple(inputs), tuple(outputs), measured=True, exact_inputs=False)


class NonfiniteTracker:
    """Classifies the records of one rank and step, one after the other.

    Parameters
    ----------
    parents
        Content of construct.json; may be empty.
    """

    def __init__(self, parents: Mapping[str, Any]) -> None:
        self._parents = parents
        self._flagged: dict[str, State] = {}
        self._explained: set[str] = set()
        self._blamed_modules: set[str] = set()
        self._gradients: dict[str, str] = {}

    @property
    def states(self) -> Mapping[str, State]:
        """Record name -> state, of the records that are not finite, as far as it is known by now."""
        return self._flagged

    def see(self, name: str, seen: Seen) -> State:
        """Classify the next record; a source may turn out later to enclose another one, see `states`."""
        if not seen.inputs and not seen.outputs:
            return "finite" if seen.measured else "unmeasured"
        parsed = parse_name(name)
        if parsed is not None and parsed.tag:
            return "inherits"  # a call repeated by recomputation, or a second pass: the first one tells
        state = self._state(name, parsed, seen)
        if state == "unmeasured":
            return state
        if not seen.outputs and state == "inherits":
            return "inherits"
        self._flagged[name] = state
        if state in {"source", "entered"}:
            self._explain(name)
        return state

    def enclosing(self, name: str) -> list[str]:
        """Return the records around one, the nearest first."""
        chain: list[str] = []
        parent = _parent(self._parents, name)
        while parent and parent not in chain:
            chain.append(parent)
            parent = _parent(self._parents, parent)
        return chain

    def _state(self, name: str, parsed: RecordName | None, seen: Seen) -> State:
        if parsed is not None and not parsed.is_module and kind_of(name).operation in _UNINITIALISED:
            return "unmeasured"
        if parsed is not None and parsed.direction == PARAMETERS_GRAD:
            return self._gradient_state(name, parsed)
        if not seen.exact_inputs:
            return "inherits" if self._flagged else "source"
        if seen.inputs:
            return self._input_state(name, parsed, seen)
        if parsed is not None and parsed.direction == BACKWARD and self._forward_of(name) in self._flagged:
            return "inherits"
        return "encloses" if name in self._explained else "source"

    def _input_state(self, name: str, parsed: RecordName | None, seen: Seen) -> State:
        gradient = None
        if parsed is not None and parsed.is_module and parsed.direction == BACKWARD:
            gradient = self._gradients.pop(parsed.path, None)
            if gradient is not None:
                self._flagged[gradient] = "inherits"  # it was written first, but its cause is what came in here
        parameters = [place for place in seen.inputs if place.name.startswith(PARAMETERS)]
        if parameters and parsed is not None and parsed.path not in self._blamed_modules:
            self._blamed_modules.add(parsed.path)
            return "entered"
        if not any(_alarming(place.entry) for place in seen.inputs):
            return "inherits"  # an attention mask of -inf, or an infinity that was asked for
        enclosing = self.enclosing(name)
        others = len(self._flagged) - sum(outer in self._flagged for outer in enclosing) - (gradient is not None)
        return "inherits" if others > 0 else "entered"

    def _gradient_state(self, name: str, parsed: RecordName) -> State:
        if any(state != "inherits" for state in self._flagged.values()):
            return "inherits"
        self._gradients[parsed.path] = name
        return "source"

    def _forward_of(self, name: str) -> str:
        return name.replace(".backward", ".forward")

    def _explain(self, name: str) -> None:
        enclosing = self.enclosing(name)
        self._explained.update(enclosing)
        for outer in enclosing:  # mindstudio-probe writes a module before what runs in it
            if self._flagged.get(outer) == "source":
                self._flagged[outer] = "encloses"


def nonfinite_leaves(record: Any) -> Iterator[Place]:
    """Yield the values of a record's JSON that are not finite."""
    seen = look_at(record)
    yield from seen.inputs
    yield from seen.outputs


def _special(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _alarming(entry: Entry) -> bool:
    """Tell NaN and +inf in a tensor from what masks are made of."""
    if entry.kind != "tensor":
        return False
    if entry.nan or entry.largest is None or _special(entry.largest):
        return True
    return isinstance(entry.smallest, float) and math.isnan(entry.smallest)


def _parent(parents: Mapping[str, Any], name: str) -> str:
    parent = parents.get(name)
    if isinstance(parent, list):
        parent = parent[0] if parent else None  # [parent, micro step]
    return parent if isinstance(parent, str) else ""
