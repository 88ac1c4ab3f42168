"""The shape of a call's arguments and results, found once when the compiler traces it.

Tensors and symbolic numbers are slots; everything else is in the template. Filled with the tensors of one run it is the
value that an eager call would have had, so that one encoder makes the records of both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """A tensor: the ``index``-th of the run, which a compiled program may have stripped of ``requires_grad``."""

    index: int
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class NumberSlot:
    """A size or another number that a graph with dynamic shapes computes: the ``index``-th of the run."""

    index: int


@dataclass(frozen=True, slots=True)
class Literal:
    """A value that is the same in every run."""

    value: Any


@dataclass(frozen=True, slots=True)
class Sequenced:
    """A list, tuple, slice or size; ``make`` builds it from a list."""

    make: Callable[[list[Any]], Any]
    items: tuple[Template, ...]


@dataclass(frozen=True, slots=True)
class Mapped:
    """A mapping, or the fields of a dataclass."""

    keys: tuple[Any, ...]
    values: tuple[Template, ...]


Template: TypeAlias = "TensorSlot | NumberSlot | Literal | Sequenced | Mapped"

NO_ARGUMENTS = Sequenced(tuple, ())
NO_KEYWORDS = Mapped((), ())


def fill(template: Template, tensors: Sequence[torch.Tensor], numbers: Sequence[Any]) -> Any:
    """Build the value that ``template`` stands for.

    Parameters
    ----------
    template : Template
    tensors : sequence of Tensor
        Detached tensors of one run, in slot order. Those whose slot says so get ``requires_grad``.
    numbers : sequence of int or float
        Symbolic numbers of the run, in slot order.
    """
    if isinstance(template, TensorSlot):
        tensor = tensors[template.index]
        return tensor.requires_grad_() if template.requires_grad else tensor
    if isinstance(template, Literal):
        return template.value
    if isinstance(template, NumberSlot):
        return numbers[template.index]
    if isinstance(template, Sequenced):
        return template.make([fill(item, tensors, numbers) for item in template.items])
    return dict(zip(template.keys, (fill(value, tensors, numbers) for value in template.values), strict=True))


def make_slice(bounds: list[Any]) -> slice:
    """A slice from its three bounds."""
    return slice(*bounds)


class TemplateBuilder:
    """Collects the leaves of one side of a call while its template is built.

    Attributes
    ----------
    tensors, numbers : list
        What fills the slots, in order: proxies or nodes of a graph.
    """

    def __init__(self) -> None:
        self.tensors: list[Any] = []
        self.numbers: list[Any] = []

    def tensor(self, proxy: Any, *, requires_grad: bool) -> TensorSlot:
        """Take a tensor."""
        self.tensors.append(proxy)
        return TensorSlot(len(self.tensors) - 1, requires_grad)

    def number(self, proxy: Any) -> NumberSlot:
        """Take a symbolic number."""
        self.numbers.append(proxy)
        return NumberSlot(len(self.numbers) - 1)

    def example(self, node: torch.fx.Node) -> Any:
        """What a node computes, without values."""
        return node.meta.get("example_value")

    def node(self, value: Any) -> Template:  # noqa: PLR0911 - one kind of value per line
        """Template of an argument of an FX node."""
        if isinstance(value, torch.fx.Node):
            example = self.example(value)
            if isinstance(example, torch.Tensor):
                return self.tensor(value, requires_grad=example.requires_grad)
            if isinstance(example, torch.SymInt):
                return self.number(value)
            if isinstance(example, (tuple, list)):
                raise TypeError(f"node {value.name} is passed on as a whole, not item by item")
            return Literal(example)
        if isinstance(value, (tuple, list)):
            return Sequenced(tuple if isinstance(value, tuple) else list, tuple(self.node(item) for item in value))
        if isinstance(value, dict):
            return Mapped(tuple(value), tuple(self.node(item) for item in value.values()))
        if isinstance(value, slice):
            return Sequenced(make_slice, tuple(self.node(bound) for bound in (value.start, value.stop, value.step)))
        return Literal(value)
