"""Modules that torch runs as one fused kernel in inference, unless something is watching.

``nn.MultiheadAttention``, ``nn.TransformerEncoderLayer`` and ``nn.TransformerEncoder`` ask whether a function mode is
on the stack or a hook is on one of their submodules, and then take another path with other rounding. So that
recording does not change their result, the mode is off while such a module takes its fused path, and its hooks are
global ones, which are not asked about. The conditions are those of the modules' own ``forward``; a torch that changes
them is noticed by the neutrality tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from msprobe.dispatch.named_modules import NamedModules

FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


def watched_for_hooks(found: NamedModules) -> set[int]:
    """Return the ids of the modules on which a hook of its own would switch a fused path off."""
    if not any(issubclass(kind, FUSED) for kind in (*found.classes, *map(type, found.roots))):
        return set()
    modules = (*found.roots, *(module for _, module in found.calls))
    return {id(inner) for module in modules if isinstance(module, FUSED) for inner in module.modules()}


def takes_fused_path(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether ``module``, called with these arguments, would run fused if nobody watched."""
    if not isinstance(module, FUSED) or module.training or not torch.backends.mha.get_fastpath_enabled():
        return False
    first = args[0] if args else next(iter(kwargs.values()), None)
    if torch.is_autocast_enabled() or not isinstance(first, torch.Tensor) or first.dim() != 3:
        return False
    if torch.is_grad_enabled() and (first.requires_grad or any(p.requires_grad for p in module.parameters())):
        return False
    if isinstance(module, nn.MultiheadAttention):
        return _fused_attention(module, args, kwargs)
    return _fused_layer(module) if isinstance(module, nn.TransformerEncoderLayer) else module.use_nested_tensor


def _fused_attention(module: nn.MultiheadAttention, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    given = dict(zip(("query", "key", "value"), args, strict=False), **kwargs)
    same = given.get("query") is given.get("key") is given.get("value")
    masks = (given.get("attn_mask"), given.get("key_padding_mask"))
    if not same or any(isinstance(mask, torch.Tensor) and mask.is_floating_point() for mask in masks):
        return False
    plain = module.bias_k is None and module.bias_v is None and not module.add_zero_attn
    return bool(plain and module.num_heads % 2 == 0 and module.batch_first and module._qkv_same_embed_dim)


def _fused_layer(layer: nn.TransformerEncoderLayer) -> bool:
    attention = layer.self_attn
    shaped = attention.batch_first and attention._qkv_same_embed_dim and attention.in_proj_bias is not None
    return bool(
        shaped and layer.activation_relu_or_gelu and layer.norm1.eps == layer.norm2.eps and attention.num_heads % 2 == 0
    )
