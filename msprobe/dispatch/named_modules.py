"""The modules of a model with the names of their calls, found in one walk that is shared by all who need them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from msprobe.dispatch.sharded_modules import class_name

_WALK = torch.nn.Module.named_modules


class NamedModules:
    """Modules below some roots, as they are now.

    Parameters
    ----------
    roots : sequence of nn.Module
    first : int
        Index of the first root.

    Attributes
    ----------
    roots, first
        As given.
    calls : list of (str, nn.Module)
        ``Module.[index.]path.Class`` and the module. A root is not named itself. A module that is reachable by several
        paths has the first one. A single root of index 0 needs none in its names.
    classes : dict
        Name of each class that was met, as it stands in the names.
    """

    def __init__(self, roots: Sequence[torch.nn.Module], first: int = 0) -> None:
        self.roots = roots
        self.first = first
        self.calls: list[tuple[str, torch.nn.Module]] = []
        self.classes = _ClassNames()
        several = first + len(roots) > 1
        for index, root in enumerate(roots, start=first):
            path = f"Module.{index}" if several else "Module"
            if type(root).named_modules is _WALK:
                self._add_below(root, path, {root})
            else:
                self._add_shown(root, root, path, set())

    def _add_below(self, parent: torch.nn.Module, path: str, seen: set[torch.nn.Module]) -> None:
        """Do as torch's own walk, without a chain of generators as long as the path of each module."""
        for name, module in parent._modules.items():
            if module is None:
                continue
            kind = type(module)
            if kind.named_modules is not _WALK:
                self._add_shown(module, None, f"{path}.{name}", seen)
            elif module not in seen:
                seen.add(module)
                place = f"{path}.{name}"
                self.calls.append((f"{place}.{self.classes[kind]}", module))
                if module._modules:
                    self._add_below(module, place, seen)

    def _add_shown(
        self, module: torch.nn.Module, unnamed: torch.nn.Module | None, path: str, seen: set[torch.nn.Module]
    ) -> None:
        """Add what a module shows whose class has a way of its own to do that."""
        for place, inner in module.named_modules(seen, path):
            if inner is not unnamed:
                self.calls.append((f"{place}.{self.classes[type(inner)]}", inner))


class _ClassNames(dict[type, str]):
    def __missing__(self, kind: type) -> str:
        self[kind] = name = class_name(kind)
        return name
