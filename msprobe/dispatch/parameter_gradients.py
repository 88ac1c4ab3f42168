"""``parameters_grad`` records: what a parameter's gradient is after accumulation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard
from weakref import ref

import torch
from torch.nn.parameter import Parameter, is_lazy

from msprobe.core.parameter_records import ParameterRecords
from msprobe.dispatch.hook_ids import next_id
from msprobe.dispatch.inert import VanishingHook
from msprobe.dispatch.named_modules import NamedModules
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
        self._number = next_id()
        self._placed: list[ref[dict[int, Any]]] = []
        self._handles: list[RemovableHandle] = []
        self._nodes: dict[int, torch.autograd.graph.Node] = {}  # of parameters with a main_grad
        self._models: Sequence[torch.nn.Module] = ()

    def record(self, found: NamedModules) -> None:
        """Record the gradients of all parameters of the modules that were found."""
        self._models = [*self._models, *found.roots]
        number = self._number
        for base, module in found.calls:
            expected = 0
            for key, parameter in module._parameters.items():
                if not _takes_gradients(parameter):
                    continue
                expected += 1
                hook = _Accumulated(self, base, key)
                hooks = parameter._post_accumulate_grad_hooks if type(parameter) is Parameter else None
                if (
                    hooks is not None
                    and number not in hooks  # it is there if two modules share the parameter
                    and parameter.grad_fn is None
                    and getattr(parameter, "main_grad", None) is None
                ):  # what torch would do, without a handle, which holds the table weakly, too
                    self._placed.append(ref(hooks))
                    hooks[number] = hook
                else:
                    self._listen(parameter, hook)
            self._expected[base] = expected

    def _listen(self, parameter: torch.Tensor, hook: _Accumulated) -> None:
        """Call ``hook`` when a gradient has been added.

        A framework that keeps ``main_grad`` adds to it in a hook of the node that accumulates, as Megatron does, or in
        one like ours: ours must come after. A hook of the node lets the gradient live until it has run.
        """
        in_node = getattr(parameter, "main_grad", None) is not None and not parameter._post_accumulate_grad_hooks
        if not in_node:
            self._handles.append(parameter.register_post_accumulate_grad_hook(hook))
            return
        node = torch.autograd.graph.get_gradient_edge(parameter).node
        self._nodes[id(parameter)] = node  # the parameter itself holds it weakly only
        self._handles.append(node.register_hook(lambda *_: hook(parameter)))

    def remove(self) -> None:
        """Take all hooks away; what has arrived is recorded, parameters that have come since are counted."""
        number = self._number
        unseen = 0
        for _, module in NamedModules(self._models).calls:
            for parameter in filter(_takes_gradients, module._parameters.values()):
                unseen += not self._watches(parameter)
        if unseen:
            self._capture.coverage.not_recorded["parameter was made, replaced or unfrozen after start()"] += unseen
        self._models = ()
        for table in self._placed:
            hooks = table()
            if hooks is not None:
                hooks.pop(number, None)
        self._placed.clear()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._nodes.clear()
        self.flush()

    def _watches(self, parameter: torch.Tensor) -> bool:
        hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
        if self._number in hooks or id(parameter) in self._nodes:
            return True
        return any(isinstance(hook, _Accumulated) and hook.gradients is self for hook in hooks.values())

    def accumulated(self, base: str, key: str, parameter: torch.Tensor) -> None:
        """A gradient has just been added to ``parameter.grad``."""
        if self._capture.running:
            self._gather(base, key, parameter)

    def _gradient_of(self, arrived: torch.Tensor) -> torch.Tensor | None:
        gradient = getattr(arrived, "main_grad", None)
        return arrived.grad if gradient is None else gradient


def _takes_gradients(parameter: torch.Tensor | None) -> TypeGuard[torch.Tensor]:
    """Whether there is a parameter that takes gradients, and has a shape already."""
    if type(parameter) is Parameter:
        return parameter.requires_grad
    return parameter is not None and not is_lazy(parameter) and parameter.requires_grad


class _Accumulated(VanishingHook):
    """Post-accumulate-grad hook of one parameter."""

    __slots__ = ("_base", "_key", "gradients")

    def __init__(self, gradients: ParameterGradients, base: str, key: str) -> None:
        self.gradients = gradients
        self._base = base
        self._key = key

    def __call__(self, parameter: torch.Tensor) -> None:
        if torch.compiler.is_compiling():
            return  # compiled autograd traces hooks into its graph, where this one cannot work
        self.gradients.accumulated(self._base, self._key, parameter)
