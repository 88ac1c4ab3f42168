"""Give a hook that is registered again the id it had before.

A compiler guards on the hooks of what it has traced, by id: hooks that come with a new id at each ``start()`` would
make every step compile anew, and end in an error at the recompile limit.

Where it is sure what torch's registration would do, hooks are put into torch's tables without it: a step begins with
hundreds of them. Their ids come from torch's counter, which gives none twice.
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
        """Register hooks, the n-th with the n-th id."""
        handles = [register() for register in registrations]
        for place, handle in enumerate(handles):
            _set_id(handle, self.number(place))
        return handles

    def number(self, place: int) -> int:
        """The n-th id of the group."""
        while len(self._ids) <= place:
            self._ids.append(next_id())
        return self._ids[place]


def next_id() -> int:
    """An id that no hook has and none will be given."""
    number = RemovableHandle.next_id
    RemovableHandle.next_id = number + 1
    return number


def _set_id(handle: RemovableHandle, wanted: int) -> None:
    for reference in (handle.hooks_dict_ref, *handle.extra_dict_ref):
        hooks = reference()
        if hooks is not None and handle.id in hooks:
            first = next(iter(hooks)) == handle.id
            hooks[wanted] = hooks.pop(handle.id)
            if first and len(hooks) > 1:  # it was registered to come before all others
                hooks.move_to_end(wanted, last=False)
    handle.id = wanted
