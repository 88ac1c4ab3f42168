"""Mistakes of the user: the tool must neither hide nor change nor add an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from neutral_run import Scenario
from neutral_scenarios import Built, Lambda
from torch import nn

ERROR_SCENARIOS: dict[str, Scenario] = {}


def mistake(wrong: Callable[[nn.Module, torch.Tensor], Any]) -> Callable[[nn.Module, torch.Tensor], Any]:
    """Make a scenario of a function of a linear module and its input: it raises, and training goes on after that."""

    def build() -> Built:
        model = nn.Sequential(Lambda(lambda m, x: m.linear(x), linear=nn.Linear(4, 4)))

        def step() -> Sequence[Any]:
            model.zero_grad()
            message = "no error"
            try:
                wrong(model, torch.randn(3, 4))
            except Exception as error:  # noqa: BLE001 - the error is the result
                message = f"{type(error).__name__}: {error}"
            loss = model(torch.randn(3, 4)).sum()
            loss.backward()
            return [loss, message]

        return model, step

    ERROR_SCENARIOS[wrong.__name__] = build
    return wrong


@mistake
def saved_tensor_changed_in_place(model: nn.Module, x: torch.Tensor) -> None:
    h = model(x).exp()
    h.add_(1)
    h.sum().backward()


@mistake
def leaf_changed_in_place(model: nn.Module, _x: torch.Tensor) -> None:
    next(model.parameters()).add_(1)


@mistake
def view_of_a_leaf_changed_in_place(model: nn.Module, _x: torch.Tensor) -> None:
    next(model.parameters())[0].zero_()


@mistake
def output_of_a_multi_view_function_changed_in_place(model: nn.Module, x: torch.Tensor) -> None:
    model(x).unbind(0)[0].add_(1)


@mistake
def view_made_without_gradients_changed_in_place(model: nn.Module, x: torch.Tensor) -> None:
    h = model(x)
    with torch.no_grad():
        view = h[0]
    view.mul_(model(x)[0])


@mistake
def inference_tensor_saved_for_backward(model: nn.Module, x: torch.Tensor) -> None:
    with torch.inference_mode():
        frozen = x * 2
    model(frozen)


@mistake
def inference_tensor_changed_in_place(_model: nn.Module, x: torch.Tensor) -> None:
    with torch.inference_mode():
        frozen = x * 2
    frozen.add_(1)


@mistake
def backward_twice(model: nn.Module, x: torch.Tensor) -> None:
    loss = model(x).square().sum()
    loss.backward()
    loss.backward()


@mistake
def backward_of_a_matrix(model: nn.Module, x: torch.Tensor) -> None:
    model(x).backward()


@mistake
def gradient_of_an_unused_input(model: nn.Module, x: torch.Tensor) -> None:
    torch.autograd.grad(model(x).sum(), torch.ones(2, requires_grad=True))


@mistake
def shapes_that_do_not_fit(model: nn.Module, x: torch.Tensor) -> None:
    model(x.t())


@mistake
def dtypes_that_do_not_fit(model: nn.Module, x: torch.Tensor) -> None:
    model(x.double())


@mistake
def argument_of_the_wrong_type(_model: nn.Module, _x: torch.Tensor) -> None:
    F.relu("text")  # type: ignore[arg-type]


@mistake
def argument_that_does_not_exist(_model: nn.Module, x: torch.Tensor) -> None:
    torch.sum(x, no_such_argument=1)  # type: ignore[call-overload]


@mistake
def result_that_requires_grad_in_out(model: nn.Module, x: torch.Tensor) -> None:
    torch.add(model(x), 1, out=torch.zeros(3, 4, requires_grad=True))


@mistake
def index_out_of_range(_model: nn.Module, x: torch.Tensor) -> None:
    F.embedding(torch.tensor([9]), x)


@mistake
def error_in_a_hook_of_the_user(model: nn.Module, x: torch.Tensor) -> None:
    def explode(_gradient: torch.Tensor) -> None:
        raise ArithmeticError("in the user's hook")

    h = model(x)
    h.register_hook(explode)
    h.sum().backward()


@mistake
def error_in_a_custom_backward(model: nn.Module, x: torch.Tensor) -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            raise LookupError("in the user's backward")

    Broken.apply(model(x)).sum().backward()


@mistake
def error_in_a_module(model: nn.Module, x: torch.Tensor) -> None:
    def stop(*_: Any) -> None:
        raise KeyError("in the user's module")

    handle = model[0].linear.register_forward_hook(stop)
    try:
        model(x)
    finally:
        handle.remove()


@mistake
def numpy_of_a_tensor_with_gradient(model: nn.Module, x: torch.Tensor) -> None:
    model(x).numpy()


@mistake
def deep_copy_of_an_inner_tensor(model: nn.Module, x: torch.Tensor) -> None:
    import copy

    copy.deepcopy(model(x))
