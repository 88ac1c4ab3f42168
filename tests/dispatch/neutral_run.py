"""Run a training scenario and keep every bit of what it did, to compare a run under the tool with one without."""

from __future__ import annotations

import gc
import pickle
import random
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Step = Callable[[], Sequence[Any]]
Scenario = Callable[[], tuple[nn.Module, Step]]
STEPS = 2


def observe(
    scenario: Scenario, around: Callable[[nn.Module], AbstractContextManager[Any]] | None = None
) -> dict[str, Any]:
    """Run ``scenario`` for two steps and return all that can be observed of it.

    Parameters
    ----------
    scenario : callable
        Builds a model and a step. The step returns its results, loss first; an exception it raises is noted.
    around : callable, optional
        Context manager around each step, given the model.

    Returns
    -------
    dict
        What was observed under a name each: results, gradients, parameters, buffers and their autograd properties after
        every step, and the states of the random generators.
    """
    seen: dict[str, Any] = {}
    with _repeatable():
        model, step = scenario()
        for number in range(STEPS):
            with (around or nullcontext)(model):
                try:
                    results: Sequence[Any] = step()
                except Exception as error:  # noqa: BLE001 - the error is what is observed
                    results = []
                    seen[f"step {number}: error"] = f"{type(error).__name__}: {error}"
            for name, value in _state(model, results):
                seen[f"step {number}: {name}"] = bits(value)
    return seen


@contextmanager
def _repeatable() -> Iterator[None]:
    """Seed every generator; one thread, which is fastest for these sizes."""
    torch.manual_seed(11)
    np.random.seed(11)
    random.seed(11)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _state(model: nn.Module, results: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for position, result in enumerate(results):
        yield f"result {position}", result
    for name, parameter in model.named_parameters():
        yield f"parameter {name}", parameter
        yield f"gradient of {name}", parameter.grad
        yield f"main gradient of {name}", getattr(parameter, "main_grad", None)
    for name, buffer in model.named_buffers():
        yield f"buffer {name}", buffer
    yield "torch generator", torch.get_rng_state()
    yield "numpy generator", pickle.dumps(np.random.get_state())
    yield "python generator", str(random.getstate())
    yield "autograd", (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"))


def bits(value: Any) -> Any:
    """Return a value as something that ``==`` compares bit by bit; tensors with what users can ask of them."""
    if isinstance(value, torch.Tensor):
        return _tensor_bits(value)
    if isinstance(value, Mapping):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(item) for item in value]
    return value


def _tensor_bits(tensor: torch.Tensor) -> tuple[Any, ...]:
    with torch.no_grad():
        plain = tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach()
        data = plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    node = tensor.grad_fn
    version = None if tensor.is_inference() else tensor._version
    stride = tensor.stride() if tensor.layout is torch.strided else None
    return (
        type(tensor).__name__,
        str(tensor.dtype),
        tuple(tensor.shape),
        stride,
        tensor.requires_grad,
        node.name() if node is not None else None,
        tensor.is_inference(),
        version,
        data,
    )


def differences(plain: Mapping[str, Any], probed: Mapping[str, Any]) -> list[str]:
    """Names under which two observations differ."""
    return [name for name in dict.fromkeys((*plain, *probed)) if plain.get(name) != probed.get(name)]


class LiveTensors(TorchDispatchMode):
    """Notes every kernel that runs, and how many elements the tensors that kernels made and that live still hold."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[tuple[str, int]] = []
        self._made: list[weakref.ref[torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        alive = {id(tensor): tensor for tensor in (made() for made in self._made) if tensor is not None}
        alive |= {id(tensor): tensor for tensor in tree_leaves(result) if isinstance(tensor, torch.Tensor)}
        self._made = [weakref.ref(tensor) for tensor in alive.values()]
        self.kernels.append((str(func), sum(tensor.numel() for tensor in alive.values())))
        return result


def live_tensors(
    scenario: Scenario, around: Callable[[nn.Module], AbstractContextManager[Any]] | None = None
) -> list[tuple[str, int]]:
    """Kernels of the second step of ``scenario``, each with the number of elements alive after it."""
    with _repeatable():
        model, step = scenario()
        step()
        gc.disable()  # so that only references decide
        try:
            with (around or nullcontext)(model), LiveTensors() as seen:
                step()
        finally:
            gc.enable()
    return seen.kernels
