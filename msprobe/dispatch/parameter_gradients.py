"""``parameters_grad`` records: what a parameter's gradient is after accumulation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn.parameter import is_lazy

from msprobe.core.parameter_records import ParameterRecords
from msprobe.dispatch.inert import VanishingHook
from msprobe.dispatch.modules import named_calls
from msprobe.dispatch.tensor_hooks import TorchHooks

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from msprobe.dispatch.capture import Capture


class ParameterGradients(ParameterRecords):
    """Hooks on the parameters of a model.

    ``Module.path.Class.parameters_grad.n`` holds the gradients of a module's own parameters after the n-th
    accumulation of the step.

    Parameters
    ----------
    capture : Capture
    """

    def __init__(self, capture: Capture) -> None:
        super().__init__(capture, TorchHooks())
        self._handles: list[RemovableHandle] = []
        self._nodes: dict[int, torch.autograd.graph.Node] = {}  # of parameters with a main_grad
        self._models: Sequence[torch.nn.Module] = ()

    def record(self, models: Sequence[torch.nn.Module], first: int = 0) -> None:
        """Record the gradients of all parameters of the modules below ``models``; ``first`` as for their names."""
        self._models = [*self._models, *models]
        for base, module in named_calls(models, first):
            self._expected[base] = 0
            for key, parameter in _own(module):
                self._handles.append(self._listen(parameter, _Accumulated(self, base, key)))
                self._expected[base] += 1

    def _listen(self, parameter: torch.Tensor, hook: _Accumulated) -> RemovableHandle:
        """Call ``hook`` when a gradient has been added.

        A framework that keeps ``main_grad`` adds to it in a hook of the node that accumulates, as Megatron does, or in
        one like ours: ours must come after. A hook of the node lets the gradient live until it has run.
        """
        in_node = getattr(parameter, "main_grad", None) is not None and not parameter._post_accumulate_grad_hooks
        if not in_node:
            return parameter.register_post_accumulate_grad_hook(hook)
        node = torch.autograd.graph.get_gradient_edge(parameter).node
        self._nodes[id(parameter)] = node  # the parameter itself holds it weakly only
        return node.register_hook(lambda *_: hook(parameter))

    def remove(self) -> None:
        """Take all hooks away; what has arrived is recorded, parameters that have come since are counted."""
        unseen = sum(
            not self._watches(parameter) for _, module in named_calls(self._models) for _, parameter in _own(module)
        )
        if unseen:
            self._capture.coverage.not_recorded["parameter was made, replaced or unfrozen after start()"] += unseen
        self._models = ()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._nodes.clear()
        self.flush()

    def _watches(self, parameter: torch.Tensor) -> bool:
        if id(parameter) in self._nodes:
            return True
        hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
        return any(isinstance(hook, _Accumulated) and hook.gradients is self for hook in hooks.values())

    def accumulated(self, base: str, key: str, parameter: torch.Tensor) -> None:
        """A gradient has just been added to ``parameter.grad``."""
        if self._capture.running:
            self._gather(base, key, parameter)

    def _gradient_of(self, arrived: torch.Tensor) -> torch.Tensor | None:
        gradient = getattr(arrived, "main_grad", None)
        return arrived.grad if gradient is None else gradient


def _own(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters of the module itself that take gradients, of those that have a shape already."""
    for key, parameter in module._parameters.items():
        if parameter is not None and not is_lazy(parameter) and parameter.requires_grad:
            yield key, parameter


class _Accumulated(VanishingHook):
    """Post-accumulate-grad hook of one parameter."""

    __slots__ = ("_base", "_key", "gradients")

    def __init__(self, gradients: ParameterGradients, base: str, key: str) -> None:
        super().__init__()
        self.gradients = gradients
        self._base = base
        self._key = key

    def __call__(self, parameter: torch.Tensor) -> None:
        if torch.compiler.is_compiling():
            return  # compiled autograd traces hooks into its graph, where this one cannot work
        self.gradients.accumulated(self._base, self._key, parameter)
