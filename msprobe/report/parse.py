"""``msprobe parse``: which of tensor file, folder of tensor files or dump a path is, and what is in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from msprobe.compare.pairing import find_dumps
from msprobe.report.dump_summary import summarise_dump
from msprobe.report.element_differences import element_differences
from msprobe.report.parse_view import show_differences, show_dump, show_tensor, show_tensors
from msprobe.report.step_order import in_order, number_in
from msprobe.report.tensor_summary import TensorSummary, summarise
from msprobe.store.reader import DumpReadError
from msprobe.store.tensor_reader import TensorReadError, read_tensor

TENSOR_SUFFIXES = frozenset({".pt", ".npy"})


def parse_paths(paths: list[Path], top: int, console: Console) -> int:
    """Show what is in each path; two tensor files are compared element by element.

    Parameters
    ----------
    paths
        Tensor files (``.pt``, ``.npy``), folders of them such as ``extra-info``, dump files, or folders of dumps.
    top
        How many elements or values to show of each.
    console
        Where to print.

    Returns
    -------
    int
        Exit code: 1 if two tensors were compared and differ, 0 else.

    Raises
    ------
    TensorReadError, DumpReadError
        A path is none of these, or damaged.
    ValueError
        Two tensors have no elements to pair.
    """
    files = [path.suffix in TENSOR_SUFFIXES and not path.is_dir() for path in paths]
    if len(paths) == 2 and all(files):
        return _compare(paths[0], paths[1], top, console)
    for path, is_tensor in zip(paths, files, strict=True):
        if is_tensor:
            tensor = read_tensor(path)
            show_tensor(console, path, summarise(tensor.array, tensor.dtype, top))
        else:
            _show_folder(path, top, console)
    return 0


def _compare(first: Path, second: Path, top: int, console: Console) -> int:
    one, other = read_tensor(first), read_tensor(second)
    if one.array.shape != other.array.shape:
        raise TensorReadError(
            f"{first} has shape {list(one.array.shape)}, {second} {list(other.array.shape)}: their elements have no "
            "partners; give one path at a time to see what is in each"
        )
    console.print(f"first   {first}\nsecond  {second}", markup=False, soft_wrap=True)
    found = element_differences(one, other, top)
    show_differences(console, (one, other), found)
    return int(found.different > 0)


def _show_folder(path: Path, top: int, console: Console) -> None:
    try:
        dumps = in_order(find_dumps(path))
    except DumpReadError:
        folders = _tensor_folders(path)
        if not folders:
            raise
        for folder, files in folders:
            show_tensors(console, folder, list(_summaries(files, top)))
        return
    for _, ranks in dumps:
        for _, file in ranks:
            show_dump(console, summarise_dump(file, top))


def _tensor_folders(path: Path) -> list[tuple[Path, list[Path]]]:
    """Return the folders below a path that have tensor files, steps and ranks in order of their numbers."""
    if not path.is_dir():
        return []
    inside: dict[Path, list[Path]] = {}
    for file in sorted(path.rglob("*")):
        if file.suffix in TENSOR_SUFFIXES and file.is_file():
            inside.setdefault(file.parent, []).append(file)
    return sorted(inside.items(), key=lambda item: [number_in(part) for part in item[0].parts])


def _summaries(files: list[Path], top: int) -> Iterator[tuple[str, TensorSummary]]:
    for file in files:
        tensor = read_tensor(file)
        yield file.name, summarise(tensor.array, tensor.dtype, top)
