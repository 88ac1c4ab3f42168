"""The order in which steps and ranks are read and shown: by number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_NUMBER = re.compile(r"(\d+)\Z")


def in_order(found: Mapping[str, Mapping[str, Path]]) -> list[tuple[str, list[tuple[str, Path]]]]:
    """Return steps, and in each its ranks with their dump files, sorted by the numbers in their names."""
    return [
        (step, sorted(found[step].items(), key=lambda item: number_in(item[0])))
        for step in sorted(found, key=number_in)
    ]


def number_in(name: str) -> tuple[int, str]:
    """Return a sort key for ``step12``, ``rank3`` or ``proc4711``; names without a number come first."""
    match = _NUMBER.search(name)
    return (int(match.group(1)) if match else -1, name)
