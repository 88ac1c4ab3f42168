"""Leave out the trial run by which a pipeline learns the shapes that its stages send.

In its first step a schedule of ``torch.distributed.pipelining`` runs every stage forward and backward once more, on
memory that nothing was written to. Recorded, these calls would shift the index of every micro-batch, and show NaN where
there is none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from msprobe.dispatch.function_entry import FunctionEntry

_STAGE_MODULE = "torch.distributed.pipelining.stage"
#: Methods of PipelineStage that run the model for its shapes; which of them there are depends on the torch.
_TRIALS = ("_forward_metadata_inference", "_backward_metadata_inference", "_shape_inference")


class PipelineTrials:
    """Has something stop around each trial run.

    Parameters
    ----------
    leave
        Called before a trial run: stops recording, and returns what goes on with it.
    """

    def __init__(self, leave: Callable[[], Callable[[], None]]) -> None:
        self._leave = leave
        self._entries: list[FunctionEntry] = []

    def watch(self) -> None:
        """Begin; does nothing in a program that has not imported pipelines."""
        stage = getattr(sys.modules.get(_STAGE_MODULE), "PipelineStage", None)
        for name in _TRIALS:
            function = None if stage is None else vars(stage).get(name)
            if function is not None:
                entry = FunctionEntry(function)
                entry.exchange(self._around(entry.original))
                self._entries.append(entry)

    def ignore(self) -> None:
        """End."""
        for entry in self._entries:
            entry.restore()
        self._entries.clear()

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            go_on = self._leave()
            try:
                return original(*args, **kwargs)
            finally:
                go_on()

        return run
