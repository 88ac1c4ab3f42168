"""Values that taps had MindSpore write, as entries: files of TensorDump, or rows of statistic.csv."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from msprobe.measure.kernel_statistics import tensor_entry
from msprobe.ms_static.kernel_records import statistics_entry
from msprobe.ms_static.tap_dump import place_in_name
from msprobe.ms_static.tap_places import Place
from msprobe.store.kernel_files import load_kernel_array, read_statistics, tensordump_files

Record: TypeAlias = dict[str, Any]
TapValues: TypeAlias = Sequence[tuple[Place, Callable[[str], Record | None]]]
LinkTensor: TypeAlias = Callable[[str, Path], str | None]


def file_values(folder: Path, link: LinkTensor, *, low: bool) -> TapValues:
    """Return place and entry of every file of one step, in the order in which they were written.

    A file is removed when its entry has been made: it has its name among the tensor files of the step then.
    """
    found = ((place_in_name(file.path.name), file) for file in tensordump_files(folder))
    return [
        (place, partial(_file_entry, file.path, file.dtype, link, low)) for place, file in found if place is not None
    ]


def _file_entry(file: Path, dtype: str, link: LinkTensor, low: bool, path: str) -> Record:
    entry = tensor_entry(load_kernel_array(file), dtype, low=low)
    data_name = link(f"{path}.npy", file)
    if data_name is not None:
        entry["data_name"] = data_name
        file.unlink(missing_ok=True)
    return entry


def statistic_values(folders: Sequence[Path]) -> TapValues:
    """Return place and entry of every row of the statistics of one step, by time.

    TensorDump's first input is the name of its file, whose row says nothing.
    """
    rows = [row for folder in folders for row in read_statistics(folder) if row.side == "input" and row.slot > 0]
    found = ((place_in_name(row.op_name), row) for row in sorted(rows, key=lambda row: row.timestamp))
    return [(place, partial(_row_entry, row)) for place, row in found if place is not None]


def _row_entry(row: Any, _: str) -> Record:
    return statistics_entry(row)
