"""Taps that call Python from inside a graph, on targets where it can (CPU).

Two operators call back: `enter` at the beginning of a Cell call, whose result is the index of the call, and `see` for
every value, which is given that index. So every value finds its call whatever runs side by side, and a gradient
(`_Gradient.bprop`) finds the call of the value that it belongs to. Both are marked as input and output, so that the
compiler keeps two equal calls apart and in order, as an eager run has them.
"""

# ruff: noqa: RUF005 - the compiler knows no unpacking inside a tuple

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.ops.functional import isconstant

from msprobe.ms_static.cell_taps import TapOperators
from msprobe.ms_static.tap_places import BOOL, FLOAT, INT, NOTHING, UNKNOWN_SHAPE

Enter = Callable[[Any, Any], Any]
See = Callable[[Any, Any, Any, Any], Any]


def python_operators(enter: Enter, see: See) -> TapOperators:
    """Return operators that call two functions, which MindSpore keeps as long as a graph.

    Parameters
    ----------
    enter
        ``enter(tensors, number)`` -> index of the call as int32.
    see
        ``see(value, number, call, shape)`` -> int32 that nobody reads. ``shape`` begins with the number of dimensions,
        or is one of the negative codes of `tap_places`.
    """
    entering, seeing = _operator(enter), _operator(see)
    show_at, show_constant_at = _value_seer(seeing), _constant_seer(seeing)
    passing = _Gradient(show_at)

    def enter_call(tensors: int, number: int) -> Any:
        return entering(Tensor(tensors, ms.int32), Tensor(number, ms.int32))

    def show(value: Any, number: int, call: Any) -> Any:
        return show_at(value, Tensor(number, ms.int32), call)

    def show_constant(value: Any, number: int, call: Any) -> Any:
        return show_constant_at(value, Tensor(number, ms.int32), call)

    def gradient(value: Any, number: int, call: Any, token: Any) -> Any:
        return passing(value, call, Tensor(number, ms.int32), token)

    return TapOperators(enter_call, show, show_constant, gradient)


def _scalar_shape(*_: object) -> tuple[int, ...]:
    return ()


def _scalar_type(*_: object) -> Any:
    return ms.int32


def _operator(callback: Callable[..., Any]) -> Any:
    operator = ops.Custom(callback, _scalar_shape, _scalar_type, func_type="pyfunc")
    operator.add_prim_attr("side_effect_io", True)
    return operator


def _value_seer(see: Any) -> Callable[..., Any]:
    """Return the function that shows a value to `see` inside a graph, with its shape.

    MindSpore hands a tensor without dimensions over as a Python number, and fails for one without elements: both go as
    one element. Where the shape is known only when the graph runs, the value may be such a one and is not shown.
    """

    def show(value: Any, number: Any, call: Any) -> Any:
        if not isconstant(value.shape):
            return see(ops.zeros((1,), value.dtype), number, call, Tensor((UNKNOWN_SHAPE,), ms.int64))
        if value.size == 0:
            return see(ops.zeros((1,), value.dtype), number, call, Tensor((value.ndim,) + value.shape, ms.int64))
        if value.ndim == 0:
            return see(ops.reshape(value, (1,)), number, call, Tensor((0,), ms.int64))
        return see(value, number, call, Tensor((value.ndim,) + value.shape, ms.int64))

    return show


def _constant_seer(see: Any) -> Callable[..., Any]:
    """Return the function that shows a Python number to `see` inside a graph; anything else counts as None."""

    def show_constant(value: Any, number: Any, call: Any) -> Any:
        if isinstance(value, bool):
            return see(Tensor([value], ms.bool_), number, call, Tensor((BOOL,), ms.int64))
        if isinstance(value, int):
            return see(Tensor([value], ms.int64), number, call, Tensor((INT,), ms.int64))
        if isinstance(value, float):
            return see(Tensor([value], ms.float64), number, call, Tensor((FLOAT,), ms.int64))
        return see(Tensor([0], ms.int64), number, call, Tensor((NOTHING,), ms.int64))

    return show_constant


class _Gradient(nn.Cell):  # type: ignore[misc]
    """Passes a value on; what comes back through it is seen, after the value itself (``token``) was."""

    def __init__(self, show: Callable[..., Any]) -> None:
        super().__init__(auto_prefix=False)
        self.show = show

    def construct(self, value: Any, call: Any, number: Any, token: Any) -> Any:
        return value

    def bprop(  # noqa: PLR0913, PLR0917 - the inputs of construct, its output and the gradient
        self, value: Any, call: Any, number: Any, token: Any, out: Any, dout: Any
    ) -> Any:
        later = ops.depend(dout, token)
        seen = ops.depend(later, self.show(later, number, call))
        return seen, ops.zeros_like(call), ops.zeros_like(number), ops.zeros_like(token)
