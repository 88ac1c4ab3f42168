"""MindSpore's dynamic graphs as a session sees them: what a level replaces and hooks, and how that is put back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mindspore import communication, nn
from mindspore.communication import GlobalComm

from msprobe.core.config_record import Config
from msprobe.core.errors import LifecycleError
from msprobe.core.forked_child import ForkedChild
from msprobe.core.saving import VariableSaver
from msprobe.ms_dynamic.api_table import Api, mindspore_apis
from msprobe.ms_dynamic.calls import recorded_function
from msprobe.ms_dynamic.capture import MindsporeCapture
from msprobe.ms_dynamic.cells import CellCalls, named_cells
from msprobe.ms_dynamic.jit_calls import JitCalls, is_compiled
from msprobe.ms_dynamic.parameters import ParameterGradients
from msprobe.ms_dynamic.primitives import PrimitiveCalls
from msprobe.ms_dynamic.replaced import ReplacedAttributes
from msprobe.ms_dynamic.tensor_hooks import MindsporeHooks
from msprobe.store import StepWriter

CELLS_INSIDE_NOTE = "Cells inside a compiled Cell, not recorded"


class DynamicAdapter:
    """Installs what the configured level needs.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    capture : MindsporeCapture
    records_cells, records_apis : bool
        What the level records.
    saver : VariableSaver or None
        At level debug.

    Raises
    ------
    LifecycleError
        From :meth:`models_of`, when a level that records Cells gets none.
    """

    framework = "mindspore"

    def __init__(self, config: Config) -> None:
        self._config = config
        self.records_cells = config.level in ("L0", "mix")
        self.records_apis = config.level in ("L1", "mix")
        self.capture = MindsporeCapture(config)
        self._replaced = ReplacedAttributes()
        self._cells = self._cell_calls() if self.records_cells else None
        self._primitives = PrimitiveCalls(self.capture, self._replaced)
        if self.records_apis:
            for api in self._apis():
                make = functools.partial(recorded_function, self.capture, api.base, hides=api.hides)
                self._replaced.add(api.holder, api.attribute, make)
        self.capture.recomputation.replace(self._replaced)
        self._jit = JitCalls(self.capture, self._replaced, recorded=self.records_apis)
        self._parameters = ParameterGradients(self.capture)
        self.saver: VariableSaver | None = None
        if config.level == "debug":
            self.saver = VariableSaver(self.capture, MindsporeHooks(self.capture), tensors=config.task == "tensor")
        self._in_child = ForkedChild()
        self._in_child.silences(self.capture)

    def reconfigured(self, config: Config) -> DynamicAdapter:
        """An adapter for a changed configuration."""
        return DynamicAdapter(config)

    def models_of(self, model: Any) -> Sequence[Any]:
        """Return the root Cells in ``model`` (a Cell, or a list or tuple of Cells)."""
        roots = model if isinstance(model, (list, tuple)) else [] if model is None else [model]
        wrong = [root for root in roots if not isinstance(root, nn.Cell)]
        if wrong:
            raise LifecycleError(
                f"start(model=...): expected a mindspore.nn.Cell or a list of them, not {type(wrong[0]).__name__}"
            )
        if self.records_cells and not roots:
            raise LifecycleError(
                f'level "{self._config.level}" records Cells: call start(model=...) with a mindspore.nn.Cell or a list '
                "of them"
            )
        return list(roots)

    def rank(self) -> int | None:
        """Rank of this process, None before ``mindspore.communication.init()``."""
        return communication.get_rank() if GlobalComm.INITED else None

    def numbering(self) -> tuple[int, int] | None:
        """Rank on this node and number of ranks there, None before ``mindspore.communication.init()``."""
        return (communication.get_local_rank(), communication.get_local_rank_size()) if GlobalComm.INITED else None

    def writer_options(self) -> dict[str, Any]:
        """How this adapter's records are turned into text."""
        config = self._config
        return {
            "tensors": config.task == "tensor" or (config.task == "statistics" and bool(config.tensor_list)),
            "render_stack": self.capture.stacks.render,
            "resolve": self.capture.resolve,
            "asynchronous": config.async_dump,
        }

    def open_step(self, writer: StepWriter) -> None:
        """Record into ``writer`` from now on."""
        self.capture.writer = writer

    def close_step(self) -> Mapping[str, Any]:
        """Emit what waits, restart names; returns the coverage of the step."""
        if self.saver is not None:
            self.saver.close_step()
        report = self.capture.close_step()
        self.capture.writer = None
        return report

    def report(self) -> Mapping[str, Any]:
        """Coverage of the open step."""
        return self.capture.report()

    def exhausted(self) -> str | None:
        """Why no later step is recorded: there is no such reason here."""
        return None

    def conclude(self) -> None:
        """The run is over; there is nothing to say about it."""

    def attach(self, models: Sequence[Any]) -> None:
        """Replace and hook what the level needs."""
        self.capture.new_threads()
        if self.saver is not None:
            return  # nothing is recorded but what save() is given
        if self._cells is not None:
            self._cells.record(self._named(models))
            self._note_compiled(models)
            self._parameters.record(self._named(models))
        if self.records_apis:
            self._record_primitives(models)
        self._replaced.install()
        self._jit.install()
        self.capture.running = True

    def detach(self) -> None:
        """Put everything back."""
        self.capture.running = False
        self._jit.remove()
        self._replaced.remove()
        self._primitives.forget()
        if self._cells is not None:
            self._cells.forget()
        self._parameters.remove()
        self.capture.gradients.release()
        self.capture.count_open_modules()
        self.capture.threads.modules.clear()

    def _note_compiled(self, models: Sequence[Any]) -> None:
        """Say in coverage.json how many Cells run inside the graph of another Cell and so have no record."""
        named = dict(self._named(models))
        compiled = [_path(name) for name, cell in named.items() if is_compiled(cell)]
        inside = sum(_path(name).startswith(tuple(f"{path}." for path in compiled)) for name in named)
        if inside:
            self.capture.coverage.notes[CELLS_INSIDE_NOTE] = inside

    # -- what MSAdapter does in another way

    def _named(self, models: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        """Names and Cells of the models."""
        return named_cells(models)

    def _cell_calls(self) -> CellCalls:
        return CellCalls(self.capture, self._replaced, nn.Cell)

    def _record_primitives(self, models: Sequence[Any]) -> None:
        self._primitives.record(models)

    def _apis(self) -> Sequence[Api]:
        return mindspore_apis()

    def before_forward(self, model: Any, action: Callable[[], None]) -> Callable[[], None]:
        """Run ``action`` before each forward call of ``model``; returns what ends that."""
        handle = model.register_forward_pre_hook(lambda _cell, _args: action())
        remove: Callable[[], None] = handle.remove
        return remove


def _path(name: str) -> str:
    """``Cell.path`` of ``Cell.path.Class``."""
    return name.rpartition(".")[0]
