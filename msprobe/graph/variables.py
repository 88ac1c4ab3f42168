"""Read Dynamo's variable trackers: what a traced call is given, and what it returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from torch._dynamo.variables import (
    BaseListVariable,
    ConstantVariable,
    ConstDictVariable,
    LazyVariableTracker,
    SliceVariable,
    SymNodeVariable,
    TensorVariable,
    UserDefinedObjectVariable,
)
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.lists import SizeVariable

from msprobe.core.interruptions import pass_on_interruption
from msprobe.graph.call_template import Literal, Mapped, Sequenced, Template, TemplateBuilder, make_slice


def realized(variable: Any) -> Any:
    """The tracker behind a lazy one."""
    return variable.realize() if isinstance(variable, LazyVariableTracker) else variable


class VariableReader:
    """Builds the templates of one call.

    Parameters
    ----------
    side_effects
        Dynamo's record of what the traced code has written to objects.

    Attributes
    ----------
    builder : TemplateBuilder
        Collects the proxies of tensors and numbers.
    """

    def __init__(self, side_effects: Any) -> None:
        self.builder = TemplateBuilder()
        self._side_effects = side_effects

    def sequence(self, variables: Iterable[Any]) -> Sequenced:
        """Template of positional arguments."""
        return Sequenced(tuple, tuple(self.read(variable) for variable in variables))

    def mapping(self, variables: dict[str, Any]) -> Mapped:
        """Template of keyword arguments."""
        return Mapped(tuple(variables), tuple(self.read(variable) for variable in variables.values()))

    def read(self, variable: Any) -> Template:  # noqa: PLR0911 - one kind of variable per line
        """Template of one value. What eager capture cannot encode either is the literal None."""
        variable = realized(variable)
        if isinstance(variable, SymNodeVariable):
            return self._symbolic(variable)
        if isinstance(variable, TensorVariable):
            proxy = variable.as_proxy()
            example = proxy.node.meta.get("example_value")
            return self.builder.tensor(proxy, requires_grad=bool(getattr(example, "requires_grad", False)))
        if isinstance(variable, ConstantVariable):
            return Literal(variable.as_python_constant())
        if isinstance(variable, SliceVariable):
            return Sequenced(make_slice, tuple(self.read(item) for item in variable.items))
        if isinstance(variable, BaseListVariable):
            return self._items(variable)
        if isinstance(variable, ConstDictVariable):
            return self._pairs(variable)
        if isinstance(variable, UserDefinedObjectVariable):
            return self._object(variable)
        return _constant(variable)

    def _symbolic(self, variable: Any) -> Template:
        number = variable.sym_num
        if isinstance(number, torch.SymInt):
            return self.builder.number(variable.as_proxy())
        return Literal(number)

    def _items(self, variable: Any) -> Template:
        items = tuple(self.read(item) for item in variable.items)
        if isinstance(variable, SizeVariable):
            return Sequenced(torch.Size, items)
        return Sequenced(tuple if variable.python_type() is tuple else list, items)

    def _pairs(self, variable: Any) -> Template:
        keys = tuple(key.vt.as_python_constant() for key in variable.items)
        return Mapped(keys, tuple(self.read(value) for value in variable.items.values()))

    def _object(self, variable: Any) -> Template:
        """A dataclass by its fields, as the encoder lists them; a subclass of a container as the container."""
        kind = variable.python_type()
        base = getattr(variable, "_base_vt", None)
        if dataclasses.is_dataclass(kind):
            names = tuple(field.name for field in dataclasses.fields(kind))
            return Mapped(names, tuple(self._field(variable, name) for name in names))
        if isinstance(base, ConstDictVariable):
            return self._pairs(base)
        if isinstance(base, BaseListVariable):
            items = tuple(self.read(item) for item in base.items)
            return Sequenced(_maker_of(kind), items)
        return _constant(variable)

    def _field(self, variable: Any, name: str) -> Template:
        if self._side_effects.has_pending_mutation_of_attr(variable, name):
            return self.read(self._side_effects.load_attr(variable, name, deleted_ok=True))
        return Literal(getattr(variable.value, name, None))


def _maker_of(kind: Any) -> Any:
    """What builds it from a list: named tuples have ``_make``; torch's own, as of ``max(dim)``, take the list."""
    return getattr(kind, "_make", kind if issubclass(kind, (list, tuple)) else list)


def _constant(variable: VariableTracker) -> Template:
    try:
        return Literal(variable.as_python_constant())
    except Exception as error:  # noqa: BLE001 - Dynamo says in many ways that a value is no constant
        pass_on_interruption(error)
        return Literal(None)
