"""`exact`: have Inductor compute the same bits whether or not a value between two operators is looked at.

A probe makes Inductor store a value that only its own code uses. Two things depend on that. A bfloat16 or float16 value
that is not stored is kept in float32: with ``emulate_precision_casts`` it is rounded anyway, as in eager code. And
patterns of operators (a matrix product and the sum after it, attention) are replaced by one operator only if nobody
else uses what is inside: without ``pattern_matcher`` they never are. The program has to be compiled with both settings
with probes and without.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from msprobe.graph.dynamo_hooks import frames_compiled

SETTINGS = {"emulate_precision_casts": True, "pattern_matcher": False}
"""What `exact` sets in ``torch._inductor.config``."""


class ExactCompiler:
    """Changes Inductor's settings for as long as a debugger with ``exact`` lives.

    Successors of an adapter share one: the last that has asked decides.
    """

    def __init__(self) -> None:
        self._owner: object = None
        self._before: dict[str, Any] = {}
        self._compiled_before = 0
        self._missing: list[str] = []

    def use(self, owner: object, *, exact: bool) -> None:
        """Begin for ``owner``, or put the program's own settings back if it does not want it."""
        self._owner = owner
        if not exact:
            self._put_back()
        elif not self._before:
            module = _module()
            self._missing = [name for name in SETTINGS if not hasattr(module, name)]
            self._before = {name: getattr(module, name) for name in SETTINGS if name not in self._missing}
            self._compiled_before = frames_compiled() if self._before != SETTINGS else 0
            for name in self._before:
                setattr(module, name, SETTINGS[name])

    def release(self, owner: object) -> None:
        """``owner`` has ended; nothing happens if another has taken over."""
        if owner is self._owner:
            self._owner = None
            self._put_back()

    def _put_back(self) -> None:
        before, self._before = self._before, {}
        for name, value in before.items():
            if getattr(_module(), name) == SETTINGS[name]:  # else somebody has changed it since
                setattr(_module(), name, value)

    def note(self) -> str:
        """What coverage.json says about it."""
        if self._missing:
            return f"not possible: torch._inductor.config of this torch has no {', '.join(self._missing)}"
        if self._compiled_before:
            return (
                f"{self._compiled_before} functions had been compiled before the debugger was made: outside recorded "
                "steps they run as they were compiled, with other rounding"
            )
        return "Inductor computes the same bits with probes and without"


@contextlib.contextmanager
def exact_settings(*, exact: bool) -> Iterator[None]:
    """Compile with the settings in this thread, too: they can be per thread."""
    if not exact:
        yield
        return
    module = _module()
    with module.patch({name: value for name, value in SETTINGS.items() if hasattr(module, name)}):
        yield


def _module() -> ModuleType:
    """Inductor's settings. Loads the compiler."""
    name = "torch._inductor.config"
    return sys.modules.get(name) or importlib.import_module(name)
