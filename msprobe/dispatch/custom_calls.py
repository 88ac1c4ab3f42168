"""Recording of functions that the user registered by hand (``register_custom_api``)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from msprobe.core.risk import Risk
from msprobe.dispatch.api_mode import ApiMode, hidden
from msprobe.dispatch.api_table import Api


def recording(
    active: Callable[[], ApiMode | None], prefix: str, name: str, function: Callable[..., Any]
) -> Callable[..., Any]:
    """Return what records the calls of ``function`` as ``prefix.name``.

    Parameters
    ----------
    active : callable
        Returns the mode to record with, or None when nothing is recorded in this thread now.
    prefix, name : str
    function : callable
    """
    api = Api(prefix, name)
    api.risk = Risk.CORE

    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        mode = None if torch.compiler.is_compiling() else active()
        if mode is None:
            return function(*args, **kwargs)
        with hidden(mode):
            return mode.call(api, function, args, kwargs)

    return recorded
