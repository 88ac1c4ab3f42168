"""Taps of targets where a graph cannot call Python (Ascend): MindSpore's TensorDump writes every value to a file.

The name of a file holds the number of its place (`tap_dump`), since a graph can only make names out of constants.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Tensor, ops

from msprobe.ms_static.cell_taps import TapOperators


def dump_operators(prefix: str) -> TapOperators:
    """Return operators that write ``{prefix}{number}_{dtype}_{id}.npy``.

    Parameters
    ----------
    prefix
        Path and beginning of the name; MindSpore replaces ``{rank}`` in it.
    """
    dump, dump_gradient = ops.TensorDump(), ops.DumpGradient()

    def enter(tensors: int, number: int) -> Any:
        return Tensor(0, ms.int32)

    def show(value: Any, number: int, call: Any) -> Any:
        dump(prefix + str(number), value)
        return call

    def show_constant(value: Any, number: int, call: Any) -> Any:
        return call

    def gradient(value: Any, number: int, call: Any, token: Any) -> Any:
        return dump_gradient(prefix + str(number), value, "out")

    return TapOperators(enter, show, show_constant, gradient)
