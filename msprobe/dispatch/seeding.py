"""Make a run repeatable (``seed_all``)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from msprobe.core.seeding import seed_process


class _Probability(NamedTuple):
    """Where a function takes its dropout probability."""

    position: int
    keyword: str


def _dropout_functions() -> Iterator[tuple[Any, _Probability]]:
    plain = _Probability(1, "p")
    names = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
    for name in names:
        yield getattr(torch.nn.functional, name), plain
    for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"):
        yield getattr(torch, name), plain
        yield getattr(torch, f"{name}_"), plain
    yield torch.native_dropout, plain
    # What these do inside is hidden from a function mode.
    yield torch.nn.functional.scaled_dot_product_attention, _Probability(4, "dropout_p")
    yield torch.nn.functional.multi_head_attention_forward, _Probability(10, "dropout_p")
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        yield getattr(torch, name), _Probability(5, "dropout")


class _DropoutOff(torch.overrides.TorchFunctionMode):
    """Run every function that drops elements with probability 0, without replacing one."""

    def __init__(self) -> None:
        super().__init__()
        self._probabilities = dict(_dropout_functions())

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        try:
            probability = self._probabilities.get(func)
        except TypeError:  # an unhashable callable
            probability = None
        if probability is not None:
            at, keyword = probability
            if keyword == "dropout" and len(args) > 3 and isinstance(args[3], (list, tuple)):
                at += 1  # the overload for packed sequences: (data, batch_sizes, hidden, weights, ...)
            if len(args) > at:
                args = (*args[:at], 0.0, *args[at + 1 :])
            else:
                kwargs[keyword] = 0.0
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
        Run dropout of every kind with p = 0 from now on in this thread: the functions of ``torch`` and
        ``torch.nn.functional``, attention, and recurrent layers.

    Raises
    ------
    LifecycleError
        If an argument has another type or the seed is out of range.
    """
    seed_process(seed, mode=mode, rm_dropout=rm_dropout)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(mode)
    torch.backends.cudnn.deterministic = mode
    torch.backends.cudnn.benchmark = not mode and torch.backends.cudnn.benchmark
    if mode:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if rm_dropout:
        _DropoutOff().__enter__()
