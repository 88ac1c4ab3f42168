"""Notice that compiled code runs without probes: of it, level L2 sees only the operators that it still calls."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from msprobe.dispatch.capture import Capture

_LOG = logging.getLogger("msprobe")
_EVAL_FRAME = "torch._dynamo.eval_frame"
_ENTRY = "_callback_from_stance"  # called by every compiled function before it runs
_REASON = "kernels fused inside a compiled function (torch.compile)"
_WARNING = (
    "msprobe: a compiled function (torch.compile) stays compiled at level L2: of the kernels inside, only those that "
    "it calls as operators are recorded. Run with TORCHDYNAMO_DISABLE=1 to record all kernels of the eager program"
)


class CompiledRegions:
    """Counts calls of compiled functions in coverage.json, and warns about them once.

    Parameters
    ----------
    capture : Capture

    Attributes
    ----------
    probed : bool
        Whether compiled graphs are given probes: one that gets none tells so itself.
    """

    def __init__(self, capture: Capture) -> None:
        self.probed = False
        self._capture = capture
        self._original: Any = None
        self._warned = False

    def seen(self) -> None:
        """A compiled function runs, or is about to be compiled."""
        if not self.probed:
            self.runs_unprobed()

    def runs_unprobed(self) -> None:
        """Compiled code without probes runs."""
        if not self._capture.running:
            return
        self._capture.coverage.not_recorded[_REASON] += 1
        if not self._warned:
            self._warned = True
            _LOG.warning(_WARNING)

    def attach(self) -> None:
        """Watch for compiled functions, if the compiler is loaded; else there is none yet, and Dynamo tells us."""
        module = sys.modules.get(_EVAL_FRAME)
        entry = getattr(module, _ENTRY, None)
        if self._original is None:
            self._original = entry
        if entry is not None and entry is self._original:  # else somebody has replaced it, perhaps around ours
            setattr(module, _ENTRY, self._entered)

    def detach(self) -> None:
        """Put the compiler's entry back, unless somebody else has replaced it since."""
        module = sys.modules.get(_EVAL_FRAME)
        if getattr(module, _ENTRY, None) == self._entered:
            setattr(module, _ENTRY, self._original)

    def _entered(self, callback: Any) -> Any:
        if callback is not None and callback is not False:
            self.seen()
        return self._original(callback)
