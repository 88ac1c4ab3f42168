"""Make a run repeatable (``seed_all``)."""

from __future__ import annotations

import os
import random

import numpy as np
import torch

from msprobe.core.errors import LifecycleError

_SEED_LIMIT = 2**32 - 1


class _DropoutOff(torch.overrides.TorchFunctionMode):
    """Run every dropout function with probability 0, without replacing one."""

    _FUNCTIONS = frozenset(
        getattr(torch.nn.functional, name) for name in ("dropout", "dropout1d", "dropout2d", "dropout3d")
    )

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = dict(kwargs or {})
        if func in self._FUNCTIONS:
            if len(args) > 1:
                args = (args[0], 0.0, *args[2:])
            else:
                kwargs["p"] = 0.0
        return func(*args, **kwargs)


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False) -> None:
    """Seed every random generator, and optionally ask for deterministic algorithms and no dropout.

    Parameters
    ----------
    seed : int
        0 to 2**32 - 1; given to Python, NumPy, PyTorch (all devices) and ``PYTHONHASHSEED``.
    mode : bool
        Use deterministic algorithms (``torch.use_deterministic_algorithms``), also in cuDNN and HCCL.
    rm_dropout : bool
        Run ``torch.nn.functional.dropout*`` with p = 0 from now on in this thread.

    Raises
    ------
    LifecycleError
        If an argument has another type or the seed is out of range.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= _SEED_LIMIT:
        raise LifecycleError(f"seed_all: seed must be an integer from 0 to {_SEED_LIMIT}, not {seed!r}")
    for name, value in (("mode", mode), ("rm_dropout", rm_dropout)):
        if not isinstance(value, bool):
            raise LifecycleError(f"seed_all: {name} must be True or False, not {value!r}")
    os.environ["PYTHONHASHSEED"] = str(seed)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    os.environ["HCCL_DETERMINISTIC"] = str(mode)
    torch.use_deterministic_algorithms(mode)
    torch.backends.cudnn.deterministic = mode
    torch.backends.cudnn.benchmark = not mode and torch.backends.cudnn.benchmark
    if mode:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if rm_dropout:
        _DropoutOff().__enter__()
