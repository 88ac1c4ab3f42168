"""Calls whose gradients are known: what autograd itself says, against which backward records are checked.

A case is run twice. With the tool, :meth:`Reference.use` returns its tensor unchanged. Without it, ``use`` puts a
node in between, so that each use of a tensor has a gradient of its own even when the tensor is used several times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Values = list[torch.Tensor | None]
Case = Callable[["Reference"], torch.Tensor]
CASES: dict[str, Case] = {}


class Reference:
    """Collects the tensors whose gradients a record has to show.

    Parameters
    ----------
    split : bool
        Whether every use of a tensor gets a node of its own.
    """

    def __init__(self, *, split: bool) -> None:
        self._split = split
        self._expected: dict[str, tuple[Sequence[Any], Sequence[Any]]] = {}

    def use(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, as one argument of one call."""
        return _Use.apply(tensor) if self._split else tensor

    def expect(self, name: str, results: Sequence[Any], arguments: Sequence[Any]) -> None:
        """The backward record ``name`` shows these gradients of results and arguments; None stands for none."""
        self._expected[name] = (results, arguments)

    def gradients(self, loss: torch.Tensor) -> dict[str, tuple[Values, Values]]:
        """Gradients of everything that was expected, from autograd."""
        flat = [tensor for pair in self._expected.values() for side in pair for tensor in side if tensor is not None]
        found = iter(torch.autograd.grad(loss, flat, allow_unused=True))
        return {
            name: tuple([None if tensor is None else next(found) for tensor in side] for side in pair)  # type: ignore[misc]
            for name, pair in self._expected.items()
        }


class _Use(torch.autograd.Function):
    """Identity with a node."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


def case(build: Case) -> Case:
    """Add a case to :data:`CASES`."""
    CASES[build.__name__] = build
    return build


def leaf(*shape: int) -> torch.Tensor:
    """Random values that need a gradient."""
    return torch.randn(*shape, requires_grad=True)


@case
def linear_on_three_dimensions(ref: Reference) -> torch.Tensor:
    x, w, b = leaf(2, 3, 4), leaf(5, 4), leaf(5)
    y = F.linear(x, w, b)
    ref.expect("Functional.linear.0.backward", [y], [x, w, b])
    return y.square().sum()


@case
def linear_without_gradient_for_the_input(ref: Reference) -> torch.Tensor:
    x, w = torch.randn(3, 4), leaf(5, 4)
    y = F.linear(x, weight=w)
    ref.expect("Functional.linear.0.backward", [y], [None, w])
    return y.square().sum()


@case
def cross_entropy_with_class_weights(ref: Reference) -> torch.Tensor:
    x, weight = leaf(4, 3), torch.tensor([1.0, 2.0, 3.0])
    loss = F.cross_entropy(x, torch.tensor([0, 1, 2, 0]), weight=weight, label_smoothing=0.1)
    ref.expect("Functional.cross_entropy.0.backward", [loss], [x, None, None])
    return loss


@case
def attention_with_one_tensor_as_query_key_and_value(ref: Reference) -> torch.Tensor:
    h = leaf(1, 2, 5, 4) * 2
    q, k, v = ref.use(h), ref.use(h), ref.use(h)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    ref.expect("Functional.scaled_dot_product_attention.0.backward", [y], [q, k, v])
    return y.square().sum()


@case
def attention_on_a_leaf(ref: Reference) -> torch.Tensor:
    h = leaf(1, 2, 5, 4)
    q, k, v = ref.use(h), ref.use(h), ref.use(h)
    y = F.scaled_dot_product_attention(q, k, v)
    ref.expect("Functional.scaled_dot_product_attention.0.backward", [y], [q, k, v])
    return y.square().sum()


@case
def product_of_a_tensor_with_itself(ref: Reference) -> torch.Tensor:
    h = leaf(3, 4).exp()
    a, b = ref.use(h), ref.use(h)
    y = torch.mul(a, b)
    ref.expect("Torch.mul.0.backward", [y], [a, b])
    return (y * torch.arange(4.0)).sum()


@case
def matrix_product_of_a_leaf_with_its_transpose(ref: Reference) -> torch.Tensor:
    h = leaf(3, 4)
    a, b = ref.use(h), h.t()
    y = torch.matmul(a, b)
    ref.expect("Torch.matmul.0.backward", [y], [a, b])
    return y.square().sum()


@case
def chunks_of_which_one_is_unused(ref: Reference) -> torch.Tensor:
    h = leaf(3, 6).tanh()
    parts = h.chunk(3, dim=1)
    ref.expect("Tensor.chunk.0.backward", list(parts), [h])
    return parts[0].sum() + parts[2].square().sum()


@case
def result_with_several_tensors(ref: Reference) -> torch.Tensor:
    h = leaf(3, 6).tanh()
    values, places = h.topk(2, dim=1)
    ref.expect("Tensor.topk.0.backward", [values, None], [h])
    return values.square().sum() + places.sum() * 0


@case
def views_of_a_leaf(ref: Reference) -> torch.Tensor:
    x = leaf(4, 6)
    a, b = x[:, :3], x.t()[:3].t()
    y = torch.add(a, b)
    ref.expect("Torch.add.0.backward", [y], [a, b])
    return y.square().sum()


@case
def tensors_in_a_list(ref: Reference) -> torch.Tensor:
    h = leaf(2, 3).exp()
    a, b, c = ref.use(h), torch.randn(2, 3), ref.use(h)
    y = torch.cat([a, b, c], dim=1)
    ref.expect("Torch.cat.0.backward", [y], [a, None, c])
    return (y * torch.arange(9.0)).sum()


@case
def broadcast_operator(ref: Reference) -> torch.Tensor:
    a, b = leaf(3, 4).exp(), leaf(4)
    y = a + b
    ref.expect("Tensor.__add__.0.backward", [y], [a, b])
    return y.square().sum()


@case
def reflected_operator(ref: Reference) -> torch.Tensor:
    a = leaf(3, 4).exp()
    y = 2 / a
    z = torch.tensor(3.0) - y
    ref.expect("Tensor.__sub__.0.backward", [z], [None, y])
    return z.square().sum()


@case
def composite_of_several_nodes(ref: Reference) -> torch.Tensor:
    x, w = leaf(2, 5, 4), leaf(4)
    y = F.rms_norm(x, (4,), w)
    ref.expect("Functional.rms_norm.0.backward", [y], [x, w])
    return y.square().sum() * 0.5 + y.sum()


@case
def composite_that_uses_an_input_in_several_nodes(ref: Reference) -> torch.Tensor:
    h = leaf(3, 4).exp()
    a, b = ref.use(h), leaf(3, 4)
    y = F.cosine_similarity(a, b, dim=1)
    ref.expect("Functional.cosine_similarity.0.backward", [y], [a, b])
    return (y * torch.arange(3.0)).sum() + h.sum()


@case
def embedding_and_layer_norm(ref: Reference) -> torch.Tensor:
    w, g, b = leaf(5, 4), leaf(4), leaf(4)
    h = F.embedding(torch.tensor([[1, 2], [2, 0]]), w)
    y = F.layer_norm(h, (4,), weight=g, bias=b)
    ref.expect("Functional.embedding.0.backward", [h], [None, w])
    ref.expect("Functional.layer_norm.0.backward", [y], [h, g, b])
    return y.square().sum() + y.exp().sum()


@case
def convolution_and_pooling(ref: Reference) -> torch.Tensor:
    x, w, b = leaf(1, 2, 6, 6), leaf(3, 2, 3, 3), leaf(3)
    h = F.conv2d(x, w, b, padding=1)
    y, places = F.max_pool2d(h, 2, return_indices=True)
    ref.expect("Functional.conv2d.0.backward", [h], [x, w, b])
    return y.square().sum() + places.sum() * 0


@case
def custom_function(ref: Reference) -> torch.Tensor:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: torch.Tensor, factor: float, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            ctx.factor = factor
            return a * factor, b.clone()

        @staticmethod
        def backward(ctx: Any, ga: torch.Tensor, gb: torch.Tensor) -> Any:
            return ga * ctx.factor, None, gb

    h = leaf(3).exp()
    y, z = Scaled.apply(h, 3.0, leaf(3))
    w = torch.mul(y, z)
    ref.expect("Torch.mul.0.backward", [w], [y, z])
    return w.square().sum()


@case
def complex_values(ref: Reference) -> torch.Tensor:
    h = leaf(8).sin()
    spectrum = torch.fft.rfft(h)
    ref.expect("Torch.fft.rfft.0.backward", [spectrum], [h])
    return spectrum.abs().square().sum() + spectrum.real.sum()


@case
def recurrent_kernel(ref: Reference) -> torch.Tensor:
    model, x = nn.LSTM(3, 4, num_layers=2), leaf(5, 2, 3).tanh()
    h, c = leaf(2, 2, 4), leaf(2, 2, 4)
    out, (h_n, c_n) = model(x, (h, c))
    weights = list(model.parameters())
    ref.expect("VF.lstm.0.backward", [out, h_n, c_n], [x, h, c, *weights])
    return out.square().sum() + c_n.sum()


# -- in place: no node can be put between, so gradients come from a second, functional formulation


def run_in_place_on_a_view() -> tuple[torch.Tensor, dict[str, tuple[Values, Values]]]:
    """``relu_`` on a view, and the base is used afterwards."""
    x = leaf(4, 6)
    h = x * 2
    h[:, :3].relu_()
    loss = (h * torch.arange(6.0)).sum()
    slope = torch.arange(6.0).expand(4, 6)[:, :3]
    entering = slope * (x.detach()[:, :3] * 2 > 0)
    return loss, {"Tensor.relu_.0.backward": ([slope], [entering])}


def run_in_place_on_a_slice() -> tuple[torch.Tensor, dict[str, tuple[Values, Values]]]:
    """``mul_`` with a second tensor on a slice."""
    x, factor = leaf(4, 6), leaf(2, 6)
    h = x + 1
    before = h.detach()[1:3].clone()
    h[1:3].mul_(factor)
    loss = (h * torch.arange(6.0)).sum()
    slope = torch.arange(6.0).expand(2, 6)
    return loss, {"Tensor.mul_.0.backward": ([slope], [slope * factor.detach(), slope * before])}


def run_in_place_on_a_whole_tensor() -> tuple[torch.Tensor, dict[str, tuple[Values, Values]]]:
    """``exp_`` on a tensor that is no view."""
    h = leaf(3, 4) * 2
    h.exp_()
    after = h.detach().clone()
    loss = (h * torch.arange(4.0)).sum()
    slope = torch.arange(4.0).expand(3, 4)
    return loss, {"Tensor.exp_.0.backward": ([slope], [slope * after])}


def run_assignment_to_a_slice() -> tuple[torch.Tensor, dict[str, tuple[Values, Values]]]:
    """``h[:, 1:3] = value``."""
    h, value = leaf(3, 4) * 2, leaf(3, 2)
    h[:, 1:3] = value
    loss = (h * torch.arange(4.0)).sum()
    slope = torch.arange(4.0).expand(3, 4)
    kept = slope.clone()
    kept[:, 1:3] = 0
    return loss, {"Tensor.__setitem__.0.backward": ([slope], [kept, slope[:, 1:3]])}


def run_two_changes_of_one_view() -> tuple[torch.Tensor, dict[str, tuple[Values, Values]]]:
    """Each in-place call has its own gradients, also when the view is used afterwards."""
    h = leaf(4, 6).mul(2).contiguous()
    view = h[1:3]
    before = view.detach().clone()
    view.mul_(3)
    view.sin_()
    loss = (view * torch.arange(6.0)).sum() + h.sum()
    slope = torch.arange(6.0).expand(2, 6) + 1
    between = slope * (before * 3).cos()
    return loss, {"Tensor.sin_.0.backward": ([slope], [between]), "Tensor.mul_.0.backward": ([between], [between * 3])}


def run_filling_of_a_plain_buffer() -> tuple[torch.Tensor, dict[str, tuple[Values, Values]]]:
    """A tensor without gradient gets one when values are copied into a part of it."""
    value, out = leaf(3, 2), torch.zeros(3, 4)
    out[:, ::2].copy_(value)
    loss = (out * torch.arange(4.0)).sum()
    slope = torch.arange(4.0).expand(3, 4)[:, ::2]
    return loss, {"Tensor.copy_.0.backward": ([slope], [None, slope])}


def run_in_place_dropout_and_activation() -> tuple[torch.Tensor, dict[str, tuple[Values, Values]]]:
    """Functions with ``inplace=True``."""
    h = leaf(3, 4) * 1
    F.hardtanh(h, inplace=True)
    F.dropout(h, 0.5, training=False, inplace=True)
    inside = (h.detach().abs() < 1).float()
    loss = (h * torch.arange(4.0)).sum()
    slope = torch.arange(4.0).expand(3, 4)
    return loss, {"Functional.hardtanh.0.backward": ([slope], [slope * inside])}


IN_PLACE = {
    function.__name__.removeprefix("run_"): function
    for function in (
        run_in_place_on_a_view,
        run_in_place_on_a_slice,
        run_in_place_on_a_whole_tensor,
        run_assignment_to_a_slice,
        run_two_changes_of_one_view,
        run_filling_of_a_plain_buffer,
        run_in_place_dropout_and_activation,
    )
}
