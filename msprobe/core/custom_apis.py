"""Record functions that the user names (``register_custom_api``).

No framework tells about a call of an arbitrary Python function, so the attribute that holds it is replaced, and put
back as it was.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from msprobe.core.errors import LifecycleError

_LOG = logging.getLogger("msprobe")
_MISSING: Final = object()  # the attribute is inherited, or made by __getattr__
Recording = Callable[[str, str, Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class _Registered:
    """One replaced attribute.

    Attributes
    ----------
    holder : object
        Kept alive, so that its id stays its own.
    before : object
        What its ``__dict__`` held under the name, as it is stored there.
    replacement : object
        What is stored there now.
    """

    holder: Any
    before: Any
    replacement: Any


class CustomApis:
    """Functions that the user registered by hand.

    Parameters
    ----------
    recording : callable
        Given prefix, name and a function, returns the function that records the calls of it.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._registered: dict[tuple[int, str], _Registered] = {}

    def register(self, module: Any, name: str, prefix: str | None) -> None:
        """Record the calls of ``module.name`` as ``{prefix or module.__name__}.name``.

        Parameters
        ----------
        module : module, class or object
            Holder of the function.
        name : str
        prefix : str, optional

        Raises
        ------
        AttributeError
            If ``module`` has no such attribute, or does not allow to replace it.
        LifecycleError
            If the attribute is not callable.
        """
        key = (id(module), name)
        if key in self._registered:
            return
        found = getattr(module, name)
        if not callable(found):
            raise LifecycleError(
                f"register_custom_api: {_name_of(module)}.{name} is a {type(found).__name__}; only functions and "
                "other callables can be recorded"
            )
        before = _stored(module, name)
        replacement = self._replacement(prefix or _name_of(module), module, name, found)
        setattr(module, name, replacement)
        self._registered[key] = _Registered(module, before, replacement)

    def restore(self, module: Any, name: str) -> None:
        """Put back what was there; nothing happens if it was not registered.

        If something else has replaced the attribute since, it stays: it may call what it found there.
        """
        kept = self._registered.pop((id(module), name), None)
        if kept is None:
            return
        if _stored(module, name) is not kept.replacement:
            _LOG.warning(
                "msprobe: %s.%s was replaced after register_custom_api(); it is left as it is", _name_of(module), name
            )
        elif kept.before is _MISSING:
            delattr(module, name)
        else:
            setattr(module, name, kept.before)

    def _replacement(self, prefix: str, module: Any, name: str, found: Callable[..., Any]) -> Any:
        """What to store in place of the function: of the same kind, so that it binds to the same first argument."""
        if isinstance(module, type):
            raw = inspect.getattr_static(module, name)
            if isinstance(raw, (staticmethod, classmethod)):
                return type(raw)(self._recording(prefix, name, raw.__func__))
        return self._recording(prefix, name, found)


def _stored(holder: Any, name: str) -> Any:
    """The attribute as the holder itself stores it: not bound, not inherited."""
    return getattr(holder, "__dict__", {}).get(name, _MISSING)


def _name_of(holder: Any) -> str:
    return str(getattr(holder, "__name__", type(holder).__name__))
