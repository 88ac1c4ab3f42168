"""Level L0 in graph mode where MindSpore writes what taps see: files or statistics, read when a step ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mindspore import nn

from msprobe.core.config_record import Config, Precision, Task
from msprobe.ms_static import context
from msprobe.ms_static.cell_adapter import CellTapAdapter
from msprobe.ms_static.cell_taps import CellTaps
from msprobe.ms_static.dump_switch import DumpSwitch
from msprobe.ms_static.dump_taps import dump_operators
from msprobe.ms_static.tap_dump import TAP_FOLDER, plan_tap_statistics, tap_prefix
from msprobe.ms_static.tap_files import file_values, statistic_values
from msprobe.ms_static.tap_records import TapRecorder
from msprobe.ms_static.tapped_cells import cells_of
from msprobe.store import StepWriter
from msprobe.store.kernel_files import await_tensordump, iteration_folders, remove_tensordump, set_aside
from msprobe.store.layout import step_of


class DumpTapAdapter(CellTapAdapter):
    """Adapter of level L0 in graph mode, for targets on which a graph cannot call Python.

    Parameters
    ----------
    config : Config
    earlier : DumpTapAdapter, optional
        The adapter that this one takes over from.
    """

    def __init__(self, config: Config, *, earlier: DumpTapAdapter | None = None) -> None:
        super().__init__(config, earlier=earlier)
        self._switch: DumpSwitch | None = earlier._switch if earlier is not None else None
        if config.task is Task.STATISTICS and self._switch is None:
            plan = plan_tap_statistics(config, context.running_mode())
            set_aside(plan.folder, f"rank_{context.rank() or 0}")
            self._switch = DumpSwitch(plan, stepwise=True, switchable=True)
            self._switch.arm()

    def _install(self, roots: list[Any]) -> None:
        config = self._config
        cells = cells_of(roots, nn.Cell.construct)
        self._recorder = TapRecorder(cells, low=config.precision is Precision.LOW, tensors=config.task is Task.TENSOR)
        self._taps = CellTaps(dump_operators(tap_prefix(config)), config.data_mode)
        self._taps.install(cells)
        self._models = roots
        if config.task is Task.TENSOR:
            set_aside(self._tap_folder().parents[1], TAP_FOLDER)

    def open_step(self, writer: StepWriter) -> None:
        """Record into ``writer`` from now on."""
        super().open_step(writer)
        self._writer = writer

    def attach(self, models: Sequence[Any]) -> None:
        """What runs from here on belongs to the open step; what was written since the last one does not."""
        if self._switch is None:
            self._await_files()
            remove_tensordump(self._tap_folder())
        elif self._writer is not None:
            self._switch.on(step_of(self._writer.folder))

    def detach(self) -> None:
        """Record no more."""
        if self._switch is not None:
            context.wait_for_kernels()
            self._switch.off()
        elif self._writer is not None and self._recorder is not None:
            self._await_files()
            low = self._config.precision is Precision.LOW
            self._recorder.replay(file_values(self._tap_folder(), self._writer.link_tensor, low=low))
            self._recorder.flush()

    def _await_files(self) -> None:
        context.wait_for_kernels()
        await_tensordump(self._tap_folder())

    def _tap_folder(self) -> Path:
        return Path(tap_prefix(self._config).format(rank=f"rank{context.rank() or 0}")).parent

    def close_step(self) -> Mapping[str, Any]:
        """Turn what MindSpore has written into records; returns the coverage of the step."""
        writer, self._writer = self._writer, None
        if writer is not None and self._recorder is not None and self._switch is not None:
            folder = self._switch.plan.folder / f"rank_{context.rank() or 0}"
            self._recorder.replay(statistic_values(iteration_folders(folder, step_of(writer.folder))))
        return super().close_step()
