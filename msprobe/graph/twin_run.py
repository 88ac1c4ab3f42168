"""Run a graph a second time, in another compiled form, so that the program does not notice.

The second form is given the values of the first: tensors without a past that share the memory of the program's, copies
where the graph writes to its inputs, and the random numbers that the first has drawn. Its backward graph runs when that
of the first has run, from the gradients that came to that; what it computes goes nowhere. The program's hooks and modes
see none of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import _disable_current_modes

from msprobe.core.interruptions import pass_on_interruption
from msprobe.dispatch.api_mode import COMPILED_BACKWARD
from msprobe.dispatch.tensor_leaves import tensor_leaves
from msprobe.graph.effects import Effects

_sequence = torch._C._autograd._get_sequence_nr
_keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph


class Watcher(Protocol):
    """Told what becomes of a graph that runs in two forms; kept alive by the program's autograd graph."""

    def compare(self, what: str, first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> None:
        """Both forms have computed ``what``."""

    def failed(self, what: str, error: Exception) -> None:
        """The second form raised."""


class TwinRun:
    """One run of a graph that is run in two forms.

    Made before the first form runs, because that may write to the inputs.

    Parameters
    ----------
    effects : Effects
        Of the graph.
    inputs : sequence
        What the first form is given.
    """

    def __init__(self, effects: Effects, inputs: Sequence[Any]) -> None:
        self._effects = effects
        self._inputs = inputs
        with torch._C.DisableTorchFunction():
            self._twins = [_twin_of(value, copied=at in effects.written) for at, value in enumerate(inputs)]
        self._random = RandomStates(effects.devices)
        self._since = _sequence()
        self._own: list[Any] = []

    def nodes(self, output: Any) -> list[Any]:
        """Nodes of compiled backward graphs in what the first form has returned, in order.

        Raises
        ------
        LookupError
            The result has a past, but not one that AOTAutograd has compiled.
        """
        return compiled_nodes(self._results(output, self._inputs), self._since)

    def unchanged(self) -> bool:
        """Whether the first form has written to no input; then the random numbers are put back to where they were."""
        if self._effects.written:
            return False
        self._random.put_back()
        return True

    def run(self, form: Callable[[Sequence[Any]], Any]) -> list[torch.Tensor]:
        """Run the second form; the results, and the inputs that it has written to."""
        self._since = _sequence()
        try:
            with self._random.again(), unnoticed():
                output = form(self._twins)
            return self._results(output, self._twins)
        finally:
            self._inputs = ()

    def results(self, output: Any) -> list[torch.Tensor]:
        """What the first form has computed, as :meth:`run` returns it of the second."""
        return self._results(output, self._inputs)

    def follow(self, nodes: Sequence[Any], results: Sequence[torch.Tensor], watcher: Watcher) -> None:
        """Run the backward graphs of the second form each time those of the first, at ``nodes``, have run.

        Raises
        ------
        LookupError
            The two forms have not the same number of backward graphs.
        """
        twins = compiled_nodes(results, self._since)
        if len(twins) != len(nodes):
            raise LookupError(f"{len(nodes)} compiled backward graphs, and {len(twins)} in its other form")
        for node, twin in zip(nodes, twins, strict=True):
            node.register_hook(TwinBackward(twin, self._effects, watcher))

    def _results(self, output: Any, inputs: Sequence[Any]) -> list[torch.Tensor]:
        written = [inputs[at] for at in sorted(self._effects.written)]
        return tensor_leaves([*(output if isinstance(output, tuple | list) else [output]), *written])


class TwinBackward:
    """Hook of the backward node of the first form: runs that of the second on the same gradients.

    Called directly, not by the autograd engine: nothing flows on from it, and to probes the pass is the program's.
    """

    __slots__ = ("_effects", "_twin", "_watcher")

    def __init__(self, twin: Any, effects: Effects, watcher: Watcher) -> None:
        self._twin = twin
        self._effects = effects
        self._watcher = watcher

    def __call__(self, leaving: Any, arriving: Any) -> None:
        """Run it; the values of the second form are freed unless the program keeps those of the first."""
        if torch.compiler.is_compiling():  # compiled autograd traces its hooks
            return
        twin = self._twin
        if twin is None:
            return
        if not _keeps_graph():
            self._twin = None
        try:
            with torch.no_grad(), RandomStates(self._effects.devices).kept(), unnoticed():
                found = twin.apply(*_whole(twin, arriving))
                self._watcher.compare("gradients", _present(leaving), _present(found))
        except Exception as error:  # noqa: BLE001 - hook boundary
            pass_on_interruption(error)
            self._watcher.failed("gradients", error)


class RandomStates:
    """Where the random number generators of a graph stand."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._devices = devices
        self._before = self._states()

    def put_back(self) -> None:
        """Have them draw the same numbers once more."""
        self._set(self._before, self._states())

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Draw the numbers once more that have been drawn since; afterwards they go on as if that had not been."""
        after = self._states()
        self._set(self._before, after)
        try:
            yield
        finally:
            self._set(after, self._states())

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """What is drawn meanwhile is not drawn from the program's numbers."""
        try:
            yield
        finally:
            self.put_back()

    def _states(self) -> list[torch.Tensor]:
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return [torch.get_rng_state(), *(_random_of(one).get_rng_state(one) for one in self._devices)]

    def _set(self, wanted: list[torch.Tensor], found: list[torch.Tensor]) -> None:
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            if not torch.equal(wanted[0], found[0]):
                torch.set_rng_state(wanted[0])
            for device, *states in zip(self._devices, wanted[1:], found[1:], strict=True):
                if not torch.equal(*states):
                    _random_of(device).set_rng_state(states[0], device)


@contextlib.contextmanager
def unnoticed() -> Iterator[None]:
    """Keep what runs meanwhile from the modes and saved-tensor hooks of the program."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch._C.DisableTorchFunction())
        if torch._C._len_torch_dispatch_stack():
            stack.enter_context(_disable_current_modes())
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, _as_it_is))
        yield


def compiled_nodes(tensors: Sequence[torch.Tensor], since: int) -> list[Any]:
    """Backward nodes of AOTAutograd that led to ``tensors`` and are not older than ``since``, in order.

    Raises
    ------
    LookupError
        There are other nodes of that time only.
    """
    found: dict[Any, None] = {}
    left = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    while left:
        node = left.pop()
        if node in found or node._sequence_nr() < since:
            continue
        found[node] = None
        left += [following for following, _ in node.next_functions if following is not None]
    compiled = [node for node in found if type(node).__name__ == COMPILED_BACKWARD]
    if not compiled and any(node.next_functions for node in found):
        raise LookupError("its backward pass is not one that AOTAutograd has compiled")
    return sorted(compiled, key=lambda node: int(node._sequence_nr()))


def _twin_of(value: Any, *, copied: bool) -> Any:
    """A value for the second form: without a past; a copy if it is written to."""
    if not isinstance(value, torch.Tensor):
        return value
    twin = _copy_of(value) if copied else value.detach()
    twin.requires_grad_(value.requires_grad)
    if copied and value.requires_grad and not value.is_leaf and torch.is_grad_enabled():
        return twin.clone()  # a leaf could not be written to
    return twin


def _copy_of(value: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, which compiled code relies on."""
    with torch.no_grad():
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)


def _whole(node: Any, gradients: Sequence[Any]) -> list[Any]:
    """Zeros in place of gradients that have not come, as the engine hands them to a node."""
    return [
        torch.zeros(tuple(meta.shape), dtype=meta.dtype, device=meta.device)
        if gradient is None and meta is not None
        else gradient
        for gradient, meta in zip(gradients, node._input_metadata, strict=True)
    ]


def _present(gradients: Sequence[Any]) -> list[torch.Tensor]:
    return [gradient for gradient in gradients if isinstance(gradient, torch.Tensor)]


def _random_of(device: torch.device) -> Any:
    return torch.get_device_module(device)


def _as_it_is(packed: torch.Tensor) -> torch.Tensor:
    return packed
