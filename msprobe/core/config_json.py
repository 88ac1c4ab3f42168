"""Reading a JSON configuration file so that every error can name a line and a column."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Collection
from json import JSONDecodeError, JSONDecoder
from pathlib import Path
from typing import NamedTuple

from msprobe.core.errors import ConfigError, Problem

_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = JSONDecoder()
_EXCERPT_WIDTH = 60
_LARGEST = 4 << 20  # bytes; the longest lists of names that were ever of use have some hundred kilobytes
_BOM = "\ufeff"

# Start of the parser's own message -> what to do.
_ADVICE = {
    "Unterminated string": "the closing quote of this string is missing",
    "Invalid control character": "a string ends on the line where it starts: is its closing quote missing?",
    "Invalid \\": 'write a backslash as "\\\\" (Windows paths also work with "/")',
    "Extra data": "delete what follows the closing bracket of the top-level object",
}

# (pattern before the error, pattern at the error, what to do): the usual slips of hand-written JSON.
_SLIPS = (
    (r"", r"//|/\*|#", "JSON has no comments: delete them"),
    (r"", r"'", "JSON strings stand in double quotes"),
    (r"", r"(True|False|None)\b", "JSON writes true, false and null in lower case"),
    (r":\s*$", r"[,\]}]", "a value is missing after the colon"),
    (r",\s*$", r"[\]}]", "delete the comma before the closing bracket"),
    (r"[\]}\"\w]\s*$", r"[\"\[{]", "a comma is missing before this place"),
    (r"", r"$", "the file ends too early: a closing bracket or quote is missing"),
    (r"", r"[,\]}]", "a comma too many, or a value is missing before this place"),
)

Place = tuple[int, int]
"""Line and column, both 1-based."""


class ConfigText(NamedTuple):
    """A configuration file, parsed and as text.

    Attributes
    ----------
    data : dict
        The top-level object.
    text : str
        What was parsed; :func:`find_places` looks keys up in it.
    duplicates : tuple of str
        Keys that stand twice in one object. JSON readers silently take the last.
    """

    data: dict[str, object]
    text: str
    duplicates: tuple[str, ...]


def read_config_text(path: Path) -> ConfigText:
    """Read and parse one configuration file.

    Parameters
    ----------
    path : Path
        A JSON file in UTF-8 (a byte-order mark is accepted) whose top level is an object.

    Returns
    -------
    ConfigText

    Raises
    ------
    ConfigError
        If the file cannot be read, is not UTF-8, is not JSON or is not an object. Syntax errors carry line and column.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        hint = "give the path of the JSON file itself" if path.is_dir() else "`msprobe config new` writes one"
        problem = Problem("config_path", os.fspath(path), f"a readable JSON file ({reason})", hint)
        raise ConfigError([problem], f"config file {path}") from error
    if len(raw) > _LARGEST:
        allowed = f"a configuration of at most {_LARGEST >> 20} MiB"
        raise ConfigError([Problem("config_path", os.fspath(path), allowed)], f"config file {path}")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        problem = Problem(
            "(encoding)",
            f"byte 0x{raw[error.start]:02x}",
            "text in UTF-8",
            "save the file with encoding UTF-8",
            line,
            column,
        )
        raise ConfigError([problem], f"config file {path}") from error
    return parse_config_text(text.removeprefix(_BOM), f"config file {path}")


def parse_config_text(text: str, source: str) -> ConfigText:
    """Parse the text of a configuration file.

    Parameters
    ----------
    text : str
        JSON with an object at its top level.
    source : str
        Named in the error.

    Raises
    ------
    ConfigError
        If the text is not JSON (with line and column) or not an object.
    """
    duplicates: list[str] = []

    def keep(pairs: list[tuple[str, object]]) -> dict[str, object]:
        result = dict(pairs)
        if len(result) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            duplicates.extend(key for key in result if counts[key] > 1)
        return result

    try:
        data = json.loads(text, object_pairs_hook=keep)
    except JSONDecodeError as error:
        raise ConfigError([_syntax_problem(text, error)], source) from error
    except (ValueError, RecursionError) as error:
        problem = Problem("(JSON)", _excerpt(text, 0), f"JSON of ordinary size ({error})")
        raise ConfigError([problem], source) from error
    if not isinstance(data, dict):
        problem = Problem("(top level)", data, 'an object: { "task": ..., "dump_path": ... }', "", 1, 1)
        raise ConfigError([problem], source)
    return ConfigText(data, text, tuple(duplicates))


def _syntax_problem(text: str, error: JSONDecodeError) -> Problem:
    hint = next((advice for start, advice in _ADVICE.items() if error.msg.startswith(start)), "")
    # Python 3.13 reports a trailing comma at the comma, older versions at the bracket after it: start at the bracket.
    at = error.pos
    trailing = re.match(r",\s*(?=[\]}])", text[at:])
    if trailing and not re.search(r":\s*$", text[:at]):
        at += trailing.end()
    for before, here, advice in _SLIPS:
        if not hint and re.match(here, text[at:]) and re.search(before, text[:at]):
            hint = advice
    if not text.strip():
        hint = "the file is empty: `msprobe config new` writes a complete one"
    return Problem(
        "(JSON syntax)", _excerpt(text, error.pos), f"valid JSON ({error.msg})", hint, error.lineno, error.colno
    )


def _excerpt(text: str, position: int) -> str:
    """Return the line that holds ``position``, cut around it."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    start = max(start, position - _EXCERPT_WIDTH // 2)
    return text[start : len(text) if end < 0 else end][:_EXCERPT_WIDTH].strip()


def find_places(text: str, paths: Collection[str]) -> dict[str, Place]:
    """Find where the values of some key paths stand in a JSON text.

    Parameters
    ----------
    text : str
        Valid JSON, as :func:`parse_config_text` accepted it.
    paths : collection of str
        Key paths such as ``"statistics.scope[1]"``.

    Returns
    -------
    dict of str to (int, int)
        Path to line and column, for those paths that exist. A duplicate key keeps its last place, as the parser does.
    """
    offsets: dict[str, int] = {}
    # Python's own stack limit is lower than the parser's: a place not found costs a line number, not the message.
    with contextlib.suppress(RecursionError):
        _scan_value(text, _skip_blank(text, 0), "", offsets)
    return {path: _place(text, offsets[path]) for path in paths if path in offsets}


def _scan_value(text: str, at: int, path: str, offsets: dict[str, int]) -> int:
    """Record the offset of the value at ``at`` and of everything in it; return the offset behind it."""
    offsets[path] = at
    opening = text[at]
    if opening not in "{[":
        return _DECODER.raw_decode(text, at)[1]
    closing = "}" if opening == "{" else "]"
    at = _skip_blank(text, at + 1)
    index = 0
    while text[at] != closing:
        if opening == "{":
            key, at = _DECODER.raw_decode(text, at)
            at = _skip_blank(text, _skip_blank(text, at) + 1)  # over the colon
            child = f"{path}.{key}" if path else key
        else:
            child = f"{path}[{index}]"
        at = _skip_blank(text, _scan_value(text, at, child, offsets))
        index += 1
        if text[at] == ",":
            at = _skip_blank(text, at + 1)
    return at + 1


def _skip_blank(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _place(text: str, offset: int) -> Place:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
