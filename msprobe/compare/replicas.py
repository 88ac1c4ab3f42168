"""Whether the ranks of one run still have the same where they should: the first record in which replicas part.

Looked at are values that are replicas for certain:

* parameters of modules, as plain tensors (DDP, what tensor parallelism does not split, what FSDP2 has gathered);
* DTensors along the mesh dimensions with the placement Replicate;
* what ``all_reduce`` and ``broadcast`` leave in their arguments, for groups of all ranks.

Replicas are equal if their checksums are, or, without checksums, their statistics: exactly, for copies do not round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msprobe.compare.entries import OUTPUT, PARAMETERS, Leaf, leaves_of
from msprobe.compare.gather_index import RANKS_KEY, GatheredIndex
from msprobe.compare.gather_layout import LayoutError, RankValue, gather_value, mesh_pieces
from msprobe.compare.gather_pieces import Part, Piece
from msprobe.compare.pairing import find_dumps, rank_files
from msprobe.core.names import parse_name

_SAME_AFTERWARDS = ("Distributed.all_reduce.", "Distributed.broadcast.")
_KEPT = 1000


@dataclass(frozen=True, slots=True)
class PartedReplica:
    """A value that should be the same on some ranks and is not.

    Attributes
    ----------
    step, record, value
        Where: folder name, record name, place in the record.
    apart
        Ranks that differ from what most have, each with its value; all of them if no two agree.
    others
        One rank of the majority, with its value; None if there is none.
    """

    step: str
    record: str
    value: str
    apart: tuple[Part, ...]
    others: Part | None

    @property
    def ranks(self) -> tuple[str, ...]:
        """Folder names of the ranks that differ."""
        return tuple(dict.fromkeys(part.rank for part in self.apart))


@dataclass(frozen=True, slots=True)
class ReplicaResult:
    """What was found, in the order of steps and records.

    Attributes
    ----------
    ranks
        Folder names of all ranks.
    checked
        Values that were looked at.
    unchecked
        Values that have placements, but not on all ranks of their mesh.
    parted
        The first thousand values whose replicas part.
    """

    ranks: tuple[str, ...]
    checked: int
    unchecked: int
    parted: tuple[PartedReplica, ...]


def check_replicas(path: Path, progress: Callable[[str], object] = str) -> ReplicaResult:
    """Look for replicas that part.

    Parameters
    ----------
    path
        A run or a step folder.
    progress
        Called with the name of each step before it is read.

    Raises
    ------
    DumpReadError
        There is no dump.
    """
    ranks: dict[str, None] = {}
    checked = unchecked = 0
    parted: list[PartedReplica] = []
    for step, folders in find_dumps(path).items():
        progress(step)
        index = GatheredIndex(rank_files(folders), "replicated", communication=True)
        try:
            ranks |= dict.fromkeys(index.ranks)
            for record, leaf in _values(index):
                try:
                    pieces = _pieces(record, leaf)
                except LayoutError:
                    unchecked += 1
                    continue
                checked += bool(pieces)
                parted += [_parted(step, record, leaf.name, piece) for piece in pieces if piece.apart]
        finally:
            index.close()
    return ReplicaResult(tuple(ranks), checked, unchecked, tuple(parted[:_KEPT]))


def as_json(result: ReplicaResult) -> dict[str, Any]:
    """Return the content of ``replicas.json``."""
    return {
        "ranks": result.ranks,
        "checked": result.checked,
        "unchecked": result.unchecked,
        "parted": [
            {
                "step": one.step,
                "record": one.record,
                "value": one.value,
                "apart": [_part(part) for part in one.apart],
                "others": None if one.others is None else _part(one.others),
            }
            for one in result.parted
        ],
    }


def _part(part: Part) -> dict[str, Any]:
    entry = part.entry
    numbers = {"Max": entry.largest, "Min": entry.smallest, "Mean": entry.mean, "Norm": entry.norm}
    return {"rank": part.rank, "shard": part.shard, **numbers, "checksum": entry.checksum}


def _values(index: GatheredIndex) -> Iterator[tuple[str, Leaf]]:
    """Yield the values that more than one rank has."""
    for number in range(len(index)):
        name, record = index.record(number)
        if name.startswith(_SAME_AFTERWARDS) and not _is_of_all(record, len(index.ranks)):
            continue
        for leaf in leaves_of(record):
            if isinstance(leaf.raw, Mapping) and "shape" in leaf.raw and len(leaf.raw.get(RANKS_KEY, ())) > 1:
                yield name, leaf


def _is_of_all(record: Any, ranks: int) -> bool:
    """Tell whether a collective is one of all ranks: it has no group, or one with all of them."""
    groups = [
        leaf.raw["group_ranks"]
        for leaf in leaves_of(record)
        if isinstance(leaf.raw, Mapping) and "group_ranks" in leaf.raw
    ]
    return all(len(group) == ranks for group in groups)


def _pieces(record: str, leaf: Leaf) -> list[Piece]:
    """Return what the ranks' values make, if some of them are replicas; an empty list if none are for certain."""
    values = leaf.raw[RANKS_KEY].values
    if record.startswith("Distributed."):
        collective = record.startswith(_SAME_AFTERWARDS) and leaf.section == OUTPUT
        return [gather_value(values, "replicated", backward=False, wanted=None)] if collective else []
    if leaf.section == PARAMETERS and not any(_is_placed(value) for value in values):
        parsed = parse_name(record)
        # A list of models has the stages of a pipeline under equal names.
        is_numbered = parsed is not None and parsed.path.partition(".")[0].isdecimal()
        return [] if is_numbered else [gather_value(values, "replicated", backward=False, wanted=None)]
    return mesh_pieces([value for value in values if _is_placed(value)])


def _is_placed(value: RankValue) -> bool:
    return bool(value.raw.get("placements"))


def _parted(step: str, record: str, value: str, piece: Piece) -> PartedReplica:
    apart = {part.rank for part in piece.apart}
    others = next((part for part in piece.parts if part.rank not in apart), None)
    return PartedReplica(step, record, value, piece.apart, others)
