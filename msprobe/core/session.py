"""Life cycle of a debugger: which steps and ranks are recorded, and what start, stop and step mean in any order.

Knows no framework: an :class:`~msprobe.core.adapter.Adapter` installs and removes the hooks.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msprobe.core.adapter import Adapter
from msprobe.core.config_record import Config
from msprobe.core.config_reload import ConfigWatch
from msprobe.core.errors import LifecycleError
from msprobe.core.interruptions import pass_on_interruption
from msprobe.core.token_window import TokenWindow
from msprobe.store import RunLayout, StepWriter
from msprobe.store.at_exit import OPEN

_LOG = logging.getLogger("msprobe")


class Session:
    """One debugger's run.

    Parameters
    ----------
    config : Config
    adapter : Adapter
    watch : ConfigWatch, optional
        Follows a configuration file that may change while the run goes on (key ``dump_enable``).
    part : str
        Folder of dump_path that the steps are in, see :class:`msprobe.store.layout.RunLayout`.
    """

    def __init__(self, config: Config, adapter: Adapter, watch: ConfigWatch | None = None, part: str = "") -> None:
        self.config = config
        self.step_index = 0
        self.started = False
        self.adapter = adapter
        self._watch = watch
        self._new_config: Config | None = None  # waits for the step border
        self._part = part
        self._layout = RunLayout(config.dump_path, part=part)
        self._writer: StepWriter | None = None
        self._models: Sequence[Any] = ()
        self._rank_id: int | None = None
        self._tokens: TokenWindow | None = None
        self._end_token_count: Callable[[], None] | None = None
        self._requested = False  # between start() and stop(), whether or not this step and rank are wanted
        self._attached = False
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

    def start(self, model: Any = None, rank_id: int | None = None, token_range: Sequence[int] | None = None) -> None:
        """Begin to record, if this step and rank are wanted.

        Raises
        ------
        LifecycleError
            If the level or ``token_range`` needs a model and ``model`` is none, or an argument is no valid value.
        """
        if self._foreign_process():
            return
        tokens = TokenWindow.from_argument(token_range)
        _check_count(rank_id, "start(rank_id=...): the rank")
        models = self.adapter.models_of(model)
        if tokens is not None and not models:
            raise LifecycleError("start(token_range=...) counts forward calls of the model: give start(model=...), too")
        if self._requested:
            self.tell("start() was called again before stop(); the earlier start ends here")
            self.stop()
        self._ever_started = True
        self._models, self._rank_id = models, rank_id
        self._count_tokens(tokens)
        self._requested = True
        self._follow_config_file()
        self._begin()

    def stop(self) -> None:
        """Stop recording. What was recorded is complete on disk; the step goes on until :meth:`step`."""
        if self._foreign_process():
            return
        if not self._requested and not self._ever_started:
            self.tell("stop() was called before start(); nothing was being recorded")
        self._requested = False
        if self.started:
            self._suspend()
            if self._writer is not None:
                self._learn_rank()
                self._writer.pause()

    def step(self, *, discard: bool = False) -> None:
        """End the step: write everything, restart names at 0.

        Parameters
        ----------
        discard : bool
            The step does not count (warm-up): what it has written is deleted, and its number is used again.
        """
        if self._foreign_process():
            return
        if self._requested:
            self.tell("step() was called before stop(); recording goes on with the next step")
        self._end_step(discard=discard)
        if not discard:
            self.step_index += 1
        self._follow_config_file()
        if self._requested:
            self._begin()

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
            if not self._wanted():
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
        _check_count(number, "set_init_step: the first step", required=True)
        if self._foreign_process():
            return
        if self._writer is not None:
            if number == self.step_index:
                return
            self.tell("set_init_step() was called inside a step: that step ends here")
        self._end_step()
        self.step_index = number
        if self._requested:
            self._begin()

    def place_in(self, part: str) -> bool:
        """Write the steps from here on into a folder of dump_path.

        Returns
        -------
        bool
            False, and nothing has changed, if a step is open.
        """
        if self._writer is not None:
            return False
        self._part = part
        self._layout = RunLayout(self.config.dump_path, part=part)
        return True

    @property
    def finished(self) -> bool:
        """Whether the last wanted step is over."""
        return bool(self.config.step) and self.step_index > max(self.config.step)

    @property
    def follows_config_file(self) -> bool:
        """Whether the configuration may change, so that a step may be wanted again."""
        return self._watch is not None

    def close(self) -> None:
        """End of the process: finish the open step and say so if nothing was ever recorded."""
        if os.getpid() != self._pid:
            return
        self._requested = False
        self._end_step()
        self.adapter.conclude()
        if not (self._recorded or self._left_out or (_is_child() and not self._ever_started)):
            _LOG.warning("msprobe recorded nothing under %s: %s", self.config.dump_path, self._idle_reason)

    def finish_at_exit(self) -> None:
        """Close when the interpreter exits."""
        self.close()

    # -- recording

    def _begin(self) -> None:
        """Record from here on, if this step and rank are wanted."""
        if not self._wanted():
            return
        if self._writer is None:
            self._open_step()
        self.started = True
        self._install(self._attach if self._tokens is None else self._await_tokens)

    def _suspend(self) -> None:
        """Record no more: no hook is left."""
        self.started = False
        if self._end_token_count is not None:
            self._end_token_count()
            self._end_token_count = None
        self._detach()

    def _install(self, hooks: Callable[[], None]) -> None:
        try:
            hooks()
        except Exception as error:  # noqa: BLE001 - hook boundary: the user's training goes on
            self._suspend()
            pass_on_interruption(error)
            self.tell(f"nothing is recorded, the hooks cannot be installed: {type(error).__name__}: {error}")

    def _attach(self) -> None:
        self._attached = True
        self.adapter.attach(self._models)

    def _detach(self) -> None:
        if self._attached:
            self._attached = False
            self.adapter.detach()

    # -- tokens

    def _count_tokens(self, wanted: TokenWindow | None) -> None:
        """Take over a new range; within a step the count of forward calls goes on."""
        if wanted is not None and self._tokens is not None:
            wanted.calls = self._tokens.calls
        self._tokens = wanted

    def _await_tokens(self) -> None:
        self._end_token_count = self.adapter.before_forward(self._models[0], self._token_begins)

    def _token_begins(self) -> None:
        if self._tokens is None or self._foreign_process():
            return
        wanted = self._tokens.enter()
        if wanted and not self._attached:
            self._install(self._attach)
        elif not wanted:
            self._detach()

    # -- a configuration that changes

    def _follow_config_file(self) -> None:
        """Take over a configuration file that has changed.

        A step keeps the settings that it began with. Only the switch counts at once, so that a run that never calls
        :meth:`step` can be switched, too.
        """
        if self._watch is None:
            return
        self._new_config = self._watch.poll() or self._new_config
        if self._new_config is None:
            return
        if self._writer is not None:
            self.config = replace(self.config, dump_enable=self._new_config.dump_enable)
            return
        config, self._new_config = self._new_config, None
        for text in config.warnings:
            self.tell(text)
        switch = "off" if config.dump_enable is False else "on"
        _LOG.info("msprobe: changed configuration: task %s, level %s, %s", config.task, config.level, switch)
        if replace(config, dump_enable=None) != replace(self.config, dump_enable=None):
            try:
                successor = self.adapter.reconfigured(config)
            except Exception as error:  # noqa: BLE001 - hook boundary: the user's training goes on
                pass_on_interruption(error)
                self.tell(f"the changed configuration cannot be carried out, the last good one stays: {error}")
                return
            self.adapter.conclude()
            self.adapter = successor
            if config.dump_path != self.config.dump_path:
                self._layout = RunLayout(config.dump_path, part=self._part)
            self._left_out = False
        self.config = config

    # -- steps and ranks

    def _learn_rank(self) -> int | None:
        """Rank of this process, if it is known by now; its folders get its name."""
        rank = self.adapter.rank() if self._rank_id is None else self._rank_id
        if rank is not None:
            self._layout.set_rank(rank)
        return rank

    def _wanted(self) -> bool:
        reason = self._why_not_now()
        if reason is not None:
            self._idle_reason = reason
            return False
        ranks = self.config.rank
        rank = self._learn_rank()
        if not ranks:
            return True
        number, world = self._number(rank)
        if number is None:
            self._idle_reason = (
                f"rank is {sorted(ranks)}, but this is a single process, or one whose process group is not there yet; "
                "use rank: [], or call start() after init_process_group() or mindspore.communication.init()"
            )
            self.tell(f"nothing is recorded: {self._idle_reason}")
            return False
        beyond = [wanted for wanted in sorted(ranks) if world is not None and wanted >= world]
        if beyond:
            self.tell(f"rank: {beyond} do not exist, there are {world} ranks (0 to {world - 1 if world else 0})")
        if number not in ranks:
            self._idle_reason = f"this is rank {number}, and rank is {sorted(ranks)}"
            self._left_out = True
            return False
        return True

    def _number(self, rank: int | None) -> tuple[int | None, int | None]:
        """Number of this process for ``rank`` of the configuration, and how many there are, as far as that is known."""
        number, world = self.adapter.numbering() or (rank, None)
        if self._rank_id is not None:
            number = rank
        return (number, world) if number is not None else _launched()

    def _why_not_now(self) -> str | None:
        """Why nothing is recorded in this step, on any rank; None if something is."""
        steps = self.config.step
        if self.config.dump_enable is False:
            return "dump_enable is false"
        if steps and self.step_index not in steps:
            return f"no step of {sorted(steps)[:5]} was reached; the last one was step {self.step_index}"
        return self.adapter.exhausted()

    def _open_step(self) -> None:
        config = self.config
        self._writer = self._layout.open_step(
            self.step_index,
            task=str(config.task),
            level=str(config.level),
            framework=self.adapter.framework,
            extra_info=config.extra_info,
            coverage=self.adapter.report,
            **self.adapter.writer_options(),
        )
        self.adapter.open_step(self._writer)
        # Last opened, first finished: what waits for gradients must reach the writer before it ends.
        OPEN.discard(self)
        OPEN.add(self)

    def _end_step(self, *, discard: bool = False) -> None:
        if self.started:
            self._suspend()
        tokens = self._tokens
        writer, self._writer = self._writer, None
        if tokens is not None:
            calls, tokens.calls = tokens.calls, 0
        if writer is None:
            return
        self._learn_rank()
        report = self.adapter.close_step()
        writer.flush()
        had_folder = writer.has_folder  # of structure, which has a hierarchy and no records
        writer.finish(report)
        if discard:
            self._layout.discard(writer)
            self._idle_reason = "every step was discarded (step(discard=True))"
            return
        self._recorded = self._recorded or writer.recorded > 0 or (self.config.task == "structure" and had_folder)
        if not self._recorded:
            self._idle_reason = _why_empty(report, writer.failures)
            if tokens is not None and calls <= tokens.first and not writer.failures:
                self._idle_reason = f"{tokens} was not reached, the model was called {calls} times"

    def _foreign_process(self) -> bool:
        """A forked child shares this object, not the run: it records nothing."""
        return os.getpid() != self._pid

    def tell(self, text: str) -> None:
        """Log a warning, the same one only once."""
        if text not in self._told:
            self._told.add(text)
            _LOG.warning("msprobe: %s", text)


def _check_count(number: object, what: str, *, required: bool = False) -> None:
    if (number is not None or required) and (type(number) is not int or number < 0):
        raise LifecycleError(f"{what} must be an integer >= 0, not {number!r}")


def _launched() -> tuple[int | None, int | None]:
    """Rank and number of ranks that torchrun has told this process, before it makes its process group."""
    rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return (int(rank), int(world)) if rank.isdigit() and world.isdigit() else (None, None)


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
