"""Notice an optimiser step that a gradient scaler leaves out because a gradient is not finite.

The optimiser is not called then, so none of its hooks run; but for whoever looks for the overflow it is a step like
any other. torch has no hook for it, so the scaler's private method is wrapped; no public attribute changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.amp.grad_scaler import GradScaler

_METHOD = "_maybe_opt_step"


class SkippedSteps:
    """Reports the optimiser steps that did not take place.

    Parameters
    ----------
    skipped : callable
        Gets the optimiser.
    """

    def __init__(self, skipped: Callable[[Any], None]) -> None:
        self._skipped = skipped
        self._original: Callable[..., Any] | None = None

    def watch(self) -> None:
        """Begin; does nothing if this torch has no such method."""
        original = GradScaler.__dict__.get(_METHOD)
        if original is None:
            return
        skipped = self._skipped

        @functools.wraps(original)
        def watched(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not hasattr(optimizer, "register_step_pre_hook"):  # not one of torch's
                return original(scaler, optimizer, *args, **kwargs)
            called: list[Any] = []
            handle = optimizer.register_step_pre_hook(lambda *_: called.append(True))
            try:
                result = original(scaler, optimizer, *args, **kwargs)
            finally:
                handle.remove()
            if not called:
                skipped(optimizer)
            return result

        self._original = original
        setattr(GradScaler, _METHOD, watched)

    def ignore(self) -> None:
        """End :meth:`watch`."""
        if self._original is not None:
            setattr(GradScaler, _METHOD, self._original)
            self._original = None
