"""What MindSpore's own kernel dump leaves on disk: file names, statistic.csv, the folders of an iteration.

Kernel by kernel (jit_level O0, O1, CPU): ``dump_path/rank_R/Net/GRAPH/ITERATION/``. Whole graphs (O2):
``dump_path/STEP/TIME/DEVICE/MODEL/ID/ITERATION/``. Names of kernels have underscores where their scopes have slashes.
"""

from __future__ import annotations

import contextlib
import csv
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from msprobe.store.json_bytes import dumps_json
from msprobe.store.process_start import run_start
from msprobe.store.run_marks import looks_earlier
from msprobe.store.run_place import EARLIER, aside_name
from msprobe.store.step_folder import FOLDER_MODE

STATISTIC_FILE = "statistic.csv"
MAPPING_FILE = "mapping.csv"
HEAD_COLUMNS = (
    "Op Type",
    "Op Name",
    "Task ID",
    "Stream ID",
    "Timestamp",
    "IO",
    "Slot",
    "Data Size",
    "Data Type",
    "Shape",
)

Side = Literal["input", "output"]
_SIDES: dict[str, Side] = {"input": "input", "output": "output"}
_FLATTENED = re.compile(r"[./\\ ]")
_STEP_FOLDER = re.compile(r"step_?(\d+)\Z")
_WHOLE_GRAPH_DEPTH = 6
_QUIET_LOOKS = 5
_LOOK_EVERY = 0.05
_TENSORDUMP = re.compile(r"_(?P<dtype>[a-z]+\d*)_(?P<id>\d+)\Z")


@dataclass(frozen=True, slots=True)
class KernelTensor:
    """One tensor of one kernel, as a file or as a row of statistics.

    Attributes
    ----------
    op_type
        ``MatMul``.
    op_name
        Scope of the kernel; with underscores for slashes as long as only the file name is known.
    task, stream
        As in the name of the file; 0 on the CPU.
    timestamp
        Microseconds; orders the tensors.
    side, slot
        Which input or output.
    dtype
        ``Float32``.
    shape
        None while only the file knows it.
    file
        The tensor; None for statistics only.
    statistics
        Column of statistic.csv -> text; empty for a file.
    """

    op_type: str
    op_name: str
    task: str
    stream: str
    timestamp: int
    side: Side
    slot: int
    dtype: str
    shape: tuple[int, ...] | None
    file: Path | None
    statistics: Mapping[str, str]


def write_dump_config(file: Path, content: Mapping[str, Any]) -> None:
    """Write the file that tells MindSpore what to dump; ranks that write the same one do not disturb each other.

    Raises
    ------
    OSError
        The file system refuses.
    """
    file.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(dumps_json(content))
        temporary.rename(file)
    finally:
        temporary.unlink(missing_ok=True)


def parse_kernel_file(path: Path, name: str | None = None) -> KernelTensor | None:
    """Take the name of a dumped tensor apart: ``TYPE.NAME.TASK.STREAM.TIME.input|output.SLOT.FORMAT.DTYPE.npy|bin``.

    Parameters
    ----------
    path
        The file.
    name
        Its real name, where a long one was replaced.

    Returns
    -------
    KernelTensor or None
        None for any other file.
    """
    parts = (name or path.name).split(".")
    if len(parts) < 10 or parts[-1] not in ("npy", "bin"):
        return None
    op_type, *middle = parts[:-8]
    task, stream, timestamp, side, slot, _, dtype = parts[-8:-1]
    if side not in _SIDES or not (timestamp.isdigit() and slot.isdigit()):
        return None
    op_name = ".".join(middle)
    return KernelTensor(op_type, op_name, task, stream, int(timestamp), _SIDES[side], int(slot), dtype, None, path, {})


def read_kernel_files(folder: Path) -> list[KernelTensor]:
    """Return the tensors in a folder, in the order in which they were dumped; no file is opened."""
    names = _real_names(folder)
    found = (parse_kernel_file(entry, names.get(entry.name)) for entry in folder.iterdir())
    return sorted((tensor for tensor in found if tensor is not None), key=lambda tensor: tensor.timestamp)


def _real_names(folder: Path) -> dict[str, str]:
    """Return file name -> the name that was too long for the file system."""
    file = folder / MAPPING_FILE
    if not file.is_file():
        return {}
    with file.open(newline="", encoding="utf-8") as lines:
        return {row[0].strip(): row[1].strip() for row in csv.reader(lines) if len(row) >= 2}


def read_statistics(folder: Path) -> Iterator[KernelTensor]:
    """Yield the rows of a folder's statistic.csv; nothing if there is none.

    Raises
    ------
    ValueError
        If it is no such file; the message names it and its columns.
    """
    file = folder / STATISTIC_FILE
    if not file.is_file():
        return
    with file.open(newline="", encoding="utf-8") as lines:
        rows = csv.DictReader(lines, skipinitialspace=True)
        missing = set(HEAD_COLUMNS) - set(rows.fieldnames or ())
        if missing:
            raise ValueError(f"{file}: no statistics of MindSpore, the columns {sorted(missing)} are missing")
        for row in rows:
            tensor = _row_tensor(row)
            if tensor is not None:
                yield tensor


def _row_tensor(row: Mapping[str, str | None]) -> KernelTensor | None:
    """Return a row as a tensor; None for one that was cut off."""
    head = [row[column] for column in HEAD_COLUMNS]
    op_type, op_name, task, stream, timestamp, side, slot, _, dtype, shape = (value or "" for value in head)
    if side not in _SIDES or not timestamp.isdigit():
        return None
    sizes = tuple(int(size) for size in re.findall(r"\d+", shape))
    values = {name: text for name, text in row.items() if name not in HEAD_COLUMNS and name and text is not None}
    return KernelTensor(
        op_type, op_name, task, stream, int(timestamp), _SIDES[side], int(slot or 0), dtype, sizes, None, values
    )


def write_statistics(
    folder: Path, columns: tuple[str, ...], rows: Iterator[tuple[KernelTensor, int, list[str]]]
) -> None:
    """Write a folder's statistic.csv as MindSpore does.

    Parameters
    ----------
    folder
        Holds the tensors.
    columns
        Names of the statistics.
    rows
        Tensor with its shape, its size in bytes, and the texts of the statistics.

    Raises
    ------
    OSError
        The file system refuses; no file is left behind then.
    """
    temporary = folder / f".{STATISTIC_FILE}.tmp"
    try:
        with temporary.open("w", newline="", encoding="utf-8") as lines:
            table = csv.writer(lines)
            table.writerow((*HEAD_COLUMNS, *columns))
            for tensor, size, values in rows:
                shape = f"({','.join(map(str, tensor.shape or ()))})"
                head = (tensor.op_type, tensor.op_name, tensor.task, tensor.stream, tensor.timestamp, tensor.side)
                table.writerow((*head, tensor.slot, size, tensor.dtype, shape, *values))
        temporary.rename(folder / STATISTIC_FILE)
    finally:
        temporary.unlink(missing_ok=True)


def load_kernel_array(file: Path) -> NDArray[np.generic]:
    """Map a dumped ``.npy`` file into memory.

    Raises
    ------
    OSError, ValueError
        It cannot be read, or is no array.
    """
    array: NDArray[np.generic] = np.load(file, mmap_mode="r", allow_pickle=False)
    return array


@dataclass(frozen=True, slots=True)
class DumpedFile:
    """A file of MindSpore's TensorDump: ``NAME_DTYPE_ID.npy``; ids count up over the whole run."""

    path: Path
    dtype: str
    number: int


def await_tensordump(folder: Path, limit: float = 10.0) -> None:
    """Return when no file has come into a folder for a while: a thread of MindSpore writes them, and tells nobody.

    Parameters
    ----------
    folder
        It need not exist.
    limit
        Seconds after which to return in any case.
    """
    end, known, quiet = time.monotonic() + limit, -1, 0
    while quiet < _QUIET_LOOKS and time.monotonic() < end:
        count = sum(1 for _ in folder.glob("*.npy"))
        quiet = quiet + 1 if count == known else 0
        known = count
        time.sleep(_LOOK_EVERY)


def tensordump_files(folder: Path) -> list[DumpedFile]:
    """Return the files of TensorDump in a folder, in the order in which they were written."""
    found = []
    for path in folder.glob("*.npy"):
        match = _TENSORDUMP.search(path.stem)
        if match is not None:
            word = match["dtype"]
            dtype = (
                "BFloat16" if word == "bfloat16" else word.replace("uint", "UInt") if "uint" in word else word.title()
            )
            found.append(DumpedFile(path, dtype, int(match["id"])))
    return sorted(found, key=lambda file: file.number)


def remove_tensordump(folder: Path) -> None:
    """Remove the files of TensorDump in a folder; what cannot be removed stays."""
    for file in tensordump_files(folder):
        with contextlib.suppress(OSError):
            file.path.unlink()


def iteration_folders(rank_folder: Path, step: int) -> list[Path]:
    """Return the folders in which the kernel-by-kernel dump has put one step of one rank, graph by graph."""
    graphs = sorted(rank_folder.glob("*/*/"), key=lambda graph: (len(graph.name), graph.name))
    return [graph / str(step) for graph in graphs if (graph / str(step)).is_dir()]


def find_iterations(rank_folder: Path) -> dict[int, list[Path]]:
    """Return step -> folders with dumped tensors or statistics, anywhere below a folder of one rank or device."""
    found: dict[int, list[Path]] = {}
    for place, folders, files in os.walk(rank_folder):
        folders.sort()
        if {STATISTIC_FILE, MAPPING_FILE} & set(files) or any(parse_kernel_file(Path(name)) for name in files):
            step = _step_of(Path(place).relative_to(rank_folder).parts)
            if step is not None:
                found.setdefault(step, []).append(Path(place))
    return found


def _step_of(parts: tuple[str, ...]) -> int | None:
    for part in parts:
        if match := _STEP_FOLDER.match(part):
            return int(match[1])
    if len(parts) >= _WHOLE_GRAPH_DEPTH and parts[0].isdigit():
        return int(parts[0])
    return int(parts[-1]) if parts and parts[-1].isdigit() else None


def scope_names(rank_folder: Path) -> dict[str, str]:
    """Return kernel name as in file names -> full scope, from the execution order that MindSpore wrote.

    A name that stands for two scopes is left out.
    """
    found: dict[str, str | None] = {}
    for file in sorted((rank_folder / "execution_order").glob("ms_execution_order_graph_*.csv")):
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                scope = line.strip()
                flat = _FLATTENED.sub("_", scope)
                found[flat] = scope if found.get(flat, scope) == scope else None
    return {flat: scope for flat, scope in found.items() if scope is not None}


def remove_tensors(folder: Path) -> None:
    """Remove the dumped tensors of a folder; what cannot be removed stays."""
    for tensor in read_kernel_files(folder):
        if tensor.file is not None:
            with contextlib.suppress(OSError):
                tensor.file.unlink()


def set_aside(dump_path: Path, name: str) -> Path | None:
    """Move what an earlier run has left under a name to ``dump_path/earlier``.

    Returns
    -------
    Path or None
        Where it is now; None if there was nothing, or it belongs to this run.

    Raises
    ------
    OSError
        The file system refuses.
    """
    old = dump_path / name
    if not old.exists() or not looks_earlier(old, run_start(os.environ)):
        return None
    target = dump_path / EARLIER / aside_name() / name
    target.parent.mkdir(parents=True, exist_ok=True)
    old.rename(target)
    return target
