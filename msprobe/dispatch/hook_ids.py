"""Give a hook that is registered again the id it had before.

A compiler guards on the hooks of what it has traced, by id: hooks that come with a new id at each ``start()`` would
make every step compile anew, and end in an error at the recompile limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch.utils.hooks import RemovableHandle


class HookIds:
    """Ids of one group of hooks that come and go together."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: list[int] = []

    def register(self, registrations: Sequence[Callable[[], RemovableHandle]]) -> list[RemovableHandle]:
        """Register hooks, the n-th with the id that the n-th had the first time."""
        handles = [register() for register in registrations]
        if self._ids:
            for handle, wanted in zip(handles, self._ids, strict=True):
                _set_id(handle, wanted)
        else:
            self._ids = [handle.id for handle in handles]
        return handles


def _set_id(handle: RemovableHandle, wanted: int) -> None:
    for reference in (handle.hooks_dict_ref, *handle.extra_dict_ref):
        hooks = reference()
        if hooks is not None and handle.id in hooks:
            hooks[wanted] = hooks.pop(handle.id)
    handle.id = wanted
