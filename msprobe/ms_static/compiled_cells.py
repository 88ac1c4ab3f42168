"""Cells inside compiled Cells of a dynamic graph: forward taps that are compiled into the graphs of ``mindspore.jit``.

Only values of the forward pass are tapped. A tap of a gradient needs a ``bprop`` of its own, and with one of those in a
graph that a dynamic graph differentiates, MindSpore 2.10 computes wrong gradients of the parameters.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mindspore import nn
from mindspore.ops.primitive import constexpr

from msprobe.core.config_record import Config, DataMode, Level, Precision, Task
from msprobe.core.names import PARAMETERS_GRAD, CallName
from msprobe.ms_static import context
from msprobe.ms_static.cell_adapter import CellTapAdapter
from msprobe.ms_static.cell_taps import CellTaps
from msprobe.ms_static.python_taps import python_operators
from msprobe.ms_static.tap_records import TapRecorder
from msprobe.ms_static.tapped_cells import TappedCell, cells_of

GRADIENTS_NOTE = "gradients inside compiled Cells"
_WHY_NO_GRADIENTS = (
    "not recorded: a tap of a gradient inside mindspore.jit changes the gradients of parameters (MindSpore 2.10). The "
    "compiled Cell itself has its backward record, every parameter its gradient"
)
_FORWARD = DataMode(forward=True, backward=False, input=True, output=True)
_COMPILER = "mindspore/graph/api.py"


@dataclass(frozen=True, slots=True)
class CompiledCells:
    """Cells of some models that run inside graphs of ``mindspore.jit``.

    Attributes
    ----------
    cells : tuple of TappedCell
        By their numbers.
    called : frozenset of int
        Numbers of those that Python calls: the outermost compiled Cells. The others are inside a graph.
    """

    cells: tuple[TappedCell, ...]
    called: frozenset[int]

    @classmethod
    def of(cls, roots: Sequence[Any]) -> CompiledCells:
        """Find the compiled Cells of some models and all Cells inside them."""
        whole = any(_is_compiled(root) for root in roots)
        kept: list[TappedCell] = []
        numbers: dict[int, int] = {}
        for tapped in cells_of(roots, nn.Cell.construct):
            parent = None if tapped.parent is None else numbers.get(tapped.parent)
            if whole or parent is not None or _is_compiled(tapped.cell):
                numbers[tapped.number] = len(kept)
                kept.append(replace(tapped, number=len(kept), parent=parent))
        outermost = frozenset(tapped.number for tapped in kept if tapped.parent is None)
        return cls(tuple(kept), frozenset() if whole else outermost)

    def record_starts(self) -> tuple[str, ...]:
        """How the names of the records begin that are made in Python: of called Cells, and gradients of parameters."""
        return tuple(
            f"{tapped.base}." if tapped.number in self.called else f"{tapped.base}.{PARAMETERS_GRAD}."
            for tapped in self.cells
        )


def _is_compiled(cell: Any) -> bool:
    """Whether the user has compiled it from source: MindSpore's optimizers are compiled in every program."""
    construct = getattr(cell, "construct", None)
    if isinstance(cell, nn.Optimizer) or not hasattr(construct, "__wrapped_by_jit__"):
        return False
    code = getattr(construct, "__code__", None)  # of MindSpore's wrapper
    return code is not None and str(code.co_filename).endswith(_COMPILER)


class CompiledCellAdapter(CellTapAdapter):
    """Records the Cells inside compiled Cells of a dynamic graph (levels L0 and mix).

    The compiled Cells themselves are called from Python, and recorded there.

    Parameters
    ----------
    config : Config
    roots : sequence of Cell
        The models that get taps.
    compiled : CompiledCells
    options : callable
        Returns the writer options of the dynamic part, whose records go into this dump, too.
    """

    def __init__(
        self,
        config: Config,
        roots: Sequence[Any],
        compiled: CompiledCells,
        options: Callable[[], dict[str, Any]],
    ) -> None:
        super().__init__(config)
        self._options = options
        self._called = {tapped.base: tapped.number for tapped in compiled.cells if tapped.number in compiled.called}
        inside = [tapped for tapped in compiled.cells if tapped.number not in compiled.called]
        recorder = TapRecorder(
            compiled.cells, low=config.precision is Precision.LOW, tensors=config.task is Task.TENSOR
        )
        taps = CellTaps(python_operators(recorder.enter, recorder.see), _FORWARD)
        self._before = [(tapped.cell, tapped.cell.__dict__.get("construct")) for tapped in inside]
        for tapped in inside:
            original = tapped.cell.construct
            tapped.cell.construct = _where_compiled(tapped.cell, taps.wrapper(tapped), original)
        self._recorder, self._models = recorder, list(roots)
        if inside:
            recorder.coverage.notes[GRADIENTS_NOTE] = _WHY_NO_GRADIENTS

    def calls(self, name: str) -> None:
        """Python calls a compiled Cell, whose record has this name: what runs in graphs from here on is inside."""
        base, _, index = name.rpartition(".forward.")
        number = self._called.get(base)
        if number is not None and self._recorder is not None:
            context.wait_for_kernels()  # of earlier calls
            self._recorder.outer[number] = CallName(base, int(index), module=True)

    def follow(self, config: Config) -> None:
        """Take over a configuration that has changed."""
        self._config = config

    def models_of(self, model: Any) -> Sequence[Any]:
        """Return the root Cells in ``model``, which the session of the dynamic part has checked."""
        return list(model) if isinstance(model, list | tuple) else [] if model is None else [model]

    def writer_options(self) -> dict[str, Any]:
        """As the dynamic part, whose records of compiled Cells come here."""
        return self._options()

    def exhausted(self) -> str | None:
        """Nothing is recorded at a level that does not record Cells."""
        if records_compiled_cells(self._config):
            return None
        return f'level "{self._config.level}", task "{self._config.task}" and this data_mode record no values of Cells'

    def conclude(self) -> None:
        """Take the taps out of the Cells; compiled graphs keep theirs, which do nothing."""
        for cell, before in self._before:
            cell.__dict__.pop("construct", None)
            if before is not None:
                cell.construct = before
        self._before.clear()

    def before_forward(self, model: Any, action: Callable[[], None]) -> Callable[[], None]:
        """Run ``action`` before each forward call of ``model``; returns what ends that."""
        handle = model.register_forward_pre_hook(lambda _cell, _args: action())
        remove: Callable[[], None] = handle.remove
        return remove

    def close_step(self) -> Mapping[str, Any]:
        """End the step; returns its coverage."""
        if self._before:
            return super().close_step()
        report = self.report()  # no Cell is inside a compiled one
        if self._recorder is not None:
            self._recorder.end_step()
            self._recorder.writer = None
        return report


def records_compiled_cells(config: Config) -> bool:
    """Whether values of the Cells inside compiled Cells are wanted."""
    return (
        config.level in {Level.L0, Level.MIX}
        and config.task in {Task.STATISTICS, Task.TENSOR}
        and config.data_mode.forward
    )


def _where_compiled(cell: Any, tapped: Any, original: Any) -> Any:
    """Return ``construct`` with taps for a compiler, and without any for Python: a Cell can run as both."""

    def construct(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _being_compiled(0):
            return tapped(*args, **kwargs)
        return original(*args, **kwargs)

    return construct.__get__(cell, type(cell))


def _compiler_is_running() -> bool:
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "compile" and code.co_filename.endswith(_COMPILER):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


@constexpr  # type: ignore[untyped-decorator]  # a compiler calls it once, and takes its result as a constant
def _being_compiled(_: int) -> bool:
    return _compiler_is_running()
