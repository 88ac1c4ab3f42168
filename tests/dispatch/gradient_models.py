"""Models whose module and API gradients are compared as a whole with what hooks of torch report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from neutral_scenarios import Lambda
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

Values = list[torch.Tensor | None]
Model = Callable[[], tuple[nn.Module, torch.Tensor]]
MODELS: dict[str, Model] = {}


def model(build: Model) -> Model:
    """Add a model with its input to :data:`MODELS`."""
    MODELS[build.__name__] = build
    return build


@model
def transformer_blocks() -> tuple[nn.Module, torch.Tensor]:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
            self.mlp = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(self.norm(x)).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(2, 5, 8))
            return x + self.mlp(x)

    return nn.Sequential(nn.Embedding(11, 8), Block(), Block(), nn.Linear(8, 11)), torch.randint(0, 11, (2, 5))


@model
def residual_convolutions() -> tuple[nn.Module, torch.Tensor]:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.act(m.norm(m.conv(x)) + x * m.gate(x.mean((2, 3)))[:, :, None, None])

    def block() -> nn.Module:
        gate = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())
        return Lambda(forward, conv=nn.Conv2d(4, 4, 3, padding=1), norm=nn.BatchNorm2d(4), act=nn.SiLU(), gate=gate)

    return nn.Sequential(nn.Conv2d(3, 4, 1), block(), block(), nn.Flatten(), nn.Linear(64, 2)), torch.randn(3, 3, 4, 4)


@model
def recurrent_layers() -> tuple[nn.Module, torch.Tensor]:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        h, _ = m.lstm(x)
        _, last = m.gru(h)
        return m.mix(last[0], last[0].sin())

    parts = {"lstm": nn.LSTM(3, 4, 2), "gru": nn.GRU(4, 4), "mix": nn.Bilinear(4, 4, 4)}
    return nn.Sequential(Lambda(forward, **parts)), torch.randn(5, 2, 3)


@model
def module_called_twice_and_identities() -> tuple[nn.Module, torch.Tensor]:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        h = m.shared(m.drop(x))
        return m.pair(m.shared(h), h) + m.same(h.cos())

    pair = Lambda(lambda _m, a, b: a * b + a.sin())
    parts = {"shared": nn.Linear(4, 4), "drop": nn.Dropout(0.5).eval(), "same": nn.Identity(), "pair": pair}
    return nn.Sequential(nn.Linear(4, 4), Lambda(forward, **parts)), torch.randn(3, 4)


@contextmanager
def full_backward_hooks(root: nn.Module) -> Iterator[dict[str, tuple[Values, Values]]]:
    """Gradients of all modules below ``root`` as torch's own hooks report them, by record name."""
    found: dict[str, tuple[Values, Values]] = {}
    calls: dict[str, int] = {}
    handles = []

    def listen(base: str, module: nn.Module) -> None:
        def backward(_m: nn.Module, sent: Any, arrived: Any) -> None:
            pending[base] -= 1  # calls end their backward in reverse order
            found[f"{base}.backward.{pending[base]}"] = (list(arrived), list(sent))

        def forward(*_: Any) -> None:
            calls[base] = pending[base] = calls.get(base, 0) + 1

        handles.extend((module.register_full_backward_hook(backward), module.register_forward_hook(forward)))

    pending: dict[str, int] = {}
    for path, module in root.named_modules():
        if module is not root:
            listen(f"Module.{path}.{type(module).__name__}", module)
    yield found
    for handle in handles:
        handle.remove()


class EveryCall(TorchFunctionMode):
    """Reference for API gradients: puts a node of its own before every tensor argument of every call."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Values, Values]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        flat, shape = tree_flatten((args, kwargs or {}))
        used: list[torch.Tensor | None] = []
        for position, value in enumerate(flat):
            if isinstance(value, torch.Tensor):
                used.append(None)
                if value.requires_grad and value.is_floating_point() and func is not torch.Tensor.backward:
                    flat[position] = used[-1] = value.view_as(value)
        args, kwargs = tree_unflatten(flat, shape)
        result = func(*args, **kwargs)
        results = [value for value in tree_flatten(result)[0] if isinstance(value, torch.Tensor)]
        if any(tensor.grad_fn is not None for tensor in results):
            call: tuple[Values, Values] = ([None] * len(results), [None] * len(used))
            self._calls.append(call)
            for side, tensors in zip(call, (results, used), strict=True):
                for position, tensor in enumerate(tensors):
                    if tensor is not None and tensor.grad_fn is not None:
                        tensor.register_hook(_keep(side, position))
        return result

    def gradients(self) -> list[tuple[Values, Values]]:
        """Gradients of results and arguments, per call that a gradient reached, in call order."""
        return [call for call in self._calls if any(gradient is not None for gradient in call[0])]


def _keep(side: Values, position: int) -> Callable[[torch.Tensor], None]:
    def hook(gradient: torch.Tensor) -> None:
        side[position] = gradient

    return hook
