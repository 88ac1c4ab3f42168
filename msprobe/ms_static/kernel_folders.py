"""Kernel dumps that are on disk already -> dumps in our format, so that they can be compared.

For runs that MindSpore wrote without us: statistics of an Ascend device, dumps of other tools, asynchronous dumps that
were not complete when their step ended.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msprobe.core.errors import MsprobeError
from msprobe.ms_static.dumped_step import DumpedStep
from msprobe.store import RunLayout
from msprobe.store.kernel_files import find_iterations, scope_names

_RANK = re.compile(r"rank_?(\d+)\Z")


class KernelDumpError(MsprobeError, ValueError):
    """A folder that holds no kernel dump; the message says what is there instead."""


@dataclass(frozen=True, slots=True)
class ConvertedStep:
    """One rank of one step.

    Attributes
    ----------
    folder : Path
        Where its dump.json is.
    records : int
        Launches of kernels in it.
    null_reasons : mapping
        Why tensors could not be read, and how many.
    """

    folder: Path
    records: int
    null_reasons: Mapping[str, int]


def convert_kernel_dump(source: Path, target: Path) -> list[ConvertedStep]:
    """Write dumps in our format for a folder of MindSpore.

    Parameters
    ----------
    source : Path
        A ``dump_path``, one ``rank_R`` folder of it, or any folder with dumped tensors or a statistic.csv below it.
    target : Path
        Gets ``step{N}/rank{R}``. Tensor files are hard links where the file system has them.

    Returns
    -------
    list of ConvertedStep

    Raises
    ------
    KernelDumpError
        There is no kernel dump in ``source``.
    """
    if not source.is_dir():
        raise KernelDumpError(f"{source}: there is no such folder")
    ranks = {int(match[1]): folder for folder in source.iterdir() if (match := _RANK.match(folder.name))}
    if not ranks:
        match = _RANK.match(source.name)
        ranks = {int(match[1]) if match else 0: source}
    done = [step for rank, folder in sorted(ranks.items()) for step in _convert_rank(folder, rank, target)]
    if not done:
        inside = ", ".join(sorted(entry.name for entry in source.iterdir())[:8]) or "nothing"
        raise KernelDumpError(
            f"{source}: no statistic.csv and no TYPE.NAME.TASK.STREAM.TIME.input|output.SLOT.FORMAT.DTYPE.npy below "
            f"it, but {inside}; give the dump_path of a MindSpore run"
        )
    return done


def _convert_rank(folder: Path, rank: int, target: Path) -> list[ConvertedStep]:
    layout = RunLayout(target, rank=rank)
    scopes = scope_names(folder)
    done = []
    for number, places in sorted(find_iterations(folder).items()):
        writer = layout.open_step(
            number,
            task="tensor",
            level="L2",
            framework="mindspore",
            extra_info=False,
            tensors=True,
            render_stack=_no_stack,
            flush_every=None,
        )
        step = DumpedStep(places, scopes, low=True)
        count = 0
        for name, record in step.records(writer.link_tensor):
            writer.add(name, record)
            count += 1
        writer.finish(_coverage(step))
        done.append(ConvertedStep(writer.folder, count, dict(step.null_reasons)))
    return done


def _coverage(step: DumpedStep) -> Mapping[str, Any]:
    return {"not_recorded": {}, "null_statistics": dict(step.null_reasons)}


def _no_stack(_: object) -> list[str]:
    return []
