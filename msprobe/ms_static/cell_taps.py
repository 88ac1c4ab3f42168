"""Taps inside a graph: what a Cell takes, gives back and owns, and the gradients of that.

``construct`` of every Cell is wrapped before the first compilation. The wrapper is compiled with the rest, so what it
does is what MindSpore's compiler understands: loops over tuples are unrolled, isinstance and dtype comparisons are
decided. What a tap itself is depends on the target: `python_taps`, `dump_taps`.
"""

# ruff: noqa: RUF005 - the compiler knows no unpacking inside a tuple

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mindspore as ms
from mindspore import Tensor, ops
from mindspore.ops.functional import isconstant

from msprobe.core.config_record import DataMode
from msprobe.ms_static.tap_places import INNER, Kind, first_number
from msprobe.ms_static.tapped_cells import MOST_SLOTS, TappedCell

_DIFFERENTIABLE = (ms.float16, ms.float32, ms.float64, ms.bfloat16, ms.complex64, ms.complex128)
_NESTED = INNER + 1


@dataclass(frozen=True, slots=True)
class TapOperators:
    """Functions that a graph can compile. ``number`` stands for a place (`tap_places`).

    Attributes
    ----------
    enter
        ``enter(tensors, number)`` -> the call that begins, a tensor, given how many tensors are among its arguments.
    show
        ``show(value, number, call)`` -> tensor that depends on ``value`` having been seen.
    show_constant
        ``show_constant(value, number, call)`` of a number of Python, or of what counts as None.
    gradient
        ``gradient(value, number, call, token)`` -> ``value``, whose gradient is seen after ``token``.
    """

    enter: Callable[..., Any]
    show: Callable[..., Any]
    show_constant: Callable[..., Any]
    gradient: Callable[..., Any]


def leaves_in(value: Any) -> int:
    """Return how many tensors an argument or result is, inside a graph."""
    if isinstance(value, Tensor):
        return 1
    count = 0
    if isinstance(value, tuple) and len(value) <= INNER:
        for element in value:
            if isinstance(element, Tensor):
                count = count + 1
    return count


class CellTaps:
    """The taps of some models.

    Parameters
    ----------
    operators : TapOperators
        What a tap is on this target.
    wanted : DataMode
        Which passes are seen.
    """

    def __init__(self, operators: TapOperators, wanted: DataMode) -> None:
        self._operators = operators
        self._forward = wanted.forward
        self._backward = wanted.backward
        self._tap_value = self._value_tap()
        self._wrapped: list[tuple[Any, Any]] = []  # a Cell, and the construct that the user had given to it alone
        self._handles: list[Any] = []

    def install(self, cells: Sequence[TappedCell]) -> None:
        """Wrap ``construct`` of the Cells, and watch the gradients of their parameters."""
        watched: set[int] = set()
        for tapped in cells:
            self._wrapped.append((tapped.cell, tapped.cell.__dict__.get("construct")))
            tapped.cell.construct = self.wrapper(tapped)
            for slot, name in enumerate(tapped.parameters if self._backward else ()):
                parameter = getattr(tapped.cell, name)
                if parameter.requires_grad and id(parameter) not in watched:
                    watched.add(id(parameter))
                    number = first_number(tapped.number, Kind.PARAMETER_GRADIENT) + slot
                    self._handles.append(parameter.register_hook(self._parameter_hook(number)))

    def remove(self) -> None:
        """Undo that. Graphs that are compiled already keep their taps."""
        for cell, before in self._wrapped:
            cell.__dict__.pop("construct", None)
            if before is not None:
                cell.construct = before
        for handle in self._handles:
            handle.remove()
        self._wrapped.clear()
        self._handles.clear()

    def _value_tap(self) -> Callable[..., Any]:
        """Return the function that taps one argument or result inside a graph."""
        show, show_constant = self._operators.show, self._operators.show_constant
        gradient = self._operators.gradient
        forward, backward = self._forward, self._backward

        def tap_tensor(value: Any, number: int, leaf: int, call: Any) -> Any:
            token = call
            if forward:
                token = show(ops.stop_gradient(value), number, call)
            if backward and value.dtype in _DIFFERENTIABLE:
                return gradient(value, leaf, call, token)
            return value

        def tap_one(value: Any, number: int, leaf: int, call: Any) -> Any:
            if isinstance(value, Tensor):
                return tap_tensor(value, number, leaf, call)
            if forward and not isinstance(value, (tuple, list, dict)) and isconstant(value):
                show_constant(value, number, call)
            return value

        def tap(value: Any, number: int, leaf: int, call: Any) -> Any:
            if isinstance(value, tuple) and len(value) <= INNER:
                tapped: Any = ()
                inner = 1
                for element in value:
                    tapped = tapped + (tap_one(element, number + inner, leaf, call),)
                    leaf = leaf + leaves_in(element)
                    inner = inner + 1
                return tapped
            return tap_one(value, number, leaf, call)

        return tap

    def wrapper(self, tapped: TappedCell) -> Any:
        """Return ``construct`` with taps, bound to the Cell; a compiler understands it."""
        cell, enter, show = tapped.cell, self._operators.enter, self._operators.show
        tap, forward = self._tap_value, self._forward
        original, parameters, keywords = cell.construct, tapped.parameters, tapped.keywords
        arguments, named, results, owned, arriving, leaving = (
            first_number(tapped.number, kind)
            for kind in (
                Kind.ARGUMENT,
                Kind.KEYWORD,
                Kind.RESULT,
                Kind.PARAMETER,
                Kind.RESULT_GRADIENT,
                Kind.ARGUMENT_GRADIENT,
            )
        )

        def construct(self: Any, *args: Any, **kwargs: Any) -> Any:
            count = 0
            for value in args:
                count = count + leaves_in(value)
            for name in keywords:
                if name in kwargs:
                    count = count + leaves_in(kwargs[name])
            call = enter(count, arguments)
            tapped_args: Any = ()
            slot = 0
            leaf = leaving
            for value in args:
                if slot < MOST_SLOTS:
                    tapped_args = tapped_args + (tap(value, arguments + slot * _NESTED, leaf, call),)
                else:
                    tapped_args = tapped_args + (value,)
                leaf = leaf + leaves_in(value)
                slot = slot + 1
            slot = 0
            for name in keywords:
                if name in kwargs:
                    value = kwargs[name]
                    kwargs[name] = tap(value, named + slot * _NESTED, leaf, call)
                    leaf = leaf + leaves_in(value)
                slot = slot + 1
            slot = 0
            for name in parameters:
                if forward:
                    show(ops.stop_gradient(getattr(self, name)), owned + slot * _NESTED, call)
                slot = slot + 1
            output = original(*tapped_args, **kwargs)
            return tap(output, results, arriving, call)

        return construct.__get__(cell, type(cell))

    def _parameter_hook(self, number: int) -> Callable[[Any], Any]:
        show = self._operators.show

        def hook(gradient: Any) -> Any:
            return ops.depend(gradient, show(gradient, number, Tensor(0, ms.int32)))

        return hook
