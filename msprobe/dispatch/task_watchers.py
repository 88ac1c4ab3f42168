"""Which watcher a task has."""

from __future__ import annotations

from collections.abc import Callable

from msprobe.core.config_record import Config, Task
from msprobe.core.coverage import Coverage
from msprobe.core.selection import Selection
from msprobe.dispatch.bench import BenchWatch
from msprobe.dispatch.nan_check import NanCheck
from msprobe.dispatch.watching import Watcher


def make_watcher(
    config: Config,
    selection: Selection,
    coverage: Coverage,
    failed: Callable[[str, BaseException], None],
    settle: Callable[[], None],
) -> Watcher | None:
    """Return what the configured task does around calls, None if it only records them.

    Parameters
    ----------
    config : Config
    selection : Selection
        Asked for names in ``tensor_list``, and closed when nothing more is to be recorded.
    coverage : Coverage
    failed : callable
        Takes a place and an exception that must not reach the program.
    settle : callable
        Waits until every result that is still on a device stands in its record.

    Raises
    ------
    ConfigError
        If the task cannot work here: an NPU that is not set up for it, no dump to compare with.
    """
    if config.task is Task.NAN_CHECK:
        return NanCheck(selection.wants_tensors, failed, settle)
    if config.bench_path is not None:
        return BenchWatch(config, selection, coverage, settle)
    return None
