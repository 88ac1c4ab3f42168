"""What a debugger has written, and what it has left behind: questions that several test files ask."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from msprobe.store import Dump, read_dump


def dump_of(debugger: Any, step: int = 0) -> Dump:
    """Read what a debugger of this process has written for a step."""
    (folder,) = (Path(debugger._session.config.dump_path) / f"step{step}").iterdir()
    return read_dump(folder)


def leftovers(models: list[Any]) -> list[str]:
    """What msprobe has left on torch, on ``models`` and on the stacks of this thread; empty when it is clean."""
    import torch
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    found = [f"mode {mode}" for mode in _get_current_function_mode_stack() if _ours(mode)]
    found += [f"mode {mode}" for mode in _get_current_dispatch_mode_stack() if _ours(mode)]
    if torch.autograd._engine_run_backward is not torch.autograd.graph._engine_run_backward:
        found.append("torch.autograd._engine_run_backward is wrapped")
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is not None and _ours(compiler._callback_from_stance):
        found.append("torch._dynamo.eval_frame._callback_from_stance is wrapped")
    tables = _global_hooks()
    for root in models:
        for path, module in root.named_modules():
            tables |= {f"{path}.{name}": held for name, held in vars(module).items() if name.endswith("_hooks")}
        for path, parameter in root.named_parameters():
            tables[f"{path}._post_accumulate_grad_hooks"] = parameter._post_accumulate_grad_hooks or {}
            tables[f"{path}._backward_hooks"] = parameter._backward_hooks or {}
    found += [f"hook {hook} in {name}" for name, table in tables.items() for hook in table.values() if _ours(hook)]
    return found


def assert_nothing_left(models: list[Any]) -> None:
    """Fail if :func:`leftovers` finds anything."""
    found = leftovers(models)
    assert not found, "msprobe left behind: " + "; ".join(found)


def _global_hooks() -> dict[str, Any]:
    """Hook tables of torch itself that concern every module or every optimiser."""
    tables: dict[str, Any] = {}
    for holder in ("torch.nn.modules.module", "torch.optim.optimizer"):
        for name, value in vars(sys.modules[holder]).items():
            if name.startswith("_global_") and name.endswith("_hooks"):
                tables[f"{holder}.{name}"] = value
    return tables


def _ours(thing: Any) -> bool:
    owner = getattr(thing, "__self__", thing)
    names = (getattr(thing, "__module__", ""), type(owner).__module__)
    return any(str(name).startswith("msprobe") for name in names)
