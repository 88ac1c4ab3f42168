"""Find and load the compiled operators (`build`). They are an accelerator: whatever they do works without them."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from msprobe.kernels.npu.build import HERE, BuildError, library_name

#: Folder of the library when it is not in the package, for installations that cannot be written to.
FOLDER_VARIABLE = "MSPROBE_NPU_FOLDER"
_BUILD = "run `python -m msprobe.kernels.npu.build` to get them"


def find() -> tuple[Path | None, str | None]:
    """Return the library for the installed torch and torch_npu, or why there is none.

    Returns
    -------
    tuple of (Path or None, str or None)
        Exactly one of the two is None.
    """
    if os.environ.get("MSPROBE_NO_NATIVE") == "1":
        return None, "NPU operators: switched off by MSPROBE_NO_NATIVE=1: unset it to use them"
    folder = Path(os.environ.get(FOLDER_VARIABLE, HERE))
    try:
        wanted = folder / library_name()
    except BuildError as error:
        return None, str(error)
    if wanted.is_file():
        return wanted, None
    others = sorted(path.name for path in folder.glob("libmsprobe_npu-*.so"))
    if others:
        return None, f"NPU operators: {folder} has {others[0]}, but {wanted.name} is needed; {_BUILD}"
    return None, f"NPU operators: not built ({wanted} does not exist); {_BUILD}"


@cache
def loaded() -> tuple[Any | None, str | None]:
    """Load the library once; return ``torch.ops.msprobe_npu``, or why the operators cannot be used."""
    library, missing = find()
    if library is None:
        return None, missing
    import torch  # noqa: PLC0415 - this file is also read by commands that need no framework
    import torch_npu  # noqa: F401, PLC0415 - the library takes its symbols from it

    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        return None, f"NPU operators: {library} does not load ({error}); {_BUILD}"
    return torch.ops.msprobe_npu, None


def operators() -> Any | None:
    """Return ``torch.ops.msprobe_npu``, None where its library is missing or does not load (see `problem`)."""
    return loaded()[0]


def problem() -> str | None:
    """Return why the operators cannot be used, in one sentence; None when they can. Needs torch_npu."""
    return loaded()[1]
