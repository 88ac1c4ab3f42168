"""``white_list`` and ``black_list`` of task acc_check: names of APIs, not of records."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches


class ApiLists:
    """Decides which APIs are collected.

    An entry is the name of an API (``conv2d``, ``linalg.norm``, ``__add__``), with or without the prefix of its records
    (``Functional.conv2d``). It matches whole names only: ``norm`` is not ``layer_norm``, nor ``linalg.norm``.

    Parameters
    ----------
    white_list, black_list : collection of str
        The only APIs to collect (empty: all), and those not to collect.
    """

    __slots__ = ("_black", "_known", "_white")

    def __init__(self, white_list: Collection[str], black_list: Collection[str]) -> None:
        self._white = frozenset(white_list)
        self._black = frozenset(black_list)
        self._known: dict[str, bool] = {}

    @classmethod
    def of(cls, white_list: Collection[str], black_list: Collection[str]) -> ApiLists | None:
        """Return the lists, None if both are empty."""
        return cls(white_list, black_list) if white_list or black_list else None

    def allow(self, base: str) -> bool:
        """Whether the API ``Prefix.name`` is collected."""
        known = self._known.get(base)
        if known is None:
            names = (base, base.partition(".")[2])
            wanted = not self._white or any(name in self._white for name in names)
            known = self._known[base] = wanted and not any(name in self._black for name in names)
        return known


def unknown_entries(entries: Iterable[str], known: Collection[str]) -> list[tuple[str, str | None]]:
    """Return the entries that name no API, each with the closest name that does.

    Parameters
    ----------
    entries : iterable of str
    known : collection of str
        Names with their prefix: ``Functional.conv2d``.
    """
    names = {name for full in known for name in (full, full.partition(".")[2])}
    unknown = [entry for entry in entries if entry not in names]
    matches = [get_close_matches(entry, names, n=1, cutoff=0.6) for entry in unknown]
    return [(entry, found[0] if found else None) for entry, found in zip(unknown, matches, strict=True)]
