"""The option that names the interpreter of mindstudio-probe."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path


def add_peer_python(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add ``--peer-python``: a path, also a relative one, or a command that is found on the search path."""
    parser.add_argument(
        "--peer-python",
        type=_interpreter,
        required=required,
        metavar="PYTHON",
        help="interpreter of the environment of mindstudio-probe",
    )


def _interpreter(given: str) -> str:
    found = shutil.which(given)
    if found is None:
        raise argparse.ArgumentTypeError(f"no interpreter at {given}: make the environment first")
    # Runs have working folders of their own. A link is kept: where it leads is another environment's interpreter.
    return str(Path(found).absolute())
