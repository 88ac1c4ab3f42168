"""Exceptions of msprobe: each says what is wrong, where, with which value, and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

_VALUE_WIDTH = 80


class _Missing(Enum):
    """An enum member survives pickling as itself, which a bare ``object()`` does not."""

    NOT_SET = "not set"

    def __repr__(self) -> str:
        return "NOT_SET"


NOT_SET: Final = _Missing.NOT_SET
"""Stands for the value of a key that is absent although it is required."""


class MsprobeError(Exception):
    """Base class of every exception that msprobe raises on purpose."""


class LifecycleError(MsprobeError, ValueError):
    """A call of the Python API that cannot be carried out: wrong arguments, or no debugger to carry it out."""


class NaNDetectedError(MsprobeError, FloatingPointError):
    """An API named in ``nan_check.tensor_list`` has produced a NaN or an Inf. Raised into the user's program.

    Parameters
    ----------
    record : str
        Name of the record, e.g. ``Tensor.__truediv__.0.forward``.
    found : str
        How it was found.
    folder : str
        Where the inputs and outputs are.
    files : sequence of str
        Names of their files in it; empty if none could be written.
    """

    def __init__(self, record: str, found: str, folder: str, files: Sequence[str]) -> None:
        super().__init__(record, found, folder, files)
        self.record = record
        self.found = found
        self.folder = folder
        self.files: tuple[str, ...] = tuple(files)

    def __str__(self) -> str:
        kept = f"its inputs and outputs are in {self.folder}: {', '.join(self.files)}"
        if not self.files:
            kept = f"its inputs and outputs could not be written to {self.folder}"
        return (
            f"{self.record}: {self.found}; {kept}. To go on without stopping here, take what matches this name out of "
            "nan_check.tensor_list"
        )


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a configuration.

    Attributes
    ----------
    path : str
        Key path as a user writes it: ``level``, ``statistics.scope[1]``.
    value : object
        The refused value, or :data:`NOT_SET`.
    allowed : str
        What would be accepted instead.
    hint : str
        What to write, when it can be guessed (closest match), or what else would work.
    line, column : int or None
        Place in the configuration file, 1-based. None when the value did not come from a file.
    origin : str
        Where the value came from if not from the file, e.g. ``keyword argument``.
    """

    path: str
    value: object
    allowed: str
    hint: str = ""
    line: int | None = None
    column: int | None = None
    origin: str = ""

    def __str__(self) -> str:
        place = self.origin or (f"line {self.line}, column {self.column}" if self.line is not None else "")
        where = f"{self.path} ({place})" if place else self.path
        state = "is not set" if self.value is NOT_SET else f"= {show_value(self.value)}"
        lines = [f"{where} {state}", f"    allowed: {self.allowed}"]
        if self.hint:
            lines.append(f"    hint: {self.hint}")
        return "\n".join(lines)


class ConfigError(MsprobeError, ValueError):
    """A configuration that cannot be used. Holds every problem found, not only the first.

    Parameters
    ----------
    problems : sequence of Problem
        At least one.
    source : str
        What was being read: a file name, or a description.
    notes : sequence of str
        Warnings found on the way (such as misspelt keys): they often explain a problem.
    """

    def __init__(self, problems: Sequence[Problem], source: str = "", notes: Sequence[str] = ()) -> None:
        # All arguments go to `args` unchanged, so that the exception can be pickled between processes.
        super().__init__(problems, source, notes)
        self.problems: tuple[Problem, ...] = tuple(problems)
        self.source = source
        self.notes: tuple[str, ...] = tuple(notes)

    def __str__(self) -> str:
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        lines = [f"{self.source or 'configuration'}: {count}"]
        lines += [f"{number}. {problem}" for number, problem in enumerate(self.problems, start=1)]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)


def show_value(value: object) -> str:
    """Return a value as it would stand in a JSON file, cut to one line of at most 80 characters.

    Parameters
    ----------
    value : object
        Anything; what JSON cannot express is shown by its ``repr``.
    """
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError):
        # Not JSON (a keyword argument of some other type), or lone surrogates that no terminal can print.
        text = ascii(value)
    return text if len(text) <= _VALUE_WIDTH else f"{text[: _VALUE_WIDTH - 4]} ..."
