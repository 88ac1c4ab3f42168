"""What to record: a pure plan over names, tested without any framework.

A call is asked about twice: when its forward begins and when its backward begins. The answers depend only on names,
on the enclosing module (``list`` entries that name a module expand to everything inside it) and on where in the
``scope`` range the step currently is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msprobe.core.api_lists import ApiLists
from msprobe.core.names import CallName, parse_name


class Choice(NamedTuple):
    """Which passes of a call are recorded."""

    forward: bool
    backward: bool


ALL = Choice(True, True)
NOTHING = Choice(False, False)


class _NameList:
    """``list`` of the config: full names match exactly, anything else as a substring."""

    def __init__(self, entries: Sequence[str]) -> None:
        self._exact = frozenset(entry for entry in entries if parse_name(entry) is not None)
        self._parts = tuple(entry for entry in entries if entry not in self._exact)

    def holds(self, name: str) -> bool:
        return name in self._exact

    def matches(self, name: str) -> bool:
        return name in self._exact or any(part in name for part in self._parts)


class _Scope:
    """``scope`` of the config: an inclusive range between two full names, in execution order."""

    def __init__(self, first: str, last: str) -> None:
        self._first = first
        self._last = last
        self.open = False

    def enter(self, name: str) -> bool:
        if name == self._first:
            self.open = True
        return self.open

    def leave(self, name: str) -> None:
        if name == self._last:
            self.open = False


class Selection:
    """Decide per call what is recorded.

    Parameters
    ----------
    names : sequence of str
        ``list`` of the config; empty selects every call.
    scope : pair of str, optional
        First and last full name of an inclusive range. A call whose forward lies in the range is recorded with its
        backward; a range that ends at a backward name stays open until that backward is complete.
    tensor_list : sequence of str
        Case-insensitive substrings of names that also get full tensors.
    expand_modules : bool
        Level ``mix``: a ``list`` entry that matches a module selects everything that runs inside it.
    expand_apis : bool
        Level ``L2``: so does an entry that matches an API call, for the kernels inside.
    apis : ApiLists, optional
        ``white_list`` and ``black_list`` of task acc_check.
    """

    def __init__(  # noqa: PLR0913 - one keyword per key of the configuration
        self,
        names: Sequence[str] = (),
        scope: tuple[str, str] | None = None,
        tensor_list: Sequence[str] = (),
        *,
        expand_modules: bool = False,
        expand_apis: bool = False,
        apis: ApiLists | None = None,
    ) -> None:
        self._names = _NameList(names) if names else None
        self._scope = _Scope(*scope) if scope else None
        self._tensor_parts = tuple(part.lower() for part in tensor_list)
        self._expand_modules = expand_modules or expand_apis
        self._expand_apis = expand_apis
        self.everything = self._names is None and self._scope is None and apis is None
        self._apis = apis
        self._closed = False

    def enter(self, call: CallName, enclosing: Choice = NOTHING) -> tuple[Choice, Choice]:
        """Decide about a call whose forward begins.

        Parameters
        ----------
        call : CallName
        enclosing : Choice
            What the expansion of the enclosing module or API selects (second value returned for it).

        Returns
        -------
        choice : Choice
            What is recorded of this call.
        expansion : Choice
            What calls inside it inherit; :data:`NOTHING` unless it is an expanded module or API.
        """
        if self.everything:
            return ALL, NOTHING
        if self._closed or (self._apis is not None and not self._apis.allow(call.base)):
            return NOTHING, NOTHING
        forward, backward = call.forward, call.backward()
        in_scope = self._scope is None or self._scope.enter(forward)
        if self._names is None:
            return Choice(in_scope, in_scope), NOTHING
        own = Choice(self._names.matches(forward), self._names.matches(backward))
        if self._expand_modules:
            own = Choice(own.forward or enclosing.forward, own.backward or enclosing.backward)
        expansion = own if self._expand_modules and (call.module or self._expand_apis) else NOTHING
        return Choice(own.forward and in_scope, own.backward and in_scope), expansion

    def leave(self, call: CallName) -> None:
        """Note that the call's forward is complete."""
        if self._scope is not None:
            self._scope.leave(call.forward)

    def enter_backward(self, name: str, choice: Choice) -> bool:
        """Decide about a backward record, given what was chosen when the call's forward began."""
        if self._closed:
            return False
        if self._scope is None:
            return choice.backward
        in_scope = self._scope.enter(name)
        return choice.backward or (in_scope and (self._names is None or self._names.matches(name)))

    def leave_backward(self, name: str) -> None:
        """Note that the backward record ``name`` is complete."""
        if self._scope is not None:
            self._scope.leave(name)

    def allows(self, name: str) -> bool:
        """Whether a record that belongs to no call (``parameters_grad``) is wanted now."""
        if self._closed:
            return False
        in_scope = self._scope is None or self._scope.open
        return in_scope and (self._names is None or self._names.matches(name))

    def may_record_backward(self, choice: Choice) -> bool:
        """Whether the call's gradients have to be watched: a scope may open only during the backward pass."""
        return choice.backward or (self._scope is not None and self._apis is None)

    def names(self, name: str) -> bool:
        """Whether ``list`` holds the full name of the record ``name`` itself."""
        return self._names is not None and self._names.holds(name)

    def wants_tensors(self, name: str) -> bool:
        """Whether ``tensor_list`` asks for the full tensors of the record ``name``."""
        lowered = name.lower() if self._tensor_parts else ""
        return any(part in lowered for part in self._tensor_parts)

    def close(self) -> None:
        """Select nothing from now on, in this step and later ones."""
        self._closed, self.everything = True, False

    def reset(self) -> None:
        """Start a new step: the scope range is closed again."""
        if self._scope is not None:
            self._scope.open = False
