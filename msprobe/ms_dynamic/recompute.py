"""Activation recompute: give a recomputed call the name of the call it repeats.

MindSpore runs a recomputed block a second time during the backward pass, from a ``_RecomputeCell`` (whose first run
takes no gradients) or from a ``_RecomputeHandle`` (whose first run drops what it saves). Both are noticed where they
begin; the calls of the step are kept from the first such block on.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from mindspore.common.recompute import _RecomputeCell, _RecomputeHandle

from msprobe.core.names import CallName
from msprobe.core.replay import Repeats, Replay
from msprobe.ms_dynamic.replaced import ReplacedAttributes

Function = Callable[..., Any]


class Recomputation:
    """Names of recomputed calls within one step.

    Attributes
    ----------
    replay : Replay or None
        The recomputation that is under way.
    """

    def __init__(self) -> None:
        self.replay: Replay | None = None
        self.reset()

    def reset(self) -> None:
        """Forget the step."""
        self._calls: list[CallName] = []
        self._keeping = False
        self._repeats = Repeats()
        self._starts: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()

    def name(self, base: str, take: Callable[[str], int], *, module: bool) -> CallName:
        """Name a call that begins now; parameters as for :meth:`msprobe.core.replay.Repeats.name`."""
        if self.replay is not None:
            return self._repeats.name(self.replay, base, take, module=module)
        call = CallName(base, take(base), module=module)
        if self._keeping:
            self._calls.append(call)
        return call

    def replace(self, replaced: ReplacedAttributes) -> None:
        """Notice blocks that are recomputed while the replacements stand."""
        replaced.add(_RecomputeCell, "construct", self._first_run)
        replaced.add(_RecomputeCell, "bprop", self._second_run)
        replaced.add(_RecomputeHandle, "__init__", self._first_run)
        replaced.add(_RecomputeHandle, "recompute", self._second_run)

    def _first_run(self, original: Function) -> Function:
        @functools.wraps(original)
        def first_run(self_: Any, *args: Any, **kwargs: Any) -> Any:
            if self.replay is None:
                self._keeping = True
                self._starts.setdefault(self_, []).append(len(self._calls))
            return original(self_, *args, **kwargs)

        return first_run

    def _second_run(self, original: Function) -> Function:
        @functools.wraps(original)
        def second_run(self_: Any, *args: Any, **kwargs: Any) -> Any:
            starts = self._starts.get(self_)
            outer = self.replay
            if outer is None and starts:
                self.replay = Replay(self._calls, starts.pop() if len(starts) > 1 else starts[0])
            try:
                return original(self_, *args, **kwargs)
            finally:
                self.replay = outer

        return second_run
