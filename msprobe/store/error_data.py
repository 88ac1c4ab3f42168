"""The folder of ``error_data_path``, looked at before a long run relies on it."""

from __future__ import annotations

import os
from pathlib import Path


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
