"""Hooks that vanish when the object they hang on is copied or saved."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import torch

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_MARKS = ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")


class VanishingHook:
    """Base of hooks installed on user objects.

    A model is copied or pickled together with its hooks. A copy of ours does nothing and needs no msprobe to be
    loaded: it is a bound ``nullcontext().__exit__``, a standard-library callable that takes any positional arguments
    and returns None. A deep copy of a module does not even keep that.
    """

    __slots__ = ()
    _module: weakref.ref[torch.nn.Module] | None = None

    def __reduce__(self) -> Any:
        return getattr, (contextlib.nullcontext(), "__exit__")

    def __deepcopy__(self, memo: dict[Any, Any]) -> Any:
        copied = contextlib.nullcontext().__exit__
        module = self._module() if self._module is not None else None
        twin = memo.get(id(module))
        if isinstance(twin, torch.nn.Module):
            memo.setdefault(_Sweep, _Sweep()).add(twin, copied)
        return copied

    def __getattr__(self, name: str) -> Any:
        if name == "__name__":  # torch.jit.script is about to compile the hook
            raise AttributeError(
                "msprobe is recording this module, and TorchScript cannot compile its hooks: call stop() before "
                "torch.jit.script(), or script a copy.deepcopy() of the module"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class ModuleHook(VanishingHook):
    """Base of hooks installed on a module.

    Parameters
    ----------
    module : nn.Module
    """

    __slots__ = ("_module",)

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = weakref.ref(module)


class _Sweep:
    """Removes copied hooks when the deep copy is complete: only its memo holds this object."""

    def __init__(self) -> None:
        self._copied: list[tuple[torch.nn.Module, Any]] = []

    def add(self, module: torch.nn.Module, hook: Any) -> None:
        """Have ``hook`` removed from ``module``, which is still being filled."""
        self._copied.append((module, hook))

    def __del__(self) -> None:
        for module, hook in self._copied:
            tables = [vars(module).get(name, {}) for name in _HOOKS]
            found = [key for table in tables for key, held in table.items() if held is hook]
            for table in (*tables, *(vars(module).get(name, {}) for name in _MARKS)):
                for key in found:
                    table.pop(key, None)
