"""Scenarios around autograd itself: custom functions, several backward passes, hooks of the user, modes, errors."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from neutral_run import Scenario
from neutral_scenarios import Built, Lambda, sgd
from torch import nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

AUTOGRAD_SCENARIOS: dict[str, Scenario] = {}


def scenario(build: Scenario) -> Scenario:
    """Add a scenario to :data:`AUTOGRAD_SCENARIOS`."""
    AUTOGRAD_SCENARIOS[build.__name__] = build
    return build


class Cubed(torch.autograd.Function):
    """Saves, returns a non-differentiable second output, can be differentiated twice."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(x)
        ctx.scale = scale
        rounded = x.round()
        ctx.mark_non_differentiable(rounded)
        return x**3 * scale, rounded

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        return grads[0] * 3 * x**2 * ctx.scale, None


class DoubledInPlace(torch.autograd.Function):
    """Changes its input and says so."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


class Sine(torch.autograd.Function):
    """New style: ``setup_context`` and a vmap rule."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * ctx.saved_tensors[0].cos()


@scenario
def custom_autograd_functions() -> Built:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        h = m.linear(x)
        cubed, rounded = Cubed.apply(h, 0.5)
        doubled = DoubledInPlace.apply(h.clone())
        return (cubed + doubled + Sine.apply(h) + rounded).sum()

    model = nn.Sequential(Lambda(forward, linear=nn.Linear(4, 4)))
    return model, sgd(model, lambda: model(torch.randn(3, 4)))


@scenario
def double_backward_of_a_gradient_penalty() -> Built:
    model = nn.Sequential(nn.Linear(4, 6), nn.Softplus(), nn.LayerNorm(6), nn.Linear(6, 1))

    def loss_of() -> torch.Tensor:
        x = torch.randn(3, 4, requires_grad=True)
        out = model(x).sum() + Cubed.apply(x, 0.1)[0].sum()
        (gradient,) = torch.autograd.grad(out, x, create_graph=True)
        return out + (gradient.norm(2, dim=1) - 1).square().mean()

    return model, sgd(model, loss_of)


@scenario
def several_backward_passes_over_one_graph() -> Built:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    def step() -> Sequence[Any]:
        model.zero_grad()
        h = model(torch.randn(3, 4))
        h.sum().backward(retain_graph=True)
        h.square().sum().backward(retain_graph=True, inputs=list(model[0].parameters()))
        h.backward(torch.ones_like(h))
        return [h]

    return model, step


@scenario
def gradients_asked_for_by_grad() -> Built:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))

    def step() -> Sequence[Any]:
        x = torch.randn(3, 4, requires_grad=True)
        h = model[0](x)
        out = model[2](model[1](h))
        first = torch.autograd.grad(out.sum(), [x, h], retain_graph=True)
        second = torch.autograd.grad([out], [*model.parameters(), h], torch.ones_like(out)[None], is_grads_batched=True)
        jacobian = torch.autograd.functional.jacobian(lambda v: model(v).sum(0), torch.randn(2, 4))
        return [*first, *second, jacobian]

    return model, step


@scenario
def hooks_of_the_user() -> Built:
    parts = {"a": nn.Linear(4, 4), "b": nn.ReLU(), "c": nn.Linear(4, 4)}
    model = nn.Sequential(Lambda(lambda m, x: m.c(m.b(m.a(x))), **parts))
    calls: list[Any] = []
    a, b, c = parts.values()
    a.register_forward_pre_hook(lambda _m, args: (args[0] * 2,))
    a.register_forward_hook(lambda _m, _args, out: out + 1)
    b.register_forward_hook(lambda _m, _args, kwargs, out: calls.append(("kwargs", kwargs)), with_kwargs=True)
    b.register_full_backward_hook(lambda _m, gi, go: calls.append(("full", gi[0].clone(), go[0].clone())))
    c.register_full_backward_pre_hook(lambda _m, go: (go[0] * 3,))
    c.weight.register_hook(lambda g: g / 2)
    c.weight.register_post_accumulate_grad_hook(lambda p: calls.append(("post", p.grad.clone())))

    def step() -> Sequence[Any]:
        calls.clear()
        model.zero_grad()
        h = model(torch.randn(3, 4))
        h.register_hook(lambda g: g * 0.5)
        h.retain_grad()
        h.grad_fn.register_hook(lambda gi, go: calls.append(("node", len(gi), go[0].clone())))
        h.grad_fn.register_prehook(lambda go: (go[0] + 1,))
        handle = torch.autograd.graph.register_multi_grad_hook([h], lambda g: calls.append(("multi", g[0].clone())))
        h.square().sum().backward()
        handle.remove()
        return [h, h.grad, *calls]

    return model, step


@scenario
def frozen_layers_and_detached_branches() -> Built:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    model[1].requires_grad_(False)

    def loss_of() -> torch.Tensor:
        h = model[1](model[0](torch.randn(3, 4)))
        with torch.no_grad():
            target = model[2](h)
            model[1].bias.lerp_(model[0].bias, 0.01)
        with torch.set_grad_enabled(False), torch.enable_grad():
            out = model[2](h.detach())
        return (model[2](h) - target.add_(1)).square().sum() + out.detach_().sum()

    return model, sgd(model, loss_of)


@scenario
def evaluation_without_gradients() -> Built:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Identity())

    def step() -> Sequence[Any]:
        x = torch.randn(3, 4)
        with torch.no_grad():
            trained = model.train()(x)
            trained.add_(1)
        with torch.inference_mode():
            evaluated = model.eval()(x)
            evaluated.mul_(2)
            view = evaluated[0]
        outside = evaluated + 1
        return [trained, evaluated, view, outside, *(getattr(t, "grad_fn", None) for t in (trained, evaluated))]

    return model, step


@scenario
def function_transforms() -> Built:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    values = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss_of(parameters: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, parameters, (x,)).square().sum()

    def step() -> Sequence[Any]:
        x = torch.randn(4, 3)
        per_sample = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0))(values, x)
        hessian = torch.func.hessian(lambda v: loss_of(values, v))(x[0])
        _, tangent = torch.func.jvp(lambda v: v.sin().sum(), (x,), (torch.ones_like(x),))
        return [dict(per_sample), hessian, tangent, torch.vmap(Sine.apply)(x)]

    return model, step


class CountingMode(TorchFunctionMode):
    """A function mode of the user that sees every call."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class CountingKernels(TorchDispatchMode):
    """A dispatch mode of the user that sees every kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Tagged(torch.Tensor):
    """A tensor subclass of the user, with the default ``__torch_function__``."""


@scenario
def modes_and_subclasses_of_the_user() -> Built:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))

    def step() -> Sequence[Any]:
        model.zero_grad()
        x = torch.randn(3, 4)
        with CountingMode() as functions, CountingKernels() as kernels, torch.device("cpu"):
            loss = model(x).square().sum() + torch.ones(2).sum()
            loss.backward()
        tagged = model(x.as_subclass(Tagged))
        return [loss, tagged, functions.names, kernels.names]

    return model, step


@scenario
def modules_in_threads() -> Built:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))

    def step() -> Sequence[Any]:
        model.zero_grad()
        inputs, results = torch.randn(2, 3, 4), {}

        def run(number: int) -> None:
            results[number] = model(inputs[number]).sum()

        for number in range(2):
            thread = threading.Thread(target=run, args=(number,))
            thread.start()
            thread.join()
        loss = results[0] + results[1]
        loss.backward()
        return [loss]

    return model, step


@scenario
def outputs_in_containers() -> Built:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, *, scale: torch.Tensor | None = None) -> dict[str, Any]:
            h = self.linear(x) * (1 if scale is None else scale)
            return {"h": h, "pair": (h[:, :2], [h[:, 2:], None]), "n": 3}

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        out = m.part(x, scale=torch.ones(4, requires_grad=True))
        return out["h"].square().sum() + out["pair"][0].sum()

    model = nn.Sequential(Lambda(forward, part=Part()))
    return model, sgd(model, lambda: model(torch.randn(3, 4)))


@scenario
def identity_modules_and_unused_outputs() -> Built:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        h = m.b(m.a(m.linear(x)))
        m.unused(h)
        first, _second = h.chunk(2, 1)
        same = m.a(h).contiguous().to(torch.float32).view_as(h)
        return (first + same[:, 2:]).sum()

    parts = {"linear": nn.Linear(4, 4), "a": nn.Identity(), "b": nn.Dropout(0.5).eval(), "unused": nn.Linear(4, 1)}
    model = nn.Sequential(Lambda(forward, **parts))
    return model, sgd(model, lambda: model(torch.randn(3, 4)))


@scenario
def anomaly_detection() -> Built:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))

    def loss_of() -> torch.Tensor:
        with torch.autograd.detect_anomaly(check_nan=True):
            return model(torch.randn(3, 4)).sum()

    return model, sgd(model, loss_of)


@scenario
def complex_and_double_arithmetic() -> Built:
    model = nn.Sequential(nn.Linear(8, 8, dtype=torch.float64))

    def loss_of() -> torch.Tensor:
        h = model(torch.randn(3, 8, dtype=torch.float64))
        spectrum = torch.fft.rfft(h)
        spectrum[:, 0] *= 0.5j
        matrix = h.t() @ h + torch.eye(8, dtype=torch.float64)
        return spectrum.abs().sum() + torch.linalg.slogdet(matrix)[1] + torch.einsum("ij,kj->", h, h.conj())

    return model, sgd(model, loss_of)
