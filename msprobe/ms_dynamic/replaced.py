"""Attributes that are replaced while something is recorded.

MindSpore offers no mode that sees calls of its API by name, so what is recorded is replaced where users look it up,
from start to stop. A name that was bound before (``from mindspore.mint import add``) keeps the original.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

_MISSING: Final = object()  # the attribute is inherited


class _Replaced:
    """One attribute.

    Attributes
    ----------
    make : callable
        Given the attribute, returns what stands in for it.
    before : object
        What ``holder`` itself held under the name when the replacement was made.
    """

    __slots__ = ("before", "holder", "make", "name", "replacement")

    def __init__(self, holder: Any, name: str, make: Callable[[Any], Any]) -> None:
        self.holder = holder
        self.name = name
        self.make = make
        self.before: Any = None
        self.replacement: Any = None

    def install(self) -> None:
        before = vars(self.holder).get(self.name, _MISSING)
        if self.replacement is None or before is not self.before:  # the first time, or the user has put in another one
            self.before = before
            self.replacement = self.make(getattr(self.holder, self.name))
        setattr(self.holder, self.name, self.replacement)

    def remove(self) -> None:
        if vars(self.holder).get(self.name) is not self.replacement:
            return
        if self.before is _MISSING:
            delattr(self.holder, self.name)
        else:
            setattr(self.holder, self.name, self.before)


class ReplacedAttributes:
    """A set of attributes, replaced together and put back together, any number of times."""

    def __init__(self) -> None:
        self._attributes: list[_Replaced] = []
        self._installed = False

    def add(self, holder: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace ``holder.name`` by what ``make`` makes of it, from the next :meth:`install` on."""
        self._attributes.append(_Replaced(holder, name, make))

    @property
    def installed(self) -> bool:
        """Whether the replacements stand."""
        return self._installed

    def install(self) -> None:
        """Replace."""
        self._installed = True
        for attribute in self._attributes:
            attribute.install()

    def remove(self) -> None:
        """Put everything back; what somebody else has replaced in between is left as it is."""
        if not self._installed:
            return
        self._installed = False
        for attribute in self._attributes:
            attribute.remove()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Inside, the originals stand: a compiler that reads the user's source must not meet a replacement."""
        if not self._installed:
            yield
            return
        self.remove()
        try:
            yield
        finally:
            self.install()
