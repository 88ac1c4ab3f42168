"""Hooks that vanish when the object they hang on is copied or saved."""

from __future__ import annotations

import contextlib
from typing import Any


class VanishingHook:
    """Base of hooks installed on user objects.

    A model is copied or pickled together with its hooks. A copy of ours does nothing and needs no msprobe to be
    loaded: it is a bound ``nullcontext().__exit__``, a standard-library callable that takes any positional arguments
    and returns None.
    """

    __slots__ = ()

    def __reduce__(self) -> Any:
        return getattr, (contextlib.nullcontext(), "__exit__")

    def __deepcopy__(self, memo: Any) -> Any:
        return contextlib.nullcontext().__exit__
