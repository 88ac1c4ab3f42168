"""``--step-on``: a step ends before the next call of a module class."""

from __future__ import annotations

import re
from types import FrameType
from typing import Any

from msprobe.core.errors import LifecycleError

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_SHOWN = 10


class StepClass:
    """The module class whose forward calls divide the run into steps.

    Parameters
    ----------
    text : str
        ``Class.forward``, ``package.module.Class.forward``, or either without ``.forward``.

    Raises
    ------
    LifecycleError
        If it is no such name.
    """

    def __init__(self, text: str) -> None:
        name = text.removesuffix(".forward")
        if not _NAME.fullmatch(name):
            raise LifecycleError(
                f'--step-on: expected the class of a module, e.g. "LlamaForCausalLM.forward" or '
                f'"package.module.Net.forward", not "{text}"'
            )
        self.text = text
        self.calls = 0
        self._name = name
        self._matches: dict[type[Any], bool] = {}
        self._code: Any = None

    def begins(self, module: Any, frame: FrameType) -> bool:
        """A module is called; ``frame`` is that of the call. Returns whether a step ends here.

        The first call ends none, nor does a call inside another call of the class.
        """
        kind = type(module)
        matches = self._matches.get(kind)
        if matches is None:
            full = f"{kind.__module__}.{kind.__qualname__}"
            matches = self._matches[kind] = f".{full}".endswith(f".{self._name}")
        if not matches or self._nested(module, frame):
            return False
        self.calls += 1
        return self.calls > 1

    def _nested(self, module: Any, frame: FrameType) -> bool:
        from msprobe.dispatch.root_modules import callers_of  # noqa: PLC0415 - torch is loaded by now

        return any(self._matches.get(type(caller)) for caller in callers_of(module, frame))

    def unused(self) -> str:
        """What to tell at the end if no module of the class was called."""
        seen = sorted(kind.__name__ for kind in self._matches)
        classes = ", ".join(seen[:_SHOWN]) + (", ..." if len(seen) > _SHOWN else "")
        return f"--step-on {self.text}: no such module was called, so all is step 0; called were: {classes or 'none'}"
