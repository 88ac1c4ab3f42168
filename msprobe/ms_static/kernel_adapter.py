"""Level L2 of a session on MindSpore: MindSpore dumps kernels, and a step's kernels become its records."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msprobe.core.config_record import Config, Precision, Task
from msprobe.core.coverage import Coverage
from msprobe.core.errors import LifecycleError
from msprobe.core.support import Mode
from msprobe.measure.backends import counts
from msprobe.ms_static import context
from msprobe.ms_static.categories import statistic_categories
from msprobe.ms_static.dump_switch import DumpSwitch
from msprobe.ms_static.dumped_step import DumpedStep
from msprobe.ms_static.kernel_dump import KernelDump, Target, plan_kernel_dump
from msprobe.ms_static.versions import installed_version
from msprobe.store import StepWriter
from msprobe.store.kernel_files import iteration_folders, scope_names, set_aside
from msprobe.store.layout import step_of

_WATCHING = (Task.EXCEPTION_DUMP, Task.OVERFLOW_CHECK)
_NOTHING = (
    "step without a dumped kernel: no graph ran between start() and stop(), none of its kernels is in list, or a graph "
    "had run before the first start(), after which MindSpore reads no dump configuration"
)
_NOTHING_FAILED = "step in which MindSpore kept no kernel"


class KernelDumpAdapter:
    """Adapter of level L2, in graph mode and for the ``jit`` parts of a dynamic graph.

    MindSpore reads its dump configuration when the first graph of the process runs. In graph mode it is therefore given
    when the adapter is made, else with the first ``start()``.

    Parameters
    ----------
    config : Config
    earlier : KernelDumpAdapter, optional
        The adapter that this one takes over from.

    Raises
    ------
    ConfigError
        The running mode does not take the configuration.
    """

    framework = "mindspore"

    def __init__(self, config: Config, *, earlier: KernelDumpAdapter | None = None) -> None:
        self._config = config
        self._switch: DumpSwitch | None = earlier._switch if earlier is not None else None
        self._writer: StepWriter | None = None
        self._coverage = Coverage()
        self._null_reasons: Counter[str] = Counter()
        if context.running_mode().is_static:
            self._arm()

    def _plan(self) -> tuple[KernelDump, Mode, Target]:
        mode, target = context.running_mode(), context.device_target()
        return plan_kernel_dump(self._config, mode, target=target, environ=os.environ), mode, target

    def _arm(self) -> None:
        """Give MindSpore its configuration, once."""
        plan, mode, target = self._plan()
        if self._switch is not None:
            if plan != self._switch.plan:
                raise LifecycleError(
                    f"MindSpore has read {self._switch.plan.file_name} already, but the script now runs as "
                    f"{mode.value}, for which it is {plan.file_name}: call mindspore.set_context() before "
                    "PrecisionDebugger(...)"
                )
            return
        stepwise = self._config.task not in _WATCHING and (mode is not Mode.STATIC_O2 or target is Target.CPU)
        set_aside(plan.folder, self._rank_folder(plan.folder).name)
        self._switch = DumpSwitch(plan, stepwise=stepwise, switchable=target is not Target.CPU)
        self._switch.arm()
        for remark in plan.remarks:
            self._coverage.notes[f"remark {len(self._coverage.notes) + 1}"] = remark

    def _rank_folder(self, dump_path: Path) -> Path:
        return dump_path / f"rank_{context.rank() or 0}"

    # -- what a session asks

    def models_of(self, model: Any) -> Sequence[Any]:
        """Return the models as given; kernels need none."""
        self._arm()
        return list(model) if isinstance(model, list | tuple) else [] if model is None else [model]

    def rank(self) -> int | None:
        """See `context.rank`."""
        return context.rank()

    def numbering(self) -> tuple[int, int] | None:
        """See `context.numbering`."""
        return context.numbering()

    def writer_options(self) -> dict[str, Any]:
        """Tensor files unless only statistics are asked for; kernels have no Python call stack."""
        return {"tensors": self._config.task is not Task.STATISTICS, "render_stack": _no_stack}

    def open_step(self, writer: StepWriter) -> None:
        """Write into ``writer`` what this step dumps."""
        self._writer = writer

    def attach(self, models: Sequence[Any]) -> None:
        """Dump from here on."""
        if self._switch is not None and self._writer is not None:
            context.wait_for_kernels()
            self._switch.on(step_of(self._writer.folder))

    def detach(self) -> None:
        """Dump no more."""
        if self._switch is not None:
            context.wait_for_kernels()
            self._switch.off()

    def close_step(self) -> Mapping[str, Any]:
        """Turn what MindSpore has dumped into records; returns the coverage of the step."""
        writer, self._writer = self._writer, None
        if writer is not None and self._switch is not None:
            self._record(writer, self._switch.plan)
        report = self.report()
        self._coverage.reset()
        self._null_reasons = Counter()
        return report

    def _record(self, writer: StepWriter, plan: KernelDump) -> None:
        config, folder = self._config, self._rank_folder(plan.folder)
        step = DumpedStep(
            iteration_folders(folder, step_of(writer.folder)),
            scope_names(folder),
            low=config.precision is Precision.LOW,
            categories=statistic_categories(config.summary_mode, installed_version()) if plan.measured else None,
        )
        found = 0
        for name, record in step.records(writer.link_tensor if config.task is not Task.STATISTICS else None):
            writer.add(name, record)
            writer.add_parent(name, None)
            found += 1
        self._null_reasons = step.null_reasons
        if not found:
            watching = config.task in _WATCHING
            self._coverage.not_recorded[_NOTHING_FAILED if watching else _NOTHING] += 1

    def report(self) -> Mapping[str, Any]:
        """Coverage of the open step."""
        return self._coverage.report(self._null_reasons, counts())

    def exhausted(self) -> str | None:
        """Every wanted step is recorded."""
        return None

    def conclude(self) -> None:
        """Nothing is left to say."""

    def reconfigured(self, config: Config) -> KernelDumpAdapter:
        """MindSpore reads its dump configuration once per process."""
        raise LifecycleError("level L2 on MindSpore cannot change while the program runs: start it again")

    def before_forward(self, model: Any, action: Callable[[], None]) -> Callable[[], None]:
        """Kernels are dumped by step, not by call of the model."""
        raise LifecycleError('start(token_range=...) does not work at level "L2" on MindSpore: choose steps')


def _no_stack(_: object) -> list[str]:
    return []
