"""Make a run repeatable (``seed_all``)."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import mint, nn, ops

from msprobe.core.seeding import seed_process

_CELLS = ("Dropout", "DropoutExt", "Dropout1d", "Dropout2d", "Dropout2dExt", "Dropout3d")
_FUNCTIONS = ("dropout", "dropout1d", "dropout2d", "dropout3d")


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False) -> None:
    """Seed every random generator, and optionally ask for deterministic kernels and no dropout.

    Parameters
    ----------
    seed : int
        0 to 2**32 - 1; given to Python, NumPy, MindSpore and ``PYTHONHASHSEED``.
    mode : bool
        Use deterministic kernels, also in HCCL.
    rm_dropout : bool
        From now on the dropout Cells of ``nn`` and ``mint.nn``, and the dropout functions of ``ops`` and
        ``mint.nn.functional``, return their input. Functions that were imported by name before are not changed.

    Raises
    ------
    LifecycleError
        If an argument has another type or the seed is out of range.
    """
    seed_process(seed, mode=mode, rm_dropout=rm_dropout)
    ms.set_seed(seed)
    ms.manual_seed(seed)
    ms.set_context(deterministic="ON" if mode else "OFF")
    if rm_dropout:
        _remove_dropout()


def _remove_dropout() -> None:
    for cell in (getattr(nn.layer.basic, name, None) for name in _CELLS):
        if cell is not None:
            cell.construct = _without_dropout
    for space in (ops, mint.nn.functional):
        for name in _FUNCTIONS:
            if hasattr(space, name):
                setattr(space, name, _kept)


def _without_dropout(self: Any, x: Any) -> Any:
    """Stand in for ``construct`` of a dropout Cell; compiled in graph mode, so the first parameter is ``self``."""
    return x


def _kept(input: Any, p: float = 0.5, training: bool = True, **_options: Any) -> Any:  # noqa: A002 - MindSpore's name
    """Stand in for a dropout function."""
    return input
