"""``extra-info/``: the tensors of an API that raised because of a NaN, in the directory the user works in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from msprobe.store.step_folder import StepFolder
from msprobe.store.tensor_files import TensorFiles

EXTRA_INFO = "extra-info"


def extra_info_folder(step_folder: Path) -> Path:
    """Return ``./extra-info/step{N}/rank{R}`` for the dump folder of a step: ranks and steps do not mix."""
    return Path.cwd() / EXTRA_INFO / step_folder.parent.name / step_folder.name


def write_extra_info(folder: Path, savers: Mapping[str, Callable[[BinaryIO], object]]) -> list[str]:
    """Write tensor files; those of the same name, from an earlier run, are replaced.

    Parameters
    ----------
    folder
        As :func:`extra_info_folder` returned it; made if it is missing.
    savers
        File name (made safe for the file system) -> function that writes the content to an open binary file.

    Returns
    -------
    list of str
        Names of the files.

    Raises
    ------
    OSError
        The folder or a file cannot be written; files before it are there.
    """
    parent = StepFolder(folder.parent)
    try:
        files = TensorFiles(parent, folder.name)
        try:
            return [files.write(name, save) for name, save in savers.items()]
        finally:
            files.close()
    finally:
        parent.close()
