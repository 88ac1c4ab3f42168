"""The Cells of a model that get taps: names, parameters, parents. Knows Cells only by what they look like."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from msprobe.ms_static.tap_places import INNER, SLOTS

PREFIX = "Cell"
MOST_SLOTS = SLOTS // (INNER + 1)


@dataclass(frozen=True, slots=True)
class TappedCell:
    """One Cell of a model, not its root.

    Attributes
    ----------
    number : int
        Stands for the Cell inside a graph.
    base : str
        ``Cell.path.Class``.
    parent : int or None
        Number of the nearest enclosing Cell that has taps.
    parameters : tuple of str
        Names of its own parameters.
    keywords : tuple of str
        Names that an argument of its ``construct`` can be given by.
    cell : object
        The Cell.
    """

    number: int
    base: str
    parent: int | None
    parameters: tuple[str, ...]
    keywords: tuple[str, ...]
    cell: Any


def cells_of(roots: Sequence[Any], plain_construct: object) -> list[TappedCell]:
    """Return the Cells inside some models, each once, in the order of their definition.

    Parameters
    ----------
    roots : sequence of Cell
        With several of them, names begin with the number of the model.
    plain_construct : object
        ``nn.Cell.construct``: a class that does not replace it (``CellList``) is never called.
    """
    found: list[TappedCell] = []
    seen: set[int] = set()
    for index, root in enumerate(roots):
        start = f"{PREFIX}.{index}" if len(roots) > 1 else PREFIX
        numbers: dict[str, int] = {}
        for path, cell in root.cells_and_names():
            if not path or id(cell) in seen or type(cell).construct is plain_construct:
                continue
            seen.add(id(cell))
            numbers[path] = len(found)
            base = f"{start}.{path}.{type(cell).__name__}"
            parent, parameters = _parent(path, numbers), tuple(cell._params)[:MOST_SLOTS]
            found.append(TappedCell(len(found), base, parent, parameters, tuple(_keywords(cell))[:MOST_SLOTS], cell))
    return found


def _parent(path: str, numbers: dict[str, int]) -> int | None:
    while "." in path:
        path = path.rpartition(".")[0]
        if path in numbers:
            return numbers[path]
    return None


def _keywords(cell: Any) -> Iterator[str]:
    for parameter in list(inspect.signature(type(cell).construct).parameters.values())[1:]:
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            yield parameter.name
