"""A dynamic graph with compiled Cells: two dumps, ``dump_path/pynative`` and ``dump_path/graph``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from msprobe.core.session import Session
from msprobe.ms_dynamic.adapter import CELLS_INSIDE_NOTE, DynamicAdapter
from msprobe.ms_dynamic.ms_adapter import MsAdapterAdapter
from msprobe.ms_static.compiled_cells import CompiledCellAdapter, CompiledCells, records_compiled_cells
from msprobe.ms_static.context import device_target
from msprobe.ms_static.kernel_dump import Target
from msprobe.store import StepWriter
from msprobe.store.at_exit import OPEN
from msprobe.store.divided_writer import DividedWriter


class _Companion(Session):
    """A session beside another one, which says what there is to say."""

    def tell(self, text: str) -> None:
        """Said by the other session."""


class CompiledPart:
    """The dump of the compiled Cells and of what is inside them, beside the session of the dynamic part.

    Parameters
    ----------
    dynamic : Session
        Writes into ``pynative``.
    adapter : CompiledCellAdapter
    starts : tuple of str
        How the names of the records begin that the dynamic part makes for ``graph``.
    """

    def __init__(self, dynamic: Session, adapter: CompiledCellAdapter, starts: tuple[str, ...]) -> None:
        self._dynamic = dynamic
        self._adapter = adapter
        self._starts = starts
        self._session = _Companion(replace(dynamic.config, warnings=()), adapter, part="graph")
        self._session.step_index = dynamic.step_index

    @classmethod
    def of_model(cls, dynamic: Session, model: Any) -> CompiledPart | None:
        """Divide the run if the model has compiled Cells whose values are wanted; otherwise, or within a step, None."""
        adapter = dynamic.adapter
        if not isinstance(adapter, DynamicAdapter) or isinstance(adapter, MsAdapterAdapter):
            return None
        if not records_compiled_cells(dynamic.config) or device_target() is not Target.CPU:
            return None
        roots = adapter.models_of(model)
        found = CompiledCells.of(roots)
        if not found.cells or not dynamic.place_in("pynative"):
            return None

        def options() -> dict[str, Any]:
            return dynamic.adapter.writer_options()  # of the adapter of the moment: the configuration may change

        return cls(dynamic, CompiledCellAdapter(dynamic.config, roots, found, options), found.record_starts())

    def start(self, model: Any, rank_id: int | None, token_range: Sequence[int] | None) -> None:
        """The dynamic part has started."""
        self._follow()
        self._session.start(model, rank_id, token_range)
        self._divide()

    def stop(self) -> None:
        """The dynamic part has stopped."""
        self._session.stop()

    def step(self, *, discard: bool) -> None:
        """The step of the dynamic part has ended."""
        self._follow()
        self._session.step(discard=discard)
        self._divide()

    def set_init_step(self, number: int) -> None:
        """See `Session.set_init_step`."""
        self._session.set_init_step(number)
        self._divide()

    def close(self) -> None:
        """End of the process, after the dynamic part."""
        self._session.close()

    def _follow(self) -> None:
        """Take over a configuration file that has changed."""
        config = replace(self._dynamic.config, warnings=())
        moved = config.dump_path != self._session.config.dump_path
        self._session.config = config
        self._adapter.follow(config)
        if moved:
            self._session.place_in("graph")

    def _divide(self) -> None:
        """Send the records of compiled Cells, which the dynamic part makes, into the other dump."""
        dynamic, other = self._dynamic.adapter, self._adapter.writer
        if not isinstance(dynamic, DynamicAdapter) or other is None:
            return
        capture = dynamic.capture
        capture.coverage.notes.pop(CELLS_INSIDE_NOTE, None)
        if isinstance(capture.writer, StepWriter):
            divided = DividedWriter(capture.writer, other, self._is_compiled, self._adapter.calls)
            capture.writer = cast("StepWriter", divided)
        OPEN.discard(self._dynamic)  # last opened, first finished: it still writes into the other dump
        OPEN.add(self._dynamic)

    def _is_compiled(self, name: str) -> bool:
        return name.startswith(self._starts)
