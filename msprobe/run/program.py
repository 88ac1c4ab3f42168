"""Run a program in this process as ``python PROGRAM ARGS`` would: same ``__main__``, arguments, path and exit.

The program sees nothing of what started it, with three exceptions: ``sys.orig_argv``, the frames below its own
``<module>`` frame, and what was imported before it.
"""

from __future__ import annotations

import os
import runpy
import sys
import types
import zipfile
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from msprobe.core.errors import LifecycleError

_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep


class Program(NamedTuple):
    """What to run.

    Attributes
    ----------
    target : str
        A script, a folder or zip file with a ``__main__.py``, or the name of a module.
    arguments : tuple of str
        Its arguments.
    is_module : bool
        Whether ``target`` names a module (``python -m``).
    """

    target: str
    arguments: tuple[str, ...]
    is_module: bool = False


def check_program(program: Program) -> None:
    """Refuse a script that cannot be read, before anything is started for it.

    Raises
    ------
    LifecycleError
    """
    if program.is_module:
        return
    path = Path(program.target)
    try:
        if not path.is_dir():
            path.open("rb").close()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise LifecycleError(f"cannot read the script {program.target}: {reason}") from None


def run_program(program: Program) -> None:
    """Run the program as ``__main__``. What it raises passes through, ``SystemExit`` included.

    A traceback that the interpreter prints for it begins in the program and holds no frame of this package.
    """
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = main
    # The interpreter knows no better name for a module before it has found it.
    sys.argv[:] = ["-m" if program.is_module else program.target, *program.arguments]
    try:
        if program.is_module:
            _put_on_path(str(Path.cwd()))
            runpy._run_module_as_main(program.target)  # type: ignore[attr-defined]
        elif os.path.isdir(program.target) or zipfile.is_zipfile(program.target):  # noqa: PTH112 - any text
            _put_on_path(os.path.abspath(program.target))  # noqa: PTH100
            runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
        else:
            _run_script(program.target, main)
    except SystemExit:
        raise
    except BaseException as error:
        _hide_own_frames(error)
        raise


def _run_script(script: str, main: types.ModuleType) -> None:
    path = os.path.abspath(script)  # noqa: PTH100 - links stay, as in __file__ of plain Python
    _put_on_path(os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
    loader = SourceFileLoader("__main__", path)
    main.__file__ = path
    main.__loader__ = loader
    main.__dict__.update(__cached__=None)
    if sys.version_info < (3, 14):
        main.__dict__.update(__annotations__={})
    source = Path(path).read_bytes()
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - the user's own script


def _put_on_path(entry: str) -> None:
    """Replace the entry that the interpreter has made for the command that was started."""
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return
    sys.path[0:1] = [entry]


def _hide_own_frames(error: BaseException) -> None:
    """Have the interpreter print the traceback that it would print without us.

    The frames below the program can be cut off only when the exception has left them, so that is done by the hook that
    prints it: that of the program, or the default.
    """
    first = error.__traceback__
    while first is not None and first.tb_frame.f_code is not run_program.__code__:
        first = first.tb_next
    traceback = _without_own_frames(first)
    show = sys.excepthook

    def show_clean(kind: type[BaseException], value: BaseException, found: TracebackType | None) -> None:
        if value is error:
            value.__traceback__ = found = traceback
        show(kind, value, found)

    sys.excepthook = show_clean


def _without_own_frames(entry: TracebackType | None) -> TracebackType | None:
    kept = []
    while entry is not None:
        if not entry.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            kept.append(entry)
        entry = entry.tb_next
    for inner, outer in zip(kept[1:], kept, strict=False):
        outer.tb_next = inner
    if kept:
        kept[-1].tb_next = None
    return kept[0] if kept else None
