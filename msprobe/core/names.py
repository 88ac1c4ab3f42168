"""The one grammar of record names, and the counters that make them unique within a step.

API     ``Prefix.name.index.forward|backward``            ``Functional.linear.0.forward``
module  ``Module.path.Class.forward|backward.index``      ``Module.layers.0.mlp.MLP.forward.0``
params  ``Module.path.Class.parameters_grad.index``       ``Module.fc1.Linear.parameters_grad.0``

A ``#tag`` may follow: ``#recompute`` marks a call repeated by activation checkpointing, ``#2`` a second backward
pass over the same graph. Tagged records are additional; a reader that looks for untagged names never meets them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Direction = Literal["forward", "backward", "parameters_grad"]

FORWARD: Direction = "forward"
BACKWARD: Direction = "backward"
PARAMETERS_GRAD: Direction = "parameters_grad"

_DIRECTIONS: dict[str, Direction] = {direction: direction for direction in (FORWARD, BACKWARD, PARAMETERS_GRAD)}
_API_DIRECTIONS = (FORWARD, BACKWARD)
MODULE_PREFIXES = ("Module", "Cell")
_MODULES = tuple(f"{prefix}." for prefix in MODULE_PREFIXES)

_API = re.compile(
    r"(?P<prefix>[^.#]+)\.(?P<path>[^#]+)\.(?P<index>\d+)\.(?P<direction>forward|backward)(?:#(?P<tag>.+))?"
)
_MODULE = re.compile(
    r"(?P<prefix>Module|Cell)\.(?:(?P<path>.+)\.)?(?P<cls>[^.]+)"
    r"\.(?P<direction>forward|backward|parameters_grad)\.(?P<index>\d+)(?:#(?P<tag>.+))?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class RecordName:
    """A record name taken apart.

    Attributes
    ----------
    prefix : str
        ``Functional``, ``Tensor``, ``Module``, ...
    path : str
        API name (``linalg.norm``) or dotted module path (``layers.0.mlp``; empty for a root).
    cls : str
        Class name of a module, empty for an API.
    direction : {"forward", "backward", "parameters_grad"}
    index : int
        How many calls of the same API or module came before in the step.
    tag : str
        Text after ``#``: ``"recompute"``, ``"2"``, or empty.
    """

    prefix: str
    path: str
    cls: str
    direction: Direction
    index: int
    tag: str = ""

    @property
    def is_module(self) -> bool:
        """Whether this names a module (PyTorch) or cell (MindSpore) call rather than an API call."""
        return self.prefix in MODULE_PREFIXES

    def __str__(self) -> str:
        base = f"{self.prefix}.{self.path}" if self.path else self.prefix
        if self.is_module:
            text = f"{base}.{self.cls}.{self.direction}.{self.index}"
        else:
            text = f"{base}.{self.index}.{self.direction}"
        return f"{text}#{self.tag}" if self.tag else text


def parse_name(text: str) -> RecordName | None:
    """Take a full record name apart.

    Parameters
    ----------
    text : str
        A full name such as ``"Tensor.add.1.forward"`` or ``"Module.fc2.Linear.backward.0"``.

    Returns
    -------
    RecordName or None
        None when the text does not follow the grammar.
    """
    if "#" not in text:  # nearly all names: several times quicker than the grammar, which decides about the others
        plain = _plain_module(text) if text.startswith(_MODULES) else _plain_api(text)
        if plain is not None:
            return plain
    return _by_grammar(text)


def _by_grammar(text: str) -> RecordName | None:
    match = (_MODULE if text.startswith(_MODULES) else _API).fullmatch(text)
    if match is None:
        return None
    part = match.groupdict()
    return RecordName(
        prefix=part["prefix"],
        path=part["path"] or "",
        cls=part.get("cls") or "",
        direction=_DIRECTIONS[part["direction"]],
        index=int(part["index"]),
        tag=part["tag"] or "",
    )


def _plain_api(text: str) -> RecordName | None:
    head, _, direction = text.rpartition(".")
    head, _, index = head.rpartition(".")
    prefix, _, path = head.partition(".")
    if direction in _API_DIRECTIONS and index.isdecimal() and prefix and path:
        return RecordName(prefix, path, "", _DIRECTIONS[direction], int(index))
    return None


def _plain_module(text: str) -> RecordName | None:
    head, _, index = text.rpartition(".")
    head, _, direction = head.rpartition(".")
    prefix, _, inner = head.partition(".")
    path, _, cls = inner.rpartition(".")
    if index.isdecimal() and direction in _DIRECTIONS and cls and (path or "." not in inner):
        return RecordName(prefix, path, cls, _DIRECTIONS[direction], int(index))
    return None


class CallName:
    """Names of one call. ``base`` is ``Prefix.name`` or ``Module.path.Class``.

    A hot-path object: plain slots, no dataclass machinery, and the forward name is formatted once.

    Attributes
    ----------
    forward : str
        Name of the forward record, with its tag.
    tag : str
        Empty for an ordinary call.
    parent : CallName or str or None
        What encloses the call: a module call, or a phase of the step.
    """

    __slots__ = ("base", "forward", "index", "module", "parent", "tag")

    def __init__(
        self, base: str, index: int, module: bool = False, tag: str = "", parent: CallName | str | None = None
    ) -> None:
        self.base = base
        self.index = index
        self.module = module
        self.tag = tag
        self.parent = parent
        self.forward = f"{base}.forward.{index}" if module else f"{base}.{index}.forward"
        if tag:
            self.forward += f"#{tag}"

    def tagged(self, tag: str) -> CallName:
        """Return the name of the same call with a tag."""
        call = CallName(self.base, self.index, module=self.module, tag=tag)
        call.parent = self.parent
        return call

    def backward(self, nth: int = 1) -> str:
        """Name of the backward record of the ``nth`` backward pass over this call's graph (1-based)."""
        text = f"{self.base}.backward.{self.index}" if self.module else f"{self.base}.{self.index}.backward"
        return text if nth == 1 else f"{text}#{nth}"


class Counters:
    """Call counters of one step, one per API or module name.

    Attributes
    ----------
    following : dict
        Index of the next call by base; not for others to change, except for the native form of :meth:`take`.
    """

    __slots__ = ("following",)

    def __init__(self) -> None:
        self.following: dict[str, int] = {}

    def take(self, base: str) -> int:
        """Return the index of the next call named ``base`` and count it."""
        index = self.following.get(base, 0)
        self.following[base] = index + 1
        return index

    def give_back(self, base: str, index: int) -> None:
        """Undo :meth:`take` for a call that failed, unless another call of the same name came in between."""
        if self.following.get(base) == index + 1:
            self.following[base] = index

    def reset(self) -> None:
        """Start a new step: every name counts from 0 again."""
        self.following.clear()
