"""Risk class of an operator as the dispatcher sees it (level L2).

The table of :mod:`msprobe.core.risk`, read from kernel names such as ``_softmax_backward_data`` or
``native_layer_norm``.
"""

from __future__ import annotations

from msprobe.core.risk import CORE_APIS, LOW_APIS, Risk

_ENDINGS = ("_backward_data", "_backward", "_forward", "_")
_VENDORS = ("native_", "cudnn_", "miopen_", "mkldnn_", "thnn_")
_CORE_STEMS = ("convolution", "efficient_attention", "embedding", "flash_attention", "fused_", "scaled_dot_product")

LOW_KERNELS = frozenset(
    """
    copy fill index_backward is_pinned is_same_size lift lift_fresh local_scalar_dense pin_memory reshape_alias
    reshape_copy resize scalar_tensor select set_ slice to_copy unsafe_view
    """.split()
)
"""Operators below the API level that move, reshape, cast or create values."""


def kernel_risk(namespace: str, name: str, *, view: bool = False) -> Risk:
    """Risk class of the operator ``namespace::name``.

    Parameters
    ----------
    namespace : str
        ``"aten"``, ``"c10d"``, or the library that registered a custom operator.
    name : str
        Operator name without its overload: ``"_log_softmax"``.
    view : bool
        Whether its result shares memory with an argument by design: such an operator computes nothing.

    Returns
    -------
    Risk
        Operators outside ``aten`` are CORE: communication, and what somebody wrote a kernel for.
    """
    if view:
        return Risk.LOW
    if namespace != "aten":
        return Risk.CORE
    stem = _stem(name)
    names = {name, stem, *(stem.removeprefix(vendor) for vendor in _VENDORS)}
    if not names.isdisjoint(CORE_APIS) or any(part.startswith(_CORE_STEMS) for part in names):
        return Risk.CORE
    return Risk.FOCUS if names.isdisjoint(LOW_APIS | LOW_KERNELS) else Risk.LOW


def _stem(name: str) -> str:
    """``softmax`` for ``_softmax_backward_data``."""
    stem = name.lstrip("_")
    for ending in _ENDINGS:
        if stem.endswith(ending):
            return stem.removesuffix(ending)
    return stem
