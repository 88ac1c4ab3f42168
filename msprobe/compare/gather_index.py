"""The records of several ranks as those of one: read by name, put together one record at a time."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msprobe.compare.entries import data_name_of
from msprobe.compare.gather_layout import LayoutError, RankValue, RankValues, mesh_pieces
from msprobe.compare.rows import GatherRule
from msprobe.core.names import parse_name
from msprobe.store.json_bytes import dumps_json
from msprobe.store.members import DumpHead, MemberIndex
from msprobe.store.tensor_files import TENSOR_FOLDER

#: Key of a gathered tensor under which its `RankValues` are.
RANKS_KEY = "ranks"
_WRAPPED = "Module.module."
_COMMUNICATION = ("Distributed.", "MintDistributed.")
_RANK = re.compile(r"\d+\Z")
_OF_A_RANK = frozenset({"device_mesh", "placements"})
_NUMBERS = ("largest", "Max"), ("smallest", "Min"), ("mean", "Mean"), ("norm", "Norm")


class GatheredIndex:
    """What `msprobe.store.members.MemberIndex` is to one dump file, for the files of several ranks.

    A tensor is as the placements of its ranks say, and has the values of each rank under `RANKS_KEY`. Communication is
    left out unless it is asked for: it belongs to the layout.

    Parameters
    ----------
    files
        Dump file of each rank, in the order of the ranks.
    rule
        What tensors without placements are.
    communication
        Keep records of communication.
    stage
        Which stage of a pipeline the ranks are, for messages; empty without one.

    Attributes
    ----------
    head : DumpHead
        Of the first rank.
    complete : bool
        Whether every file is.
    name_hashes : array of int
        Hash of each record's name.
    left_out : int
        Records of communication, over all ranks.
    partly : int
        Records that not every rank has.
    unwrapped : bool
        Whether names are without what DistributedDataParallel puts before them. What it holds is the model itself,
        whose record is left out: the run without the wrapper has none.
    """

    def __init__(
        self, files: Sequence[Path], rule: GatherRule, *, communication: bool = False, stage: str = ""
    ) -> None:
        self._communication = communication
        self._indices = [MemberIndex(file) for file in files]
        self._folders = [index.head.path.parent for index in self._indices]
        self._ranks = [_rank_number(folder.name, place) for place, folder in enumerate(self._folders)]
        self._rule = rule
        self._stage = stage
        self.head: DumpHead = self._indices[0].head
        self.complete = all(index.complete for index in self._indices)
        self.name_hashes = array("q")
        self.left_out = self.partly = 0
        self.unwrapped = _is_wrapped(self._indices[0])
        self._places = [array("q") for _ in files]
        self._collect()
        self._last: tuple[int, str, Any] = (-1, "", None)

    def __len__(self) -> int:
        return len(self.name_hashes)

    @property
    def ranks(self) -> tuple[str, ...]:
        """Folder names of the ranks."""
        return tuple(folder.name for folder in self._folders)

    def close(self) -> None:
        """Close the files."""
        for index in self._indices:
            index.close()

    def name(self, number: int) -> str:
        """Return the name of a record."""
        index, place = self._first(number)
        return self.plain(index.name(place))

    def plain(self, name: str) -> str:
        """Return the name that a record has without the wrapper; empty for the record of the model itself."""
        if not self.unwrapped or not name.startswith(_WRAPPED):
            return name
        return "" if _is_inside_wrapper(name) else f"Module.{name.removeprefix(_WRAPPED)}"

    def written(self, name: str) -> str:
        """Return the name under which a record stands in the files."""
        return name.replace("Module.", _WRAPPED, 1) if self.unwrapped and name.startswith("Module.") else name

    def raw(self, number: int) -> bytes:
        """Return the bytes of a record, ``"name":{...}``, without the values of single ranks."""
        if len(self._indices) == 1 and not self.unwrapped:
            return self._indices[0].raw(self._places[0][number])
        name, record = self.record(number)
        return dumps_json(name) + b":" + dumps_json(_without_ranks(record))

    def record(self, number: int) -> tuple[str, Any]:
        """Return name and content of a record."""
        if self._last[0] != number:
            places = [(rank, column[number]) for rank, column in enumerate(self._places)]
            found = [(rank, self._indices[rank].record(place)) for rank, place in places if place >= 0]
            name = self.plain(found[0][1][0])
            parsed = parse_name(name)
            backward = parsed is not None and parsed.direction != "forward"
            merged = self._merge([(r, record) for r, (_, record) in found], backward=backward)
            self._last = number, name, merged
        return self._last[1:]

    def _first(self, number: int) -> tuple[MemberIndex, int]:
        rank = next(rank for rank, places in enumerate(self._places) if places[number] >= 0)
        return self._indices[rank], self._places[rank][number]

    def _collect(self) -> None:
        """Find the records of one name on all ranks, in the order of the first rank that has them."""
        first = self._indices[0].name_hashes
        if all(index.name_hashes == first for index in self._indices):  # mostly: no tables of names are needed
            for place in range(len(first)):
                self._keep(self._indices[0].name(place), [place] * len(self._indices))
            return
        tables = [{found: place for place, found in enumerate(index.name_hashes)} for index in self._indices]
        known: set[int] = set()
        for index in self._indices:
            for place, found in enumerate(index.name_hashes):
                if found not in known:
                    known.add(found)
                    places = [table.get(found, -1) for table in tables]
                    self._keep(index.name(place), places)

    def _keep(self, name: str, places: Sequence[int]) -> None:
        """Take up a record, given by its place on each rank, unless it is left out."""
        if not self._communication and name.startswith(_COMMUNICATION):
            self.left_out += sum(place >= 0 for place in places)
        elif not (self.unwrapped and _is_inside_wrapper(name)):
            self.partly += -1 in places
            for column, place in zip(self._places, places, strict=True):
                column.append(place)
            self.name_hashes.append(hash(self.plain(name).encode("utf-8", "surrogatepass")))

    def _merge(self, values: Sequence[tuple[int, Any]], *, backward: bool) -> Any:
        """Merge JSON of equal structure, tensor by tensor; where the structure differs, the first rank's is taken."""
        first = values[0][1]
        if isinstance(first, Mapping):
            if "shape" in first and "dtype" in first:
                return self._tensor(values, backward=backward)
            if "type" in first:
                return self._scalar(values)
            inside = {
                key: [(rank, value[key]) for rank, value in values if isinstance(value, Mapping) and key in value]
                for key in first
            }
            return {key: self._merge(items, backward=backward) for key, items in inside.items()}
        if isinstance(first, list):
            places = [
                [(rank, value[place]) for rank, value in values if isinstance(value, list) and place < len(value)]
                for place in range(len(first))
            ]
            return [self._merge(items, backward=backward) for items in places]
        return first

    def _scalar(self, values: Sequence[tuple[int, Any]]) -> Any:
        first = values[0][1]
        if all(value == first for _, value in values):
            return first
        return {**first, RANKS_KEY: [value for _, value in values]}

    def _tensor(self, values: Sequence[tuple[int, Any]], *, backward: bool) -> dict[str, Any]:
        first = values[0][1]
        if len(self._indices) == 1 and not self._stage and "placements" not in first:
            return self._with_path(values[0][0], first)
        ranks = self._rank_values(values)
        merged = {key: value for key, value in first.items() if key not in _OF_A_RANK}
        merged |= {RANKS_KEY: ranks, "backward": backward, "type": "torch.Tensor"}
        if ranks.same or not ranks.units:  # why ranks do not fit together is said where the value is compared
            return merged
        entry = ranks.whole(self._rule, backward=backward, wanted=None).entry
        for checksum in ("md5", "xor", "hash"):
            if entry.checksum is None:
                merged.pop(checksum, None)
        merged |= {key: getattr(entry, name) for name, key in _NUMBERS if key in merged}
        merged["shape"] = list(entry.shape or ())
        return merged

    def _rank_values(self, values: Sequence[tuple[int, Any]]) -> RankValues:
        first = values[0][1]
        known = tuple(
            [
                RankValue(self._ranks[place], self._folders[place].name, self._with_path(place, raw), self._stage)
                for place, raw in values
                if raw.__class__ is dict and "shape" in raw
            ]
        )
        if "placements" not in first and all(raw == first for _, raw in values):
            return RankValues(known, same=True)
        try:
            return RankValues(known, units=tuple(mesh_pieces(known)))
        except LayoutError:
            return RankValues(known)

    def _with_path(self, rank: int, raw: dict[str, Any]) -> dict[str, Any]:
        name = data_name_of(raw) if "data_name" in raw else None
        return raw if name is None else {**raw, "data_name": str(self._folders[rank] / TENSOR_FOLDER / name)}


def _is_wrapped(index: MemberIndex) -> bool:
    """Tell whether every module is inside one that is called ``module``, which is a module itself."""
    inside = False
    for place in range(len(index)):
        name = index.name(place)
        if name.startswith("Module."):
            if not name.startswith(_WRAPPED):
                return False
            inside = inside or _is_inside_wrapper(name)
    return inside


def _is_inside_wrapper(name: str) -> bool:
    parsed = parse_name(name)
    return parsed is not None and parsed.is_module and parsed.path == "module"


def _rank_number(folder: str, place: int) -> int:
    match = _RANK.search(folder)
    return int(match.group()) if match else place


def _without_ranks(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_ranks(item) for key, item in value.items() if key not in {RANKS_KEY, "backward"}}
    return [_without_ranks(item) for item in value] if isinstance(value, list) else value
