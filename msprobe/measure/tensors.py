"""Statistics of any torch tensor, on any device, at once."""

from __future__ import annotations

from typing import Any

import torch

from msprobe.measure.cpu import summarise_cpu
from msprobe.measure.deferred import DeferredRows
from msprobe.measure.device_streams import readable_now
from msprobe.measure.quiet import Quiet
from msprobe.measure.records import Statistics
from msprobe.measure.views import view_tensor


def summarise_tensor(tensor: Any, *, low: bool) -> Statistics:
    """Return the statistics of a torch tensor; see `msprobe.measure.statistics`.

    Raises
    ------
    TypeError
        If `tensor` is not a torch tensor.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"statistics() of a {type(tensor).__name__}: give a torch tensor or a numpy array")
    with Quiet():
        view = readable_now(view_tensor(tensor))
        if view.data is None:
            return Statistics.unmeasured(view.reason or "no data")
        if view.data.device.type == "cpu":
            return summarise_cpu(view.data, view.info, low=low)
        rows = DeferredRows(low=low, zeros=True)
        found: list[Statistics] = []
        rows.add(view.data, view.info, found.append)
    rows.resolve()
    return found[0]
