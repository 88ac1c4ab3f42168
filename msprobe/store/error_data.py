"""The folder of ``error_data_path``: looked at before a long run relies on it, and what is kept there."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from msprobe.store.step_folder import StepFolder
from msprobe.store.tensor_files import TensorFiles, safe_file_name


def error_data_problem(path: Path) -> str | None:
    """Say why no files can be kept under a path, None if they can. A folder that is missing is made when needed.

    Parameters
    ----------
    path
        ``acc_check.error_data_path``.
    """
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        return f"{existing} is a file, not a folder"
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"the current user may not write to {existing}"
    return None


class ErrorData:
    """Folders with what is needed to look at failures, one for each.

    Parameters
    ----------
    folder
        Made with the first failure.
    """

    __slots__ = ("_folder",)

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()

    def write(self, name: str, writers: Mapping[str, Callable[[BinaryIO], object]]) -> str:
        """Write the files of one failure, over those of an earlier one of the same name.

        Parameters
        ----------
        name
            Of the record; the folder is called so.
        writers
            File name to what writes its content.

        Returns
        -------
        str
            The folder; empty if something could not be written.
        """
        place = safe_file_name(name)
        try:
            parent = StepFolder(self._folder)
        except OSError:
            return ""
        files = None
        try:
            files = TensorFiles(parent, place)
            for file_name, write in writers.items():
                files.write(file_name, write)
        except (OSError, RuntimeError):  # torch.save reports a full disk as RuntimeError
            return ""
        finally:
            if files is not None:
                files.close()
            parent.close()
        return str(self._folder / place)
