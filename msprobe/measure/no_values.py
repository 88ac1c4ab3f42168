"""Stands in for an encoder where a dump holds no values, only what ran in which order and place (task structure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


class NoValues:
    """Looks at nothing; every entry is None."""

    __slots__ = ("null_reasons",)

    def __init__(self) -> None:
        self.null_reasons: Counter[str] = Counter()

    def encode(self, value: Any, path: str | None = None) -> None:
        """Return None."""

    def encode_sequence(self, values: Sequence[Any], prefix: str | None = None) -> None:
        """Return None."""

    def encode_mapping(self, mapping: Mapping[Any, Any], prefix: str | None = None) -> None:
        """Return None."""

    def trust_versions(self, *, on: bool) -> None:
        """Do nothing: no tensor is read."""

    def resolve(self) -> None:
        """Do nothing: nothing waits for a device."""
