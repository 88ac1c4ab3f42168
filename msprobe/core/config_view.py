"""What a rule of the configuration looks at, and what it yields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from msprobe.core.config_record import Config, Level
from msprobe.core.errors import Problem
from msprobe.core.support import Mode

Finding = Problem | str
"""A :class:`Problem` for what must be refused, a string for what is accepted but has no effect."""

PAIR = ("task", "level")
"""Keys that every rule needs."""


@dataclass(frozen=True, slots=True)
class View:
    """What a rule looks at.

    Attributes
    ----------
    config : Config
        Values with their defaults; keys of the active section only.
    mode : Mode
        The one framework mode the rule judges for.
    given : frozenset of str
        Keys that stand in the file, as bare names (top level and active section).
    data_words : tuple of str
        ``data_mode`` as written.
    """

    config: Config
    mode: Mode
    given: frozenset[str]
    data_words: tuple[str, ...]

    @property
    def kernel_dump(self) -> bool:
        """Whether MindSpore itself dumps kernels, told by a file that we generate."""
        return self.config.level is Level.L2 and self.mode is not Mode.PYTORCH

    def key(self, name: str) -> str:
        """Return the full path of a key of the active section."""
        return f"{self.config.task}.{name}"


class Rule(NamedTuple):
    """A check and the keys it looks at (bare names)."""

    needs: tuple[str, ...]
    check: Callable[[View], Iterator[Finding]]
