"""Which rank folder of the target belongs to which one of golden."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msprobe.store.layout import PARTS
from msprobe.store.reader import DumpReadError
from msprobe.store.step_files import DEBUG_FILE, DUMP_FILE

_STEP = re.compile(rf"(?:(?:{'|'.join(PARTS)})/)?step(\d+)\Z")
_RANK = re.compile(r"(?:rank|proc)_?(\d+)\Z")
_FILES = (DUMP_FILE, DEBUG_FILE)


@dataclass(frozen=True, slots=True)
class FolderPair:
    """Dump files of one step and rank; None on the side that has none."""

    step: str
    rank: str
    target: Path | None
    golden: Path | None


Found = dict[str, dict[str, Path]]


def find_dumps(path: str | Path) -> Found:
    """Return step name -> rank name -> dump file below a path.

    Parameters
    ----------
    path
        A dump file, a rank folder, a step folder or the folder of a run. Names are those of the folders; the steps of a
        MindSpore run that is divided into a compiled and a dynamic part are ``graph/step0`` and ``pynative/step0``.

    Raises
    ------
    DumpReadError
        There is no dump there.
    """
    root = Path(path)
    if root.is_file():
        folder = root.resolve().parent
        return {folder.parent.name: {folder.name: root}}
    if not root.is_dir():
        raise DumpReadError(f"{root}: no such file or folder; give the dump_path of a run, a step or a rank folder")
    single = _dump_file(root)
    if single is not None:
        folder = root.resolve()
        return {folder.parent.name: {folder.name: single}}
    ranks = _ranks(root)
    if ranks:
        return {root.resolve().name: ranks}
    steps = _steps(root) or {
        f"{part}/{name}": ranks
        for part in PARTS
        if (root / part).is_dir()
        for name, ranks in _steps(root / part).items()
    }
    found = {name: inside for name, inside in steps.items() if inside}
    if not found:
        inside = ", ".join(sorted(entry.name for entry in root.iterdir())[:8]) or "nothing"
        raise DumpReadError(
            f"{root}: no dump.json or debug.json in it ({inside} there); give a folder with step{{N}}/rank{{R}}, or "
            "run `msprobe recover` on it if the run was killed"
        )
    return found


def pair_folders(target: str | Path, golden: str | Path) -> list[FolderPair]:
    """Pair the steps and ranks of two paths by name; a single one on each side whatever its name.

    Process folders (``proc{pid}``) have other names in every run: they are paired in the order of their numbers.

    Raises
    ------
    DumpReadError
        A side has no dump.
    """
    return [pair for step, ours, theirs in _matching_steps(target, golden) for pair in _pair_ranks(step, ours, theirs)]


@dataclass(frozen=True, slots=True)
class StepPair:
    """Dump files of all ranks of one step; a side without that step has none."""

    step: str
    target: tuple[Path, ...]
    golden: tuple[Path, ...]


def pair_steps(target: str | Path, golden: str | Path) -> list[StepPair]:
    """Pair the steps of two paths by name, each with all its ranks; a single one on each side whatever its name.

    Raises
    ------
    DumpReadError
        A side has no dump.
    """
    return [
        StepPair(step, rank_files(ours), rank_files(theirs)) for step, ours, theirs in _matching_steps(target, golden)
    ]


def _matching_steps(
    target: str | Path, golden: str | Path
) -> Iterator[tuple[str, Mapping[str, Path], Mapping[str, Path]]]:
    """Yield the steps of both sides by name, with the ranks of each; a single one on each side whatever its name."""
    ours, theirs = find_dumps(target), find_dumps(golden)
    _check_parts(target, ours, golden, theirs)
    if len(ours) == len(theirs) == 1:
        ((step, ranks),), (others,) = ours.items(), theirs.values()
        yield step if _STEP.match(step) else "", ranks, others
        return
    for step in sorted({*ours, *theirs}, key=lambda name: (_number(_STEP, name), name)):
        yield step, ours.get(step, {}), theirs.get(step, {})


def _check_parts(target: str | Path, ours: Found, golden: str | Path, theirs: Found) -> None:
    """Refuse a run in two parts against one of a single part: no step of one is on the other side."""
    divided = {path: any("/" in step for step in found) for path, found in ((target, ours), (golden, theirs))}
    if len(divided) > 1 and divided[target] != divided[golden]:
        parts, whole = (target, golden) if divided[target] else (golden, target)
        raise DumpReadError(
            f"{parts} is in two parts ({' and '.join(PARTS)}: compiled Cells and all else), {whole} is not; give one "
            f"of the parts, e.g. {Path(parts) / PARTS[-1]}"
        )


def rank_files(ranks: Mapping[str, Path]) -> tuple[Path, ...]:
    """Return the dump files of one step in the order of the ranks."""
    return tuple(ranks[name] for name in _rank_order(ranks))


def _pair_ranks(step: str, target: Mapping[str, Path], golden: Mapping[str, Path]) -> list[FolderPair]:
    ours, theirs = _rank_order(target), _rank_order(golden)
    processes = any(name.startswith("proc") for name in [*ours, *theirs])
    if len(ours) == len(theirs) and (len(ours) == 1 or processes):
        partner = dict(zip(ours, theirs, strict=True))
    else:
        partner = {name: name for name in ours if name in golden}
    pairs = [FolderPair(step, name, target[name], golden[partner[name]] if name in partner else None) for name in ours]
    taken = set(partner.values())
    return pairs + [FolderPair(step, name, None, golden[name]) for name in theirs if name not in taken]


def _rank_order(ranks: Mapping[str, Path]) -> list[str]:
    return sorted(ranks, key=lambda name: (_number(_RANK, name), name))


def _number(pattern: re.Pattern[str], name: str) -> int:
    match = pattern.match(name)
    return int(match.group(1)) if match else -1


def _step_number(entry: Path) -> int:
    return _number(_STEP, entry.name)


def _steps(root: Path) -> Found:
    return {step.name: _ranks(step) for step in sorted(root.iterdir(), key=_step_number) if _STEP.match(step.name)}


def _dump_file(folder: Path) -> Path | None:
    return next((folder / name for name in _FILES if (folder / name).is_file()), None)


def _ranks(step: Path) -> dict[str, Path]:
    if not step.is_dir():
        return {}
    found = {entry.name: _dump_file(entry) for entry in sorted(step.iterdir()) if entry.is_dir()}
    return {name: file for name, file in found.items() if file is not None}


def first_of(names: Sequence[str], most: int) -> str:
    """Return the first names for a message, and how many there are beyond ``most``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
