"""The public entry for the statistics of one tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msprobe.measure.records import Statistics

if TYPE_CHECKING:
    import torch

Precision: TypeAlias = Literal["low", "high"]


def statistics(tensor: torch.Tensor | Any, precision: Precision = "low") -> Statistics:
    """Return max, min, mean, L2 norm and the counts of NaN, Inf and zero of a tensor.

    Parameters
    ----------
    tensor
        A torch tensor of any dtype, shape, strides, layout or device, or a numpy array. It is read in place: there is
        no copy of the whole, no gradient graph and no change. Accelerator tensors are waited for.
    precision
        ``"low"`` rounds the results to the tensor's own dtype (so they may become infinite), ``"high"`` keeps float64.
        Both accumulate in float64.

    Returns
    -------
    Statistics
        Of the modulus for complex tensors, of the stored values for sparse and nested ones, of the dequantised values
        for quantised ones. All None, with a ``reason``, when there is nothing to read.

    Raises
    ------
    ValueError
        If `precision` is neither ``"low"`` nor ``"high"``.
    TypeError
        If `tensor` is not a tensor.

    Examples
    --------
    >>> import torch
    >>> statistics(torch.tensor([3.0, 4.0])).norm
    5.0
    """
    if precision not in ("low", "high"):
        raise ValueError(f"precision={precision!r}: use 'low' or 'high'")
    low = precision == "low"
    import numpy as np  # noqa: PLC0415 - with the package imported, numpy and torch are not

    if isinstance(tensor, np.ndarray):
        from msprobe.measure.arrays import summarise_array  # noqa: PLC0415

        return summarise_array(tensor, low=low)
    from msprobe.measure.tensors import summarise_tensor  # noqa: PLC0415

    return summarise_tensor(tensor, low=low)
