"""What kind of call a record is, so that the same call is known under another index, prefix or framework."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources

from msprobe.core.names import FORWARD, MODULE_PREFIXES, parse_name

_DUNDER = re.compile(r"__(\w+?)__")
_MODULES = tuple(f"{prefix}." for prefix in MODULE_PREFIXES)


@dataclass(frozen=True, slots=True)
class ApiTable:
    """Content of ``api_map.json``.

    Attributes
    ----------
    canonical
        Other spelling -> canonical name.
    random, uninitialised, masks
        Canonical names of operations that draw random numbers, of those whose result is whatever was in memory, and of
        those that make or carry masks, where an infinity is no fault.
    overwriting
        Names, as written, of those that overwrite their first argument.
    parameters
        Canonical name -> positions of arguments that usually are parameters.
    """

    canonical: Mapping[str, str]
    random: frozenset[str]
    uninitialised: frozenset[str]
    masks: frozenset[str]
    overwriting: frozenset[str]
    parameters: Mapping[str, tuple[int, ...]]


@cache
def api_table() -> ApiTable:
    """Return the table that comes with the package."""
    content = json.loads(resources.files("msprobe.compare").joinpath("api_map.json").read_text("utf-8"))
    return ApiTable(
        canonical=content["apis"],
        random=frozenset(content["random"]),
        uninitialised=frozenset(content["uninitialised"]),
        masks=frozenset(content["masks"]),
        overwriting=frozenset(content["overwriting"]),
        parameters={name: tuple(places) for name, places in content["parameters"].items()},
    )


@dataclass(frozen=True, slots=True)
class Kind:
    """A record without what numbers it.

    Attributes
    ----------
    operation
        Canonical API name (``relu`` for ``Torch.relu``, ``Functional.relu`` and ``Tensor.relu_``), or the module path.
    is_module
        Whether it is a module or cell.
    direction
        ``forward``, ``backward`` or ``parameters_grad``; empty for names that follow no grammar.
    base
        The name without index, direction and tag; the same for a call's forward and backward.
    index
        Number of the call among those of the same base.
    tag
        After ``#``.
    cls
        Class of a module.
    """

    operation: str
    is_module: bool
    direction: str
    base: str
    index: int
    tag: str
    cls: str = ""

    @property
    def is_random(self) -> bool:
        """Whether the operation draws random numbers."""
        return not self.is_module and self.operation in api_table().random

    @property
    def is_uninitialised(self) -> bool:
        """Whether the result is whatever was in memory."""
        return not self.is_module and self.operation in api_table().uninitialised

    @property
    def overwrites(self) -> bool:
        """Whether what the first argument holds before the call is of no account: it may be uninitialised memory."""
        return self.direction == FORWARD and self.base.rpartition(".")[2] in api_table().overwriting

    @property
    def is_communication(self) -> bool:
        """Whether the operation talks to other ranks."""
        return self.base.startswith(("Distributed.", "MintDistributed.")) or (
            not self.is_module and self.operation.startswith("all_")
        )


@lru_cache(maxsize=1 << 10)  # a record is asked about several times in a row; a dump has more names than any cache
def kind_of(name: str) -> Kind:
    """Return the kind of a record by its name."""
    parsed = parse_name(name)
    if parsed is None:
        stem, _, tag = name.partition("#")
        return Kind(stem, False, "", stem, 0, tag)
    base = f"{parsed.prefix}.{parsed.path}" if parsed.path else parsed.prefix
    if parsed.is_module:
        return Kind(parsed.path, True, parsed.direction, f"{base}.{parsed.cls}", parsed.index, parsed.tag, parsed.cls)
    return Kind(canonical_api(parsed.path), False, parsed.direction, base, parsed.index, parsed.tag)


@lru_cache(maxsize=1 << 12)
def canonical_api(path: str) -> str:
    """Return the canonical name of an API without its prefix.

    Dunders, the underscore of in-place operations and namespaces are dropped: ``__iadd__`` and ``add_`` are ``add``,
    ``linalg.norm`` is ``norm``. Then the table is asked.
    """
    last = path.rpartition(".")[2]
    match = _DUNDER.fullmatch(last)
    word = (match.group(1) if match else last.rstrip("_") or last).lower()
    return api_table().canonical.get(word, word)


def module_path(name: str) -> str:
    """Return the dotted path of a module record; empty for other records."""
    if not name.startswith(_MODULES):
        return ""
    kind = kind_of(name)
    return kind.operation if kind.is_module else ""


class Renaming:
    """User's names of golden -> those of target, from a ``--map`` file.

    Parameters
    ----------
    modules
        Module paths of golden (``encoder.block.*.attn``; ``*`` stands for one part) -> of target, which may use ``*``
        as often. A path renames what is below it, too. The first entry that fits counts.
    apis
        API names of golden without index (``Torch.relu``) -> of target.
    """

    def __init__(self, modules: Mapping[str, str] | None = None, apis: Mapping[str, str] | None = None) -> None:
        self._modules = [(_pattern(source), _template(target)) for source, target in (modules or {}).items()]
        self._apis = {_bare(source): _bare(target) for source, target in (apis or {}).items()}
        self._known: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._modules or self._apis)

    def module(self, path: str) -> str:
        """Return what a module path of golden is called in target."""
        known = self._known.get(path)
        if known is None:  # a module is asked for as often as anything runs in it
            known = self._known[path] = self._renamed(path)
        return known

    def _renamed(self, path: str) -> str:
        for pattern, template in self._modules:
            match = pattern.match(path)
            if match:
                return (match.expand(template) + path[match.end() :]).strip(".")
        return path

    def operation(self, kind: Kind) -> str:
        """Return what the operation of a golden record is called in target."""
        return self.module(kind.operation) if kind.is_module else self._apis.get(kind.operation, kind.operation)


def _bare(api: str) -> str:
    prefix, dot, rest = api.partition(".")
    return canonical_api(rest if dot else prefix)


def _pattern(path: str) -> re.Pattern[str]:
    parts = [r"([^.]+)" if part == "*" else re.escape(part) for part in path.split(".")]
    return re.compile(r"\.".join(parts) + r"(?=\.|\Z)" if path else "")


def _template(path: str) -> str:
    number = 0
    parts = []
    for part in path.split("."):
        if part == "*":
            number += 1
            parts.append(rf"\{number}")
        else:
            parts.append(part.replace("\\", r"\\"))
    return ".".join(parts)
