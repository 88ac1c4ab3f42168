"""Activation checkpointing: give a recomputed call the name of the call it repeats.

``torch.utils.checkpoint`` runs a region a second time during the backward pass. Both of its kinds leave a trace that
can be read without patching anything:

* non-reentrant: saved-tensor hooks are installed while the region runs, forward and again; their closures hold the same
  ``_CheckpointFrame``, so the calls of the first run, kept per frame, name those of the second.
* reentrant: the region runs without gradients under a ``CheckpointFunctionBackward`` node and again while that node
  is the current autograd node; the node's sequence number says after which point of the gradient-free calls the
  region began.
"""

from __future__ import annotations

import sys
import weakref
from bisect import bisect_right
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from msprobe.core.names import CallName
from msprobe.core.replay import Repeats, Replay

_task_id = torch._C._current_graph_task_id
_current_node = torch._C._current_autograd_node
_top_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_pop_hooks = torch._C._autograd._pop_saved_tensors_default_hooks
_push_hooks = torch._C._autograd._push_saved_tensors_default_hooks
_sequence = torch._C._autograd._get_sequence_nr


def prepares_recomputation(base: str, frame: FrameType) -> bool:
    """Whether a call is checkpointing's own: it detaches what goes into and comes out of a recomputation."""
    return base == "Tensor.detach" and may_prepare(frame)


def may_prepare(frame: FrameType) -> bool:
    """Whether a frame is one of checkpointing."""
    return frame.f_globals.get("__name__") == "torch.utils.checkpoint"


def pack_of_checkpoint(hooks: tuple[Any, Any] | None) -> Any:
    """Return the pack hook of a pair of saved-tensor hooks if non-reentrant checkpointing installed them, else None."""
    pack = hooks[0] if hooks else None
    pack = getattr(pack, "__wrapped__", None) or getattr(pack, "_torchdynamo_orig_callable", pack)
    return pack if getattr(pack, "__module__", None) == "torch.utils.checkpoint" else None


class _Region:
    """First run of a non-reentrant checkpoint: the calls it made."""

    __slots__ = ("calls", "parent")

    def __init__(self, parent: _Region | Replay | None) -> None:
        self.calls: list[CallName] = []
        self.parent = parent


class Recomputation:
    """Names of recomputed calls within one step.

    Attributes
    ----------
    remembers : bool
        Whether calls without gradient may be those of a reentrant checkpoint. False while an optimiser steps: its
        calls, the most of many steps, are then not kept.
    """

    def __init__(self) -> None:
        self.remembers = True
        self._regions: weakref.WeakKeyDictionary[Any, _Region] = weakref.WeakKeyDictionary()
        self._replays: dict[tuple[int, int, int], Replay] = {}
        self._gradient_free: list[CallName] = []
        self._gradient_free_at: list[int] = []
        self._repeats = Repeats()

    def reset(self) -> None:
        """Forget the step."""
        self.__init__()  # type: ignore[misc]

    def name(self, base: str, take: Callable[[str], int], *, module: bool) -> CallName:
        """Name a call that begins now.

        Parameters
        ----------
        base : str
            ``Prefix.name`` or ``Module.path.Class``.
        take : callable
            Counts a new call of ``base`` and returns its index.
        module : bool
            Whether a module call is named.
        """
        context = self._context()
        replay: _Region | Replay | None = context
        while isinstance(replay, _Region):
            replay = replay.parent
        task = _task_id()
        if replay is None and task != -1:
            replay = self._reentrant_replay(task)
        if replay is None:
            call = CallName(base, take(base), module=module)
        else:
            call = self._repeats.name(replay, base, take, module=module)
        while isinstance(context, _Region):
            context.calls.append(call)
            context = context.parent
        if self.remembers and not torch.is_grad_enabled():
            self._gradient_free.append(call)
            self._gradient_free_at.append(_sequence())
        return call

    def _context(self) -> _Region | Replay | None:
        """The innermost non-reentrant checkpoint that is running, from its saved-tensor hooks."""
        hooks = _top_hooks(True)
        if hooks is None or "torch.utils.checkpoint" not in sys.modules:
            return None
        return self._context_of(hooks)

    def _context_of(self, hooks: tuple[Any, Any] | None) -> _Region | Replay | None:
        pack = pack_of_checkpoint(hooks)
        if pack is None:
            return None
        held = dict(
            zip(pack.__code__.co_freevars, (cell.cell_contents for cell in pack.__closure__ or ()), strict=True)
        )
        if "frame" in held:
            region = self._regions.get(held["frame"])
            if region is None:
                region = self._regions[held["frame"]] = _Region(self._outer_context(hooks))
            return region
        target = held["target_frame_ref"]() if "target_frame_ref" in held else None
        known = self._regions.get(target) if target is not None else None
        if known is None:
            return None
        return self._replays.setdefault((id(target), hash(held.get("gid")), 0), Replay(known.calls))

    def _outer_context(self, hooks: tuple[Any, Any] | None) -> _Region | Replay | None:
        """What the hooks below the top belong to. The stack only shows its top, so the top is lifted for a moment."""
        assert hooks is not None  # noqa: S101 - called with the hooks that were found
        _pop_hooks()
        try:
            return self._context_of(_top_hooks(True))
        finally:
            _push_hooks(*hooks)

    def _reentrant_replay(self, task: int) -> Replay | None:
        node = _current_node()
        if node is None or type(node).__name__ != "CheckpointFunctionBackward":
            return None
        number = node._sequence_nr()
        key = (number, task, 1)
        replay = self._replays.get(key)
        if replay is None:
            start = bisect_right(self._gradient_free_at, number)
            replay = self._replays[key] = Replay(self._gradient_free, start)
        return replay
