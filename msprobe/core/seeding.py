"""What ``seed_all`` does for every framework: check its arguments, seed Python and NumPy."""

from __future__ import annotations

import os
import random

import numpy as np

from msprobe.core.errors import LifecycleError

_SEED_LIMIT = 2**32 - 1


def seed_process(seed: int, *, mode: bool, rm_dropout: bool) -> None:
    """Seed the generators of Python and NumPy, and say what HCCL is to do.

    Parameters
    ----------
    seed : int
        0 to 2**32 - 1; also given to ``PYTHONHASHSEED``.
    mode : bool
        Becomes ``HCCL_DETERMINISTIC``.
    rm_dropout : bool
        Only checked.

    Raises
    ------
    LifecycleError
        If an argument has another type or the seed is out of range; nothing is changed then.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= _SEED_LIMIT:
        raise LifecycleError(f"seed_all: seed must be an integer from 0 to {_SEED_LIMIT}, not {seed!r}")
    for name, value in (("mode", mode), ("rm_dropout", rm_dropout)):
        if not isinstance(value, bool):
            raise LifecycleError(f"seed_all: {name} must be True or False, not {value!r}")
    os.environ["PYTHONHASHSEED"] = str(seed)
    os.environ["HCCL_DETERMINISTIC"] = str(mode)
    random.seed(seed)
    np.random.seed(seed)
