"""One step that MindSpore has dumped, read back: tensors or statistics of all graphs as records, in execution order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from msprobe.measure.kernel_statistics import measure_categories, tensor_entry
from msprobe.ms_static.categories import COLUMNS
from msprobe.ms_static.kernel_records import Entry, KernelNames, kernel_record, launches, statistics_entry
from msprobe.store.kernel_files import (
    KernelTensor,
    load_kernel_array,
    read_kernel_files,
    read_statistics,
    remove_tensors,
    write_statistics,
)

LinkTensor: TypeAlias = Callable[[str, Path], str | None]

BIN_FILE = "bin file in the device's own format: convert it to npy with CANN's msaccucmp.py"


class DumpedStep:
    """What one rank has dumped in one step.

    Parameters
    ----------
    folders : sequence of Path
        With tensors or a statistic.csv, one per graph.
    scopes : mapping
        Kernel name as in file names -> full scope.
    low : bool
        Round statistics to the dtype of the tensor.
    categories : sequence of str, optional
        Statistics that are wanted although only tensors were dumped: they are measured, written to statistic.csv as
        MindSpore would have done, and the tensors removed.

    Attributes
    ----------
    null_reasons : Counter
        Why tensors could not be read, and how many.
    """

    def __init__(
        self, folders: Sequence[Path], scopes: Mapping[str, str], *, low: bool, categories: Sequence[str] | None = None
    ) -> None:
        self._folders = folders
        self._scopes = scopes
        self._low = low
        self._categories = categories
        self.null_reasons: Counter[str] = Counter()

    def records(self, link: LinkTensor | None) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield name and record of every launch.

        Parameters
        ----------
        link
            Gives a dumped file a name among the tensor files of the step; None: there are none.
        """
        if self._categories is not None:
            for folder in self._folders:
                self._measure(folder, self._categories)
        tensors = [tensor for folder in self._folders for tensor in _tensors_of(folder)]
        names = KernelNames(self._scopes)
        for launch in launches(sorted(tensors, key=lambda tensor: tensor.timestamp)):
            name = names.take(launch)
            yield name, kernel_record(launch, name, lambda tensor, path: self._entry(tensor, path, link))

    def _entry(self, tensor: KernelTensor, path: str, link: LinkTensor | None) -> Entry:
        if tensor.file is None:
            return statistics_entry(tensor)
        entry = self._file_entry(tensor, tensor.file)
        data_name = link(f"{path}{tensor.file.suffix}", tensor.file) if link is not None else None
        if data_name is not None:
            entry["data_name"] = data_name
        return entry

    def _file_entry(self, tensor: KernelTensor, file: Path) -> Entry:
        reason = BIN_FILE
        if file.suffix == ".npy":
            try:
                return tensor_entry(load_kernel_array(file), tensor.dtype, low=self._low)
            except (OSError, ValueError) as error:
                reason = f"{type(error).__name__} while reading a dumped tensor"
        self.null_reasons[reason] += 1
        empty = dict.fromkeys(("Max", "Min", "Mean", "Norm"))
        return {"type": "mindspore.Tensor", "dtype": tensor.dtype, "shape": None, **empty, "reason": reason}

    def _measure(self, folder: Path, categories: Sequence[str]) -> None:
        """Replace the tensors of a folder by their statistics."""
        columns = tuple(COLUMNS[category] for category in categories)
        write_statistics(folder, columns, self._rows(folder, categories))
        remove_tensors(folder)

    def _rows(self, folder: Path, categories: Sequence[str]) -> Iterator[tuple[KernelTensor, int, list[str]]]:
        for tensor in read_kernel_files(folder):
            if tensor.file is None:
                continue
            try:
                array = load_kernel_array(tensor.file)
            except (OSError, ValueError) as error:
                self.null_reasons[f"{type(error).__name__} while reading a dumped tensor"] += 1
                continue
            values = measure_categories(array, categories, low=self._low).values()
            yield replace(tensor, shape=array.shape), array.nbytes, [str(value) for value in values]


def _tensors_of(folder: Path) -> Iterator[KernelTensor]:
    """Yield the tensors of a folder; where it has both, files and not their statistics."""
    files = read_kernel_files(folder)
    yield from files or read_statistics(folder)
