"""Do something as soon as a module has been imported, without importing it oneself.

A program may set environment variables that count only before its framework is imported.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def when_imported(name: str, action: Callable[[], None]) -> None:
    """Call ``action`` once the top-level module ``name`` is complete; at once if it is already.

    Nothing stays behind: the module's loader is its own, and the finder is gone.
    """
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder(MetaPathFinder):
    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            sys.meta_path.insert(0, self)
            return spec
        spec.loader = _Loader(spec.loader, self)
        return spec

    def imported(self, complete: bool) -> None:
        """The import has ended."""
        if complete:
            self._action()
        else:
            sys.meta_path.insert(0, self)


class _Loader(Loader):
    def __init__(self, own: Loader, finder: _Finder) -> None:
        self._own = own
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        complete = False
        try:
            self._own.exec_module(module)
            complete = True
        finally:
            self._finder.imported(complete)
