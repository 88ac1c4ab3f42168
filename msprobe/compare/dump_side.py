"""One side of a comparison: the records of one rank and step, with what surrounds them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msprobe.compare.gather_index import GatheredIndex
from msprobe.compare.kinds import module_path
from msprobe.store.coverage_file import COVERAGE_FILE
from msprobe.store.json_bytes import loads_json
from msprobe.store.members import MemberIndex
from msprobe.store.name_map import NameMap, call_stacks, parent_names
from msprobe.store.part_file import TAIL_DUMP, is_growing
from msprobe.store.step_files import CONSTRUCT_FILE
from msprobe.store.tensor_files import TENSOR_FOLDER

if TYPE_CHECKING:
    from msprobe.compare.gather_stages import StagedIndex

_FRAME = re.compile(r"File (?P<file>.*?), line (?P<line>\d+), in (?P<function>.*?),? ?\n ?(?P<code>.*)\Z", re.DOTALL)
_LIBRARIES = re.compile(r"[/\\](torch|mindspore|torch_npu|mindtorch|msprobe)[/\\]")


class DumpSide:
    """Records of one dump, by their number in the file.

    Parameters
    ----------
    path
        A rank folder or its dump file.
    index
        Records of several ranks put together; ``path`` is then that of the first one. None for those of ``path``.

    Attributes
    ----------
    index : MemberIndex, GatheredIndex or StagedIndex
        The records.
    folder : Path
        Where they are.
    tensor_folder : Path or None
        Where tensor files are.
    is_ours : bool
        Whether msprobe wrote it, and not mindstudio-probe.

    Raises
    ------
    DumpReadError
        There is no dump file, or it is none.
    """

    def __init__(self, path: str | Path, index: GatheredIndex | StagedIndex | None = None) -> None:
        self.index: MemberIndex | GatheredIndex | StagedIndex = MemberIndex(path) if index is None else index
        self.folder = self.index.head.path.parent
        self.tensor_folder = _tensor_folder(self.folder, self.index.head.data_dir)
        self.is_ours = (self.folder / COVERAGE_FILE).exists() or _grows(self.index.head.path)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def stages(self) -> Sequence[DumpSide]:
        """The stages of a pipeline that were put together; without one, this side alone."""
        return (self,)

    @property
    def rank_count(self) -> int:
        """How many ranks were put together; 1 if none were."""
        return len(self.index.ranks) if isinstance(self.index, GatheredIndex) else 1

    @property
    def has_parents(self) -> bool:
        """Whether anything is known about what encloses the records."""
        return bool(len(self._parents))

    @property
    def has_stacks(self) -> bool:
        """Whether any call stack is known."""
        return bool(len(self._stacks))

    @cached_property
    def parents(self) -> Mapping[str, Any]:
        """Content of construct.json as a whole, for small dumps; empty without one."""
        return _read_mapping(self.folder / CONSTRUCT_FILE)

    def surroundings(self, name: str) -> tuple[str, str]:
        """Return the enclosing record's name and the path of the module that a record is or runs in."""
        if isinstance(self.index, GatheredIndex):
            parent: str = self.index.plain(self._parents.get(self.index.written(name)) or "")
        else:
            parent = self._parents.get(name) or ""
        return parent, module_path(name) or module_path(parent)

    def stack(self, name: str) -> tuple[str, ...]:
        """Return the frames of a record, innermost first, or those of the forward call of a backward record."""
        stacks = self._stacks
        if isinstance(self.index, GatheredIndex):
            name = self.index.written(name)
        found = stacks.get(name)
        if found is None and ".backward" in name:
            found = stacks.get(name.partition("#")[0].replace(".backward", ".forward"))
        return found or ()

    @cached_property
    def _parents(self) -> NameMap:
        return parent_names(self.folder)

    @cached_property
    def _stacks(self) -> NameMap:
        return call_stacks(self.folder)

    def close(self) -> None:
        """Close the file."""
        self.index.close()


def call_site(frames: Sequence[str]) -> str:
    """Return ``file, line N, in function`` of the innermost frame outside the frameworks; empty if there is none."""
    match = _user_frame(tuple(frames))
    return "" if match is None else f"{match['file']}, line {match['line']}, in {match['function']}"


def site_key(frames: Sequence[str]) -> str:
    """Return function and source text of the call site: what stays when lines are inserted above it."""
    match = _user_frame(tuple(frames))
    return "" if match is None else f"{match['function']}:{match['code'].strip()}"


@lru_cache(maxsize=1 << 14)
def _user_frame(frames: tuple[str, ...]) -> re.Match[str] | None:
    matches = [match for frame in frames if (match := _FRAME.match(frame))]
    return next((m for m in matches if not _LIBRARIES.search(m["file"])), matches[0] if matches else None)


def _grows(file: Path) -> bool:
    """Tell from its first line whether msprobe wrote a file: a run that was killed has no coverage.json."""
    with file.open("rb") as stream:
        return is_growing(stream.readline(), TAIL_DUMP)


def _read_mapping(file: Path) -> Mapping[str, Any]:
    """Read construct.json; a damaged or missing one is as good as none: it only helps the alignment."""
    try:
        content = loads_json(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _tensor_folder(folder: Path, written: str) -> Path | None:
    beside = folder / TENSOR_FOLDER
    if beside.is_dir():
        return beside
    return Path(written) if written and Path(written).is_dir() else None
