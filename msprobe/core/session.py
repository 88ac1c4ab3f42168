"""Life cycle of a debugger: which steps and ranks are recorded, and what start, stop and step mean in any order.

Knows no framework: an :class:`Adapter` installs and removes the hooks.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msprobe.core.config_record import Config
from msprobe.core.errors import LifecycleError
from msprobe.store import RunLayout, StepWriter
from msprobe.store.at_exit import OPEN

_LOG = logging.getLogger("msprobe")


class Adapter(Protocol):
    """What a framework provides."""

    framework: str

    def models_of(self, model: Any) -> Sequence[Any]:
        """Check ``model`` and return its roots. Raises LifecycleError if the level needs a model and there is none."""

    def rank(self) -> int | None:
        """Rank of this process; None when there is no process group."""

    def world_size(self) -> int | None:
        """Number of ranks; None when there is no process group."""

    def attach(self, models: Sequence[Any]) -> None:
        """Start recording into the writer that was opened."""

    def detach(self) -> None:
        """Stop recording: no hook is left."""

    def open_step(self, writer: StepWriter) -> None:
        """A step begins."""

    def close_step(self) -> Mapping[str, Any]:
        """A step ends; returns its coverage."""

    def report(self) -> Mapping[str, Any]:
        """Coverage of the open step."""

    def writer_options(self) -> dict[str, Any]:
        """Options for :meth:`RunLayout.open_step`."""


class Session:
    """One debugger's run.

    Parameters
    ----------
    config : Config
    adapter : Adapter
    """

    def __init__(self, config: Config, adapter: Adapter) -> None:
        self.config = config
        self.step_index = 0
        self.started = False
        self._adapter = adapter
        self._layout = RunLayout(config.dump_path)
        self._writer: StepWriter | None = None
        self._models: Sequence[Any] = ()
        self._pid = os.getpid()
        self._told: set[str] = set()
        self._recorded = False
        self._left_out = False  # this rank is not wanted: recording nothing is what was asked for
        self._ever_started = False
        self._idle_reason = f"{'save' if config.level == 'debug' else 'start'}() was never called"
        OPEN.add(self)
        for text in config.warnings:
            _LOG.warning("msprobe: %s", text)

    # -- the three calls

    def start(self, model: Any = None, rank_id: int | None = None) -> None:
        """Begin to record, if this step and rank are wanted.

        Raises
        ------
        LifecycleError
            If the level needs a model and ``model`` is none.
        """
        if self._foreign_process():
            return
        models = self._adapter.models_of(model)
        if self.started:
            self.tell("start() was called again before stop(); the earlier start ends here")
            self.stop()
        self._ever_started = True
        if not self._wanted(rank_id):
            return
        if self._writer is None:
            self._open_step()
        self._models = models
        self.started = True
        try:
            self._adapter.attach(models)
        except Exception as error:  # noqa: BLE001 - hook boundary: the user's training goes on
            self.stop()
            self.tell(f"nothing is recorded, the hooks cannot be installed: {type(error).__name__}: {error}")

    def stop(self) -> None:
        """Stop recording. What was recorded is complete on disk; the step goes on until :meth:`step`."""
        if self._foreign_process():
            return
        if not self.started:
            if not self._ever_started:
                self.tell("stop() was called before start(); nothing was being recorded")
            return
        self.started = False
        self._adapter.detach()
        if self._writer is not None:
            self._writer.pause()

    def step(self, *, discard: bool = False) -> None:
        """End the step: write everything, restart names at 0.

        Parameters
        ----------
        discard : bool
            The step does not count (warm-up): its number is used again, its data is written over.
        """
        if self._foreign_process():
            return
        resume = self.started
        if resume:
            self.tell("step() was called before stop(); recording goes on with the next step")
            self._adapter.detach()
            self.started = False
        self._close_step()
        if not discard:
            self.step_index += 1
        if resume and self._wanted(None):
            self._open_step()
            self._adapter.attach(self._models)
            self.started = True

    def open_for_save(self) -> bool:
        """Open the step for values that are saved without start() (level debug).

        Returns
        -------
        bool
            False if this step or rank is not wanted.
        """
        if self._foreign_process():
            return False
        self._ever_started = True
        if self._writer is None:
            if not self._wanted(None):
                return False
            self._open_step()
        return True

    def set_init_step(self, number: int) -> None:
        """Count steps from ``number``.

        Raises
        ------
        LifecycleError
            If ``number`` is not an integer >= 0.
        """
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise LifecycleError(f"set_init_step: the first step must be an integer >= 0, not {number!r}")
        self.step_index = number

    @property
    def finished(self) -> bool:
        """Whether the last wanted step is over."""
        return bool(self.config.step) and self.step_index > max(self.config.step)

    def close(self) -> None:
        """End of the process: finish the open step and say so if nothing was ever recorded."""
        if os.getpid() != self._pid:
            return
        if self.started:
            self.started = False
            self._adapter.detach()
        self._close_step()
        if not (self._recorded or self._left_out or (_is_child() and not self._ever_started)):
            _LOG.warning("msprobe recorded nothing under %s: %s", self.config.dump_path, self._idle_reason)

    def finish_at_exit(self) -> None:
        """Close when the interpreter exits."""
        self.close()

    # -- steps and ranks

    def _wanted(self, rank_id: int | None) -> bool:
        steps, ranks = self.config.step, self.config.rank
        if steps and self.step_index not in steps:
            self._idle_reason = f"no step of {sorted(steps)[:5]} was reached; the last one was step {self.step_index}"
            return False
        rank = self._adapter.rank() if rank_id is None else rank_id
        if rank is not None:
            self._layout.set_rank(rank)
        if not ranks:
            return True
        if rank is None:
            self._idle_reason = (
                f"rank is {sorted(ranks)}, but this is a single process without torch.distributed; use rank: []"
            )
            self.tell(f"nothing is recorded: {self._idle_reason}")
            return False
        world = self._adapter.world_size()
        beyond = [wanted for wanted in sorted(ranks) if world is not None and wanted >= world]
        if beyond:
            self.tell(f"rank: {beyond} do not exist, there are {world} ranks (0 to {world - 1 if world else 0})")
        if rank not in ranks:
            self._idle_reason = f"this is rank {rank}, and rank is {sorted(ranks)}"
            self._left_out = True
            return False
        return True

    def _open_step(self) -> None:
        config = self.config
        self._writer = self._layout.open_step(
            self.step_index,
            task=str(config.task),
            level=str(config.level),
            framework=self._adapter.framework,
            extra_info=config.extra_info,
            coverage=self._adapter.report,
            **self._adapter.writer_options(),
        )
        self._adapter.open_step(self._writer)
        # Last opened, first finished: what waits for gradients must reach the writer before it ends.
        OPEN.discard(self)
        OPEN.add(self)

    def _close_step(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        report = self._adapter.close_step()
        writer.flush()
        had_folder = writer.has_folder  # of structure, which has a hierarchy and no records
        writer.finish(report)
        self._recorded = self._recorded or writer.recorded > 0 or (self.config.task == "structure" and had_folder)
        if not self._recorded:
            self._idle_reason = _why_empty(report, writer.failures)

    def _foreign_process(self) -> bool:
        """A forked child shares this object, not the run: it records nothing."""
        return os.getpid() != self._pid

    def tell(self, text: str) -> None:
        """Log a warning, the same one only once."""
        if text not in self._told:
            self._told.add(text)
            _LOG.warning("msprobe: %s", text)


def _is_child() -> bool:
    """Whether multiprocessing made this process: a data loader's worker imports the script, debugger and all."""
    return multiprocessing.parent_process() is not None


def _why_empty(report: Mapping[str, Any], failures: Sequence[str]) -> str:
    if failures:
        return "it could not be written: " + "; ".join(failures[:3])
    reasons = report.get("not_recorded") or {}
    if not reasons:
        return "no call was made between start() and stop()"
    return "every call was left out: " + ", ".join(f"{count} {reason}" for reason, count in reasons.items())
