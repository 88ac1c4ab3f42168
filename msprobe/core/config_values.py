"""Checks of single values in the configuration, with the sentence that each gives when it refuses one.

Each check takes the value as JSON gave it and returns it in its final type, or raises a pydantic error that carries
what is allowed and, where it can be guessed, what to write instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic_core import PydanticCustomError

from msprobe.core.config_record import SummaryMode, Word
from msprobe.core.errors import show_value
from msprobe.core.names import parse_name

W = TypeVar("W", bound=Word)

_SPAN = re.compile(r"\s*([0-9]+)\s*(?:-\s*([0-9]+)\s*)?")
_LONGEST_SPAN = 1_000_001
_LONGEST_PART = 255  # bytes in one path component on every common file system
_MISPLACED_API = re.compile(r"(?P<base>[^.#]+\.[^#]+)\.(?P<direction>forward|backward)\.(?P<index>\d+)")
_MISPLACED_MODULE = re.compile(r"(?P<base>(?:Module|Cell)\..+)\.(?P<index>\d+)\.(?P<direction>forward|backward)")

STATISTIC_NAMES = (
    "max",
    "min",
    "mean",
    "l2norm",
    "count",
    "negative zero count",
    "zero count",
    "positive zero count",
    "nan count",
    "negative inf count",
    "positive inf count",
    "hash",
    "md5",
)
"""Statistics that ``summary_mode`` can list for MindSpore graph mode. Which of them depends on level and jit_level."""

DATA_MODES = ("all", "forward", "backward", "input", "output")


def refusal(allowed: str, hint: str = "") -> PydanticCustomError:
    """Return the error that says what would have been accepted."""
    return PydanticCustomError("refused", "{allowed}", {"allowed": allowed, "hint": hint})


def quoted(words: Iterable[str]) -> str:
    """Return words as a user would type them: ``"a", "b"``."""
    return ", ".join(f'"{word}"' for word in words)


def closest(value: object, words: Iterable[str]) -> str:
    """Return ``did you mean "..."?`` for the most similar word, or an empty string."""
    if not isinstance(value, str):
        return ""
    by_lower = {word.lower(): word for word in words}
    match = get_close_matches(value.strip().lower(), list(by_lower), n=1, cutoff=0.6)
    return f'did you mean "{by_lower[match[0]]}"?' if match else ""


def one_of(words: type[W]) -> Callable[[object], W]:
    """Return a check for exactly one word of an enumeration (case counts)."""
    choices = tuple(word.value for word in words)

    def check(value: object) -> W:
        if isinstance(value, str) and value in choices:
            return words(value)
        raise refusal(f"one of {quoted(choices)}", closest(value, choices))

    return check


def boolean(value: object) -> bool:
    """Accept ``true`` and ``false`` only: 0, 1 and ``"true"`` are usually a slip."""
    if isinstance(value, bool):
        return value
    guess = {"true": "true", "false": "false", "1": "true", "0": "false"}.get(str(value).lower(), "")
    raise refusal("true or false", f"write {guess}, without quotes" if guess else "")


def a_list(example: str) -> Callable[[object], list[Any]]:
    """Return a check that a value is a list; the items have their own checks."""

    def check(value: object) -> list[Any]:
        if isinstance(value, list):
            return value
        single = isinstance(value, (str, int)) and not isinstance(value, bool) and value != ""
        raise refusal(f"a list, e.g. {example}", f"write [{show_value(value)}]" if single else "")

    return check


def text(value: object) -> str:
    """Accept a string with at least one visible character."""
    if isinstance(value, str) and value.strip():
        return value
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    raise refusal("a non-empty string in double quotes", f'write "{value}"' if number else "")


def path_text(value: object) -> str:
    """Accept whatever the operating system accepts as a path: spaces, ``++`` and any script included."""
    allowed = "a non-empty path in double quotes"
    if not isinstance(value, str) or not value.strip():
        raise refusal(allowed, 'e.g. "./msprobe_dump"')
    if "\0" in value:
        raise refusal(f"{allowed}, without a NUL character")
    try:
        parts = os.fsencode(value).split(os.fsencode(os.sep))
    except UnicodeEncodeError:
        raise refusal(f"{allowed}, in characters that the file system can store") from None
    if max(map(len, parts)) > _LONGEST_PART:
        raise refusal(f"{allowed}, each part at most {_LONGEST_PART} bytes long")
    return value


def span(value: object) -> range:
    """Accept one item of ``rank`` or ``step``: ``3``, ``"3"`` or ``"4-6"`` (both ends included).

    Returns
    -------
    range
    """
    allowed = 'an integer >= 0, or a range such as "4-6"'
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise refusal(allowed)
        return range(value, value + 1)
    match = _SPAN.fullmatch(value) if isinstance(value, str) and len(value) < 100 else None
    if match is None:
        whole = isinstance(value, float) and value.is_integer() and value >= 0
        raise refusal(allowed, f"write {value:.0f}" if whole else "")
    first = int(match[1])
    last = int(match[2]) if match[2] is not None else first
    if last < first:
        raise refusal(f"{allowed}, smaller end first", f'did you mean "{last}-{first}"?')
    if last - first >= _LONGEST_SPAN:
        raise refusal(f"{allowed}, of at most {_LONGEST_SPAN} numbers", "an empty list [] means all")
    return range(first, last + 1)


def full_name(value: object) -> str:
    """Accept the full name of one record, as ``scope`` needs it: with call index and direction, without a tag."""
    allowed = (
        'a full record name: API "Prefix.name.N.forward|backward" or module "Module|Cell.path.Class.forward|backward.N"'
    )
    if not isinstance(value, str):
        raise refusal(allowed)
    name = parse_name(value)
    if name is not None and not name.tag and name.direction != "parameters_grad":
        return value
    raise refusal(allowed, _name_hint(value))


def _name_hint(value: str) -> str:
    """Guess which full name was meant: the usual slip is to swap call index and direction."""
    bare = value.partition("#")[0].strip()
    if bare != value and parse_name(bare) is not None:
        return f'did you mean "{bare}"?'
    if match := _MISPLACED_MODULE.fullmatch(bare):
        return f'did you mean "{match["base"]}.{match["direction"]}.{match["index"]}"? Modules put the index last'
    if match := _MISPLACED_API.fullmatch(bare):
        return f'did you mean "{match["base"]}.{match["index"]}.{match["direction"]}"? APIs put the direction last'
    if bare.startswith(("Module.", "Cell.")):
        return f'e.g. "{bare.rstrip(".")}.forward.0"' if bare.count(".") > 1 else ""
    if "." in bare and not bare.endswith("."):
        return f'e.g. "{bare}.0.forward"'
    return 'dump.json of an earlier run lists full names; to select by part of a name use "list"' if bare else ""


def data_word(value: object) -> str:
    """Accept one word of ``data_mode``."""
    if isinstance(value, str) and value in DATA_MODES:
        return value
    raise refusal(f"one of {quoted(DATA_MODES)}", closest(value, DATA_MODES))


def all_alone(words: list[str]) -> list[str]:
    """Refuse ``all`` beside other words of ``data_mode``."""
    if "all" in words and len(words) > 1:
        rest = show_value([word for word in words if word != "all"])
        raise refusal('"all" alone, or any of the others without "all"', f'write ["all"] or {rest}')
    return words


def includes_output(words: list[str]) -> list[str]:
    """Refuse a ``data_mode`` without outputs: task nan_check looks at outputs only."""
    if "input" in words and "output" not in words:
        raise refusal("a data_mode that includes outputs, since nan_check looks at them", 'add "output" to the list')
    return words


def two_names(names: list[str]) -> list[str]:
    """Accept the two ends of a range, or nothing at all."""
    if len(names) in (0, 2):
        return names
    raise refusal(
        "[] or exactly two full names: the first and the last of the range", "name one record twice for itself"
    )


def summary(value: object) -> SummaryMode | tuple[str, ...]:
    """Accept one mode, or a list of statistic names (MindSpore graph mode; which names fit is checked later)."""
    if not isinstance(value, list):
        try:
            return one_of(SummaryMode)(value)
        except PydanticCustomError as error:
            context = error.context or {}
            allowed = f"{context['allowed']}; for MindSpore graph mode also a list of statistics"
            raise refusal(allowed, str(context["hint"])) from None
    allowed = f"a non-empty list of {quoted(STATISTIC_NAMES)}"
    if not value:
        raise refusal(allowed, 'write "statistics" for the usual four')
    wrong = [name for name in value if name not in STATISTIC_NAMES]
    if wrong:
        guesses = ['did you mean "mean"?' if name == "avg" else closest(name, STATISTIC_NAMES) for name in wrong]
        raise refusal(
            allowed, "; ".join(f"{show_value(name)} {guess}" for name, guess in zip(wrong, guesses, strict=True))
        )
    return tuple(dict.fromkeys(value))


def difference_count(value: object) -> int:
    """Accept a positive integer, or -1 for no limit."""
    if isinstance(value, int) and not isinstance(value, bool) and (value > 0 or value == -1):
        return value
    raise refusal("an integer > 0, or -1 to never stop")
