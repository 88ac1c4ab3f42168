"""The current stream of a device, and tensors that hold no numbers yet because it records a graph.

While a device graph is being captured nothing that is launched runs. A kernel of ours would become part of the user's
graph, find nothing now, and at every replay write into rows that belong to others. A copy to the host would even make
the capture fail.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from msprobe.measure.views import TensorView

#: Why there are no numbers.
CAPTURING = "a device graph is being captured: kernels are recorded and not run"


def current_stream(device: torch.device) -> Any:
    """Return the stream on which operations of this thread are queued; None on the CPU."""
    return None if device.type == "cpu" else torch.get_device_module(device).current_stream(device)


def is_capturing(device: torch.device) -> bool:
    """Tell whether the current stream of a device records a graph instead of running what is launched."""
    if device.type == "cpu":
        return False
    probe = getattr(torch.get_device_module(device), "is_current_stream_capturing", None)
    return probe is not None and bool(probe())


def readable_now(view: TensorView) -> TensorView:
    """Return the view, without its memory while a graph is being captured on its device."""
    if not view.parts or not is_capturing(view.parts[-1].device):
        return view
    return replace(view, data=None, parts=(), stored=None, reason=view.reason or CAPTURING)
