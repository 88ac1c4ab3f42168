"""Float64 references for APIs that refuse float64, composed of operators that take it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch


def reference_of(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what computes the float64 reference of an API: `function` itself, unless it refuses float64.

    Parameters
    ----------
    name : str
        Name without namespace and overload: ``_grouped_mm``.
    function : callable
    """
    return REFERENCES.get(name, function)


def grouped_mm(
    first: torch.Tensor,
    second: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Multiply groups of matrices, as ``torch._grouped_mm`` does.

    Parameters
    ----------
    first : torch.Tensor
        Of shape (M, K), or (G, M, K).
    second : torch.Tensor
        Of shape (K, N), or (G, K, N).
    offs : torch.Tensor, optional
        int32 of shape (G,): where each group ends along the dimension that the groups share. Rows after the last group
        are zero.
    """
    if first.ndim == 3 and second.ndim == 3:
        product = first @ second
    else:
        ends = [] if offs is None else offs.tolist()
        product = _by_group(first, second, list(zip([0, *ends], ends, strict=False)))
    if bias is not None:
        product = product + bias
    return product if out_dtype is None else product.to(out_dtype)


def _by_group(first: torch.Tensor, second: torch.Tensor, spans: list[tuple[int, int]]) -> torch.Tensor:
    if first.ndim == 2 and second.ndim == 2:  # the groups share the inner dimension
        return torch.stack([first[:, low:high] @ second[low:high] for low, high in spans])
    if first.ndim == 2:
        rows = [first[low:high] @ second[group] for group, (low, high) in enumerate(spans)]
        rest = first.shape[0] - spans[-1][1]
        return torch.cat([*rows, first.new_zeros(rest, second.shape[-1])])
    columns = [first[group] @ second[:, low:high] for group, (low, high) in enumerate(spans)]
    rest = second.shape[1] - spans[-1][1]
    return torch.cat([*columns, first.new_zeros(first.shape[1], rest)], dim=1)


REFERENCES: dict[str, Callable[..., Any]] = {"_grouped_mm": grouped_mm}


def source_of(name: str) -> str:
    """Return the Python text of a reference of this module, for a script that must do without it."""
    parts = (_by_group, REFERENCES[name])
    return "\n\n".join(inspect.getsource(part) for part in parts)
