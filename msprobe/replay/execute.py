"""Run one call: on a device in the recorded dtype, or on the CPU in float64.

Every run works on copies, so in-place operations may overwrite their inputs; what they have written is a result, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from msprobe.replay.arguments import Arguments, DeviceArgument, Leaf, UnreplayableError
from msprobe.replay.errors import DELTA

Named = list[tuple[str, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and how a call runs.

    Attributes
    ----------
    device : str
    wide : bool
        In float64 (complex128) instead of the recorded dtype.
    autocast : torch.dtype or None
        Inside ``torch.autocast`` with this dtype.
    moves : int or None
        Seed with which every floating-point input is moved by a relative :data:`~msprobe.replay.errors.DELTA`.
    rounds_scalars : bool
        With `wide`: float arguments are rounded to the dtype of the first tensor.
    """

    device: str
    wide: bool = False
    autocast: torch.dtype | None = None
    moves: int | None = None
    rounds_scalars: bool = False


@dataclass(frozen=True, slots=True)
class Forward:
    """What a call has returned.

    Attributes
    ----------
    results
        Name and value of each tensor or number that it returned, then of each input that it wrote to.
    outputs
        The tensors that gradients flow into: those returned, or else those written.
    leaves
        Position among the tensor arguments, and the leaf whose gradient is asked for.
    """

    results: Named
    outputs: list[torch.Tensor]
    leaves: list[tuple[int, torch.Tensor]]

    def on_cpu(self) -> Named:
        """Return the results, copied off the device and cut off the graph."""
        return [(name, value.detach().cpu()) for name, value in self.results]


def run_forward(function: Callable[..., Any], arguments: Arguments, setting: Setting, *, gradients: bool) -> Forward:
    """Call `function`.

    Raises
    ------
    Exception
        Whatever the function raises.
    """
    inputs, leaves = _inputs(arguments, setting, gradients=gradients)
    versions = [tensor._version for tensor in inputs]
    args = [_filled(value, inputs, arguments, setting) for value in arguments.args]
    kwargs = {key: _filled(value, inputs, arguments, setting) for key, value in arguments.kwargs.items()}
    with torch.set_grad_enabled(gradients), _autocast(setting):
        returned = function(*args, **kwargs)
    results = _named(returned)
    identities = {id(tensor) for _, tensor in results}
    written = [
        (f"input.{index}.written", tensor)
        for index, (tensor, version) in enumerate(zip(inputs, versions, strict=True))
        if tensor._version != version and id(tensor) not in identities
    ]
    if not results and not written:  # fused optimisers write without counting versions
        written = [(f"input.{index}.written", tensor) for index, tensor in enumerate(inputs)]
    outputs = list(_tensors(returned)) or [tensor for _, tensor in written]
    return Forward([*results, *written], outputs, leaves)


def run_backward(forward: Forward, gradients: list[torch.Tensor | None]) -> Named:
    """Send gradients into the outputs of a call and return those that arrive at its inputs.

    Parameters
    ----------
    forward : Forward
        Of a run with ``gradients=True``.
    gradients : list
        On the CPU in the recorded dtype, one for each output, None for an output that got none.

    Raises
    ------
    UnreplayableError
        The gradients do not fit the outputs, or no output depends on an input that requires a gradient.
    """
    pairs = _paired(forward.outputs, gradients)
    if not pairs or not forward.leaves:
        raise UnreplayableError("no output depends on an input that requires a gradient")
    outputs = [output for output, _ in pairs]
    arriving = [gradient.to(output.device, output.dtype) for output, gradient in pairs]
    found = torch.autograd.grad(outputs, [leaf for _, leaf in forward.leaves], arriving, allow_unused=True)
    named = zip(forward.leaves, found, strict=True)
    return [(f"gradient.{index}", value.detach().cpu()) for (index, _), value in named if value is not None]


def _paired(
    outputs: list[torch.Tensor], gradients: list[torch.Tensor | None]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    if len(outputs) != len(gradients):  # outputs without a place of their own: the shapes tell
        rest = [output for output in outputs if output.requires_grad]
        given = [gradient for gradient in gradients if gradient is not None]
        if [output.shape for output in rest[: len(given)]] != [gradient.shape for gradient in given]:
            raise UnreplayableError(f"{len(gradients)} gradients for {len(outputs)} outputs")
        outputs, gradients = rest[: len(given)], list(given)
    pairs = [
        (output, gradient)
        for output, gradient in zip(outputs, gradients, strict=True)
        if gradient is not None and output.requires_grad
    ]
    for output, gradient in pairs:
        if output.shape != gradient.shape:
            raise UnreplayableError(
                f"an output has the shape {list(output.shape)}, its recorded gradient {list(gradient.shape)}"
            )
    return pairs


def _inputs(
    arguments: Arguments, setting: Setting, *, gradients: bool
) -> tuple[list[torch.Tensor], list[tuple[int, torch.Tensor]]]:
    inputs: list[torch.Tensor] = []
    leaves: list[tuple[int, torch.Tensor]] = []
    generator = None if setting.moves is None else torch.Generator().manual_seed(setting.moves)
    for index, (tensor, wanted) in enumerate(zip(arguments.tensors, arguments.wants_gradient, strict=True)):
        value = _moved(tensor, generator) if generator is not None else tensor
        dtype = wide_dtype(tensor.dtype) if setting.wide else tensor.dtype
        value = value.detach().to(setting.device, dtype, copy=True)
        if gradients and wanted and (dtype.is_floating_point or dtype.is_complex):
            leaves.append((index, value.requires_grad_()))
            value = value.clone()  # an in-place operation may not write to a leaf
        inputs.append(value)
    return inputs, leaves


def move_all(tensors: list[torch.Tensor | None], seed: int) -> list[torch.Tensor | None]:
    """Return the tensors in float64, each element moved by a random relative step."""
    generator = torch.Generator().manual_seed(seed)
    return [None if tensor is None else _moved(tensor, generator) for tensor in tensors]


def _moved(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        return tensor
    steps = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    return tensor.to(wide_dtype(tensor.dtype)) * (1 + DELTA * steps)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the reference."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def _filled(  # noqa: PLR0911 - one return per kind of value
    value: Any, inputs: list[torch.Tensor], arguments: Arguments, setting: Setting
) -> Any:
    """Put the tensors, the device and the dtypes of a run in their places."""
    if isinstance(value, Leaf):
        return inputs[value.index]
    if isinstance(value, DeviceArgument):
        return setting.device
    if isinstance(value, torch.dtype):
        return wide_dtype(value) if setting.wide else value
    if isinstance(value, float) and setting.wide and setting.rounds_scalars:
        return _rounded(value, arguments.tensors)
    if type(value) in (list, tuple):
        return type(value)(_filled(item, inputs, arguments, setting) for item in value)
    if isinstance(value, Mapping):
        return {key: _filled(item, inputs, arguments, setting) for key, item in value.items()}
    return value


def _rounded(value: float, tensors: list[torch.Tensor]) -> float:
    dtype = next((tensor.dtype for tensor in tensors if tensor.dtype.is_floating_point), None)
    return value if dtype is None else float(torch.tensor(value, dtype=dtype))


def _autocast(setting: Setting) -> contextlib.AbstractContextManager[Any]:
    if setting.autocast is None or setting.wide:
        return contextlib.nullcontext()
    kind = setting.device.partition(":")[0]
    context: contextlib.AbstractContextManager[Any] = torch.autocast(kind, dtype=setting.autocast)
    return context


def _named(returned: Any) -> Named:
    outputs = returned if isinstance(returned, list | tuple) else (returned,)
    found: Named = []
    for index, value in enumerate(outputs):
        found += _walk(value, f"output.{index}")
    return found


def _walk(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, bool | int | float | complex):
        yield name, torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
    elif isinstance(value, np.ndarray | np.generic):
        yield name, torch.from_numpy(np.array(value))
    else:
        for key, item in _items(value):
            yield from _walk(item, f"{name}.{key}")


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for _, item in _items(value):
            yield from _tensors(item)


def _items(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    if isinstance(value, Mapping):
        return list(value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return []
