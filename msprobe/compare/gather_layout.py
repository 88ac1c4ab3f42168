"""How the values that ranks recorded at one place belong together.

DTensors say it themselves, by ``device_mesh`` and ``placements``. Of a plain tensor nothing is recorded, so there are
two rules that a user chooses between: it is the same on every rank (tensor parallelism), or it may be the rank's own
part of the batch (DDP, FSDP2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from msprobe.compare.gather_pieces import Piece, Reduction, joined, piece_of, reduced, replicas, same_value, scaled
from msprobe.compare.rows import GatherRule

Shape = tuple[int, ...]
_REDUCTIONS: Mapping[str, Reduction] = {"sum": "sum", "avg": "mean", "mean": "mean", "max": "max", "min": "min"}


class LayoutError(ValueError):
    """Values of several ranks do not make one; the message says why."""


@dataclass(frozen=True, slots=True)
class RankValue:
    """The JSON of a tensor as one rank recorded it; ``data_name`` is a whole path.

    ``stage`` says which stage of a pipeline the rank is; empty without one.
    """

    rank: int
    folder: str
    raw: Mapping[str, Any]
    stage: str = ""


@dataclass(frozen=True, slots=True)
class RankValues:
    """What ranks recorded at one place, in their order.

    Attributes
    ----------
    values
        One of each rank that has it.
    same
        Whether they are plain tensors with equal entries, of which the first one stands for all.
    units
        What `mesh_pieces` makes of them, to be made once only; empty if they are ``same`` or do not fit together.
    """

    values: tuple[RankValue, ...]
    same: bool = False
    units: tuple[Piece, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    def whole(self, rule: GatherRule, *, backward: bool, wanted: Shape | None, certain: bool = False) -> Piece:
        """Put them together as `gather_value` does."""
        if self.same:
            piece = piece_of(self.values[0].folder, self.values[0].raw, self.values[0].stage)
            if wanted is None or wanted == piece.entry.shape:
                return Piece(piece.entry, piece.elements, piece.parts, copies=tuple(v.folder for v in self.values))
        units = self.units or mesh_pieces(self.values)
        return _gather_units(units, rule, backward=backward, wanted=wanted, certain=certain)


def gather_value(
    values: Sequence[RankValue], rule: GatherRule, *, backward: bool, wanted: Shape | None, certain: bool = False
) -> Piece:
    """Put together what ranks recorded at one place.

    Parameters
    ----------
    values
        In the order of the ranks; at least one.
    rule
        What plain tensors are.
    backward
        Whether it is a gradient. Under the rule ``batch`` gradients are those of a loss that is a mean over the rank's
        part, so that the gradients of the whole batch's mean are smaller by the number of ranks.
    wanted
        Shape on the other side of the comparison; it decides where the rule leaves a choice. None if unknown.
    certain
        Whether that shape is one process's, and not put together by the same rule. Then ranks that make it together,
        some of them twice, are taken for replicas even where they differ.

    Raises
    ------
    LayoutError
        Shards are missing or do not fit together.
    """
    return _gather_units(mesh_pieces(values), rule, backward=backward, wanted=wanted, certain=certain)


def _gather_units(
    units: Sequence[Piece], rule: GatherRule, *, backward: bool, wanted: Shape | None, certain: bool
) -> Piece:
    if len(units) == 1:
        return units[0]
    return _gather_plain(units, rule, backward=backward, wanted=wanted, certain=certain)


def mesh_pieces(values: Sequence[RankValue]) -> list[Piece]:
    """Put together what is placed on one mesh, each mesh by itself; a plain tensor stays alone.

    Raises
    ------
    LayoutError
        Shards are missing or do not fit together.
    """
    return [_gather_mesh(group) for group in _by_mesh(values)]


def placement_text(raw: Mapping[str, Any], rank: int) -> str:
    """Return which part of a DTensor a rank has, ``Shard(dim=0) 2 of 4``; empty for a plain tensor."""
    mesh, placements = raw.get("device_mesh"), raw.get("placements")
    if mesh is None or not placements:
        return ""
    ranks = np.array(mesh)
    found = np.argwhere(ranks == rank)
    texts = []
    for axis, placement in enumerate(placements):
        ((kind, fields),) = placement.items()
        name = f"{kind}({', '.join(f'{key}={value}' for key, value in fields.items())})" if fields else str(kind)
        texts.append(f"{name} {found[0][axis] + 1} of {ranks.shape[axis]}" if len(found) else name)
    return ", ".join(texts)


def _by_mesh(values: Sequence[RankValue]) -> list[list[RankValue]]:
    """Split values into those that are placed on one mesh; a plain tensor is alone."""
    groups: dict[str, list[RankValue]] = {}
    for value in values:
        mesh = value.raw.get("device_mesh")
        key = f"rank {value.rank}" if mesh is None else f"{mesh} {value.raw.get('placements')}"
        groups.setdefault(key, []).append(value)
    return list(groups.values())


def _gather_mesh(group: Sequence[RankValue]) -> Piece:
    mesh, placements = group[0].raw.get("device_mesh"), group[0].raw.get("placements")
    if mesh is None or not placements:
        return piece_of(group[0].folder, group[0].raw, group[0].stage)
    ranks = np.array(mesh)
    known = {value.rank: piece_of(value.folder, value.raw, value.stage) for value in group}
    missing = sorted(set(ranks.reshape(-1).tolist()) - known.keys())
    if missing:
        raise LayoutError(f"no value of {', '.join(f'rank{rank}' for rank in missing)}, which has a part of it")
    pieces = {index: known[int(ranks[index])] for index in np.ndindex(ranks.shape)}
    for axis in _order(placements):
        pieces = _undo(pieces, axis, ranks.shape[axis], placements[axis])
    (whole,) = pieces.values()
    return whole


def _order(placements: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return mesh dimensions in the order in which their placements are undone.

    A tensor is split along the mesh dimensions from left to right, so the last one is undone first. What is called a
    strided shard (FSDP2 over tensor parallelism) was split after those to its right.
    """
    last_first = list(reversed(range(len(placements))))
    return sorted(last_first, key=lambda axis: "StridedShard" not in placements[axis])


def _undo(
    pieces: Mapping[tuple[int, ...], Piece], axis: int, size: int, placement: Mapping[str, Any]
) -> dict[tuple[int, ...], Piece]:
    """Merge the pieces along one mesh dimension; its index is 0 afterwards."""
    ((kind, fields),) = placement.items()
    found = {}
    for index in pieces:
        if index[axis] == 0:
            line = [pieces[(*index[:axis], place, *index[axis + 1 :])] for place in range(size)]
            found[index] = _merge(line, kind, fields)
    return found


def _merge(line: Sequence[Piece], kind: str, fields: Mapping[str, Any]) -> Piece:
    if kind == "Replicate":
        return replicas(line)
    if kind == "Partial":
        operation = str(fields.get("reduce_op", "sum"))
        if operation not in _REDUCTIONS:
            raise LayoutError(f"partial values of the reduction {operation}; sum, avg, max and min are known")
        return reduced(line, _REDUCTIONS[operation])
    if kind not in {"Shard", "StridedShard"}:
        raise LayoutError(f"placement {kind}; Shard, Replicate and Partial are known")
    dim = int(fields["dim"])
    _check_join(line, dim)
    return joined(line, dim, f"{kind}(dim={dim})")


def _check_join(line: Sequence[Piece], dim: int) -> None:
    shapes = [piece.entry.shape or () for piece in line]
    others = {(*shape[:dim], *shape[dim + 1 :]) for shape in shapes if 0 not in shape}
    if any(dim >= len(shape) for shape in shapes) or len(others) > 1:
        raise LayoutError(f"shards of shapes {', '.join(str(list(shape)) for shape in shapes)} along dimension {dim}")


def _gather_plain(
    units: Sequence[Piece], rule: GatherRule, *, backward: bool, wanted: Shape | None, certain: bool
) -> Piece:
    """Put together values without placements: replicas, parts of the batch, or shards that only shapes tell of."""
    entries = [unit.entry for unit in units]
    shape = entries[0].shape or ()
    agree = all(same_value(entries[0], entry) for entry in entries)
    dim = None if wanted == shape else _joint(units, wanted)
    if dim is None and wanted is None and rule == "batch" and not agree and _fits(units, 0):
        dim = 0
    if dim is not None:
        is_batch = rule == "batch" and dim == 0
        whole = joined(units, dim, "part of the batch" if is_batch else f"shard along dim {dim}")
        return scaled(whole, 1 / len(units)) if is_batch and backward else whole
    grid = _grid_of(units, rule, wanted)
    if grid is not None:
        whole = grid.whole(units)
        if certain or not whole.apart:
            return scaled(whole, 1 / grid.rows) if grid.rows > 1 and backward else whole
    alike = all(entry.shape == shape for entry in entries)
    is_number = not shape and entries[0].dtype.startswith(("float", "bfloat"))
    if rule == "batch" and not agree and alike and (backward or is_number):  # gradients of parameters; a loss
        return reduced(units, "mean")
    return replicas(units)


@dataclass(frozen=True, slots=True)
class _Grid:
    """Plain tensors under data parallelism over tensor parallelism: parts of the batch, each of consecutive ranks.

    Attributes
    ----------
    rows, columns
        How many parts of the batch, and shards along ``dim``; 1 for none.
    copies
        Ranks with the same part: those of one row if there are rows, else the same place of every row.
    """

    rows: int
    columns: int
    copies: int
    dim: int = 0

    def whole(self, units: Sequence[Piece]) -> Piece:
        """Put the values together, in the order of the ranks."""
        if self.rows == 1:
            ranks = range(0, len(units), self.columns)
            return self._row([replicas([units[first + n] for first in ranks]) for n in range(self.columns)])
        wide = self.columns * self.copies
        lines = [units[first : first + wide] for first in range(0, len(units), wide)]
        parts = [self._row(line) if self.columns > 1 else replicas(line) for line in lines]
        return joined(parts, 0, "part of the batch")

    def _row(self, line: Sequence[Piece]) -> Piece:
        return joined(line, self.dim, f"shard along dim {self.dim}")


def _grid_of(units: Sequence[Piece], rule: GatherRule, wanted: Shape | None) -> _Grid | None:
    """Return the layout in which the pieces make the wanted shape, some of them more than once; None without one."""
    shape = units[0].entry.shape or ()
    if wanted is None or len(wanted) != len(shape) or 0 in shape or any(u.entry.shape != shape for u in units):
        return None
    counts = {dim: whole // part for dim, (whole, part) in enumerate(zip(wanted, shape, strict=True)) if whole != part}
    if not counts or any(part * counts.get(dim, 1) != wanted[dim] for dim, part in enumerate(shape)):
        return None
    rows = counts.pop(0, 1) if rule == "batch" else 1
    dim, columns = next(iter(counts.items()), (0, 1))
    if len(counts) > 1 or not rows or not columns or len(units) % (rows * columns):
        return None
    copies = len(units) // (rows * columns)
    return None if copies > 1 and rows > 1 and columns > 1 else _Grid(rows, columns, copies, dim)


def _joint(units: Sequence[Piece], wanted: Shape | None) -> int | None:
    """Return the dimension along which the pieces make the wanted shape; None if there is none."""
    dims = range(len(wanted or ()))
    return next((dim for dim in dims if _fits(units, dim) and _joint_shape(units, dim) == wanted), None)


def _fits(units: Sequence[Piece], dim: int) -> bool:
    shapes = [unit.entry.shape or () for unit in units]
    return all(dim < len(shape) for shape in shapes) and len({(*s[:dim], *s[dim + 1 :]) for s in shapes}) == 1


def _joint_shape(units: Sequence[Piece], dim: int) -> Shape:
    shapes = [unit.entry.shape or () for unit in units]
    return (*shapes[0][:dim], sum(shape[dim] for shape in shapes), *shapes[0][dim + 1 :])
