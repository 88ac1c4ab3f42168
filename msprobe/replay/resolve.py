"""From the name of a record to the function that it records: the inverse of :mod:`msprobe.dispatch.api_table`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch._VF

from msprobe.replay.arguments import UnreplayableError


@dataclass(frozen=True, slots=True)
class Resolved:
    """A function, and the Python expression that stands for it in a script.

    Attributes
    ----------
    function : callable
    source : str
        ``torch.nn.functional.linear``.
    imports : tuple of str
        Modules that the expression needs beside torch.
    """

    function: Callable[..., Any]
    source: str
    imports: tuple[str, ...] = ()


def resolve(prefix: str, path: str) -> Resolved:
    """Return the function behind ``prefix.path``.

    Parameters
    ----------
    prefix : str
        ``Functional``, ``Torch``, ``Tensor``, ``VF``, ``NPU``, ``Aten``, or the name of a module that is imported.
    path : str
        Name within the prefix: ``linalg.norm``, ``__iadd__``, ``mm.default``.

    Raises
    ------
    UnreplayableError
        This PyTorch has no such function, or the module that has it is not imported.
    """
    for root, source, imports in _roots(prefix):
        function = _walk(root, path)
        if callable(function):
            return Resolved(function, f"{source}.{path}", imports)
    raise UnreplayableError(_why_not(prefix, path))


def _roots(prefix: str) -> Iterator[tuple[Any, str, tuple[str, ...]]]:
    """Yield where to look for the functions of a prefix, and how a script says that."""
    if prefix == "Functional":
        yield torch.nn.functional, "torch.nn.functional", ()
    elif prefix == "Tensor":
        yield torch.Tensor, "torch.Tensor", ()
    elif prefix == "Torch":
        yield torch, "torch", ()
        yield torch._C._VariableFunctions, "torch._C._VariableFunctions", ()
        yield torch._C._nn, "torch._C._nn", ()
        yield torch.functional, "torch.functional", ()
    elif prefix == "VF":
        yield torch._VF, "torch._VF", ("torch._VF",)
    elif prefix == "Aten":
        yield torch.ops.aten, "torch.ops.aten", ()
    elif prefix == "NPU":
        if "torch_npu" in sys.modules:
            yield sys.modules["torch_npu"], "torch_npu", ("torch_npu",)
        yield torch.ops.npu, "torch.ops.npu", ()
    else:
        yield from _imported(prefix)


def _imported(prefix: str) -> Iterator[tuple[Any, str, tuple[str, ...]]]:
    """Modules that the user had imported: by their own name, or the last part of it."""
    for name, module in list(sys.modules.items()):
        if name == prefix or (name.endswith(f".{prefix}") and not name.startswith(("torch.", "msprobe."))):
            yield module, name, (name,)


def _walk(root: Any, path: str) -> Any:
    found = root
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except (AttributeError, RuntimeError):  # noqa: PERF203 - torch.ops raises RuntimeError for some unknown names
            return None
    return found


def _why_not(prefix: str, path: str) -> str:
    if prefix in ("Functional", "Tensor", "Torch", "VF", "Aten") and not path.startswith("ops."):
        return f"unknown API: torch {torch.__version__} has no {prefix}.{path}"
    return f"custom API {prefix}.{path}: give the module that defines it with --import"


def import_modules(names: list[str]) -> None:
    """Import what the user's operators need.

    Raises
    ------
    ImportError
        One of them cannot be imported; the text names it.
    """
    for name in names:
        importlib.import_module(name)
