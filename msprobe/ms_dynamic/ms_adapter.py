"""MSAdapter: a package called ``torch`` whose tensors are MindSpore's, recorded under the names of PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

from mindspore import Tensor

from msprobe.core.config_record import Config
from msprobe.core.errors import LifecycleError
from msprobe.ms_dynamic.adapter import DynamicAdapter
from msprobe.ms_dynamic.api_names import TENSOR
from msprobe.ms_dynamic.api_table import TENSOR_COMPUTATIONS, Api
from msprobe.ms_dynamic.cells import CellCalls

_NO_COMPUTATION = frozenset(
    """
    compile get_rank get_world_size init_process_group is_available is_initialized is_tensor load manual_seed new_group
    save seed set_default_dtype set_grad_enabled typename
    """.split()
)


def running_msadapter() -> ModuleType | None:
    """The ``torch`` of this process if it is MSAdapter's, else None; imports nothing."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    try:
        return torch if isinstance(torch.tensor(0.0), Tensor) else None
    except Exception:  # noqa: BLE001 - some other module of that name
        return None


class MsAdapterAdapter(DynamicAdapter):
    """Records ``torch.nn.Module`` and the functions of ``torch`` where they are MindSpore's underneath.

    Parameters
    ----------
    config : Config
    torch : module
        MSAdapter.
    """

    framework = "mindtorch"  # the name by which readers of existing dumps know it

    def __init__(self, config: Config, torch: ModuleType) -> None:
        self._torch = torch
        super().__init__(config)
        self.capture.parameters_of = _parameters_of

    def reconfigured(self, config: Config) -> MsAdapterAdapter:
        """An adapter for a changed configuration."""
        return MsAdapterAdapter(config, self._torch)

    def models_of(self, model: Any) -> Sequence[Any]:
        """Return the root modules in ``model`` (a module, or a list or tuple of modules)."""
        kind = self._torch.nn.Module
        roots = model if isinstance(model, (list, tuple)) else [] if model is None else [model]
        wrong = [root for root in roots if not isinstance(root, kind)]
        if wrong:
            raise LifecycleError(
                f"start(model=...): expected a torch.nn.Module or a list of them, not {type(wrong[0]).__name__}"
            )
        if self.records_cells and not roots:
            raise LifecycleError(
                f'level "{self.capture.level}" records modules: call start(model=...) with a torch.nn.Module or a list '
                "of them"
            )
        return list(roots)

    def _named(self, models: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        several = len(models) > 1
        for index, root in enumerate(models):
            prefix = f"Module.{index}." if several else "Module."
            for path, module in root.named_modules():
                if module is not root:
                    yield f"{prefix}{path}.{type(module).__name__}", module

    def _cell_calls(self) -> CellCalls:
        return CellCalls(self.capture, self._replaced, self._torch.nn.Module)

    def _record_primitives(self, models: Sequence[Any]) -> None:
        """A module of MSAdapter holds no Primitives."""

    def _apis(self) -> Sequence[Api]:
        torch = self._torch
        spaces = (
            ("Functional", getattr(torch.nn, "functional", None)),
            ("Torch", torch),
            ("NPU", sys.modules.get("torch_npu")),
            ("Distributed", getattr(torch, "distributed", None)),
        )
        found = [api for prefix, space in spaces if space is not None for api in _functions_of(prefix, space)]
        methods = (name for name in sorted(TENSOR | TENSOR_COMPUTATIONS) if callable(getattr(torch.Tensor, name, None)))
        return [*found, *(Api(f"Tensor.{name}", torch.Tensor, name, True) for name in methods)]


def _functions_of(prefix: str, space: Any) -> Iterator[Api]:
    """Public functions of a namespace that were made in the package itself."""
    for name, value in sorted(vars(space).items()):
        if not name.startswith("_") and name not in _NO_COMPUTATION and isinstance(value, FunctionType):
            yield Api(f"{prefix}.{name}", space, name, True)


def _parameters_of(module: Any) -> Mapping[str, Any]:
    return {key: value for key, value in module._parameters.items() if value is not None}
