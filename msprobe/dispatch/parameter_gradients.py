"""``parameters_grad`` records: what a parameter's gradient is after accumulation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import is_lazy

from msprobe.core.names import PARAMETERS_GRAD
from msprobe.dispatch.inert import VanishingHook
from msprobe.dispatch.modules import named_calls

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from msprobe.dispatch.capture import Capture


class ParameterGradients:
    """Hooks on the parameters of a model.

    ``Module.path.Class.parameters_grad.n`` holds the gradients of a module's own parameters after the n-th
    accumulation of the step, as ``{name: [tensor]}``. It is complete when every parameter that needs one has its
    gradient, or when the backward pass ends.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._handles: list[RemovableHandle] = []
        self._nodes: dict[int, torch.autograd.graph.Node] = {}  # of parameters with a main_grad
        self._open: dict[str, dict[str, Any]] = {}
        self._expected: dict[str, int] = {}
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
        capture = self._capture
        if not capture.running:
            return
        with torch._C.DisableTorchFunction():
            try:
                waiting = self._open.get(base)
                if waiting is not None and key in waiting:
                    self._finish(base)
                    waiting = None
                if waiting is None:
                    waiting = self._begin(base)
                name = waiting[""]
                gradient = getattr(parameter, "main_grad", None)
                gradient = parameter.grad if gradient is None else gradient
                path = f"{name}.{key}" if capture.saves_tensors and capture.wants_tensors(name) else None
                waiting[key] = [capture.encoder.encode(gradient, path)]
                if len(waiting) > self._expected.get(base, 0):
                    self._finish(base)
            except Exception as error:  # noqa: BLE001 - hook boundary
                capture.failed(f"gradient of parameter {key} of {base}", error)

    def flush(self) -> None:
        """Record what is there: the backward pass is over."""
        for base in list(self._open):
            self._finish(base)

    def _begin(self, base: str) -> dict[str, Any]:
        if not self._open:
            torch.autograd.Variable._execution_engine.queue_callback(self.flush)
        stem = f"{base}.{PARAMETERS_GRAD}"
        waiting = self._open[base] = {"": f"{stem}.{self._capture.counters.take(stem)}"}
        return waiting

    def _finish(self, base: str) -> None:
        record = self._open.pop(base)
        self._capture.parameters_record(record.pop(""), record)


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
        self.gradients.accumulated(self._base, self._key, parameter)
